"""The predict command, `python -m scaling predict RUN`: what is asked, and its output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import Any

import msgspec
from msgspec.structs import replace

from scaling.command import deliver, obey
from scaling.errors import UsageError
from scaling.records.run import Header, PointRecord
from scaling.records.store import load
from scaling.text import as_json, printable, rounded
from scaling.tools.predict import evidence, flags
from scaling.tools.predict.flags import NAME, Asked
from scaling.tools.predict.forecast import Case, Forecast, Measured, Next, Outlook, doubts, forecasts, measure_next
from scaling.tools.predict.model import fit
from scaling.tools.predict.setting import RDMA, network, read

# ---------------------------------------------------------------- what is asked

DOUBLINGS = 5
# limits: times the largest measured world size; without a run, the largest published one
FARTHEST, FARTHEST_COLD = 64, 1024
# larger ones are typing errors
MOST = {
    "rate": inf, "compress": 10_000, "parameters": 1e13, "flops_per_sample": 1e21, "batch_size": 10_000_000,
    "devices_per_node": 256, "sequence_length": 10_000_000,
}  # fmt: skip


def case_of(asked: Asked, run: tuple[Header, Sequence[PointRecord]] | None) -> Case:
    """Build the case from the run's curve, an import, or one device and a data sheet. Raises UsageError."""
    if asked.cold and asked.run is not None:
        raise UsageError("--cold: predicts without a run; leave out RUN or --cold")
    if not asked.cold and asked.run is None:
        raise UsageError(
            "RUN: give a run's folder, or --cold --rate R --model NAME --batch-size B --network KIND:GBIT"
        )
    is_import = run is not None and run[0].is_import
    own = () if asked.cold or is_import else ("device", "bus", "precision", "sequence_length", "flops_per_sample")
    if given := next((name for name in own if getattr(asked, name)), ""):
        raise UsageError(f"--{given.replace('_', '-')}: only with --cold or an import, because a run has its own")
    for name, most in MOST.items():
        value = getattr(asked, name)
        if (value is not None and not 0 < value <= most) or value == inf:
            below = "" if most == inf else f", at most {most:,g}"
            raise UsageError(f"--{name.replace('_', '-')} {value:g}: must be above 0{below}")
    if run is None:
        return evidence.cold(asked)
    found = evidence.imported(asked, run[0]) if is_import else evidence.case(*run, asked)
    if asked.devices_per_node:
        found = found._replace(devices_per_node=asked.devices_per_node)
    if not is_import and asked.model not in ("", found.model):  # its samples may have another length
        found = found._replace(unit="samples", units_per_sample=1)
    emulated = f", EMULATED {found.device}" if found.setting.emulated else ""
    work = f"{asked.model or found.model}, batch {asked.batch_size or found.batch_size} per device{emulated}"
    return found._replace(title=f"{found.strategy} over {asked.network or found.interconnect}, {work}")


def look(asked: Asked, case: Case) -> Outlook:
    """Fit the case and transfer the fit to the asked setting. Raises UsageError."""
    if case.cold:
        return Outlook(case, fit(case.setting, case.known, read()), case.rate)
    setting, rate = case.setting, case.rate
    model, batch = asked.model or case.model, asked.batch_size or case.batch_size
    if (model, batch) != (case.model, case.batch_size) or asked.rate is not None:
        rate = _rate(asked, case, model, batch)
        known = evidence.known_by_name(asked) if model != case.model else None
        evidence.checked_step(batch, rate, known)
        setting = replace(setting, step_s=batch / rate / case.known.anchor.accumulation)
        if known:
            size = 4.0 * known.parameters
            setting = replace(setting, gradient_bytes=size, tail=known.tail, tensors=known.tensors)
    if asked.network:
        wires = network(asked.network, emulated=setting.emulated, verbs=setting.carrier == "nccl")
        setting = replace(setting, **wires._asdict())
    setting = replace(setting, gradient_bytes=setting.gradient_bytes / asked.compress)
    return Outlook(case, fit(case.setting, case.known, read(), setting), rate)


def _rate(asked: Asked, case: Case, model: str, batch: int) -> float:
    if asked.rate:
        return asked.rate / case.units_per_sample
    for name, size, rate in case.rates:
        if (name, size) == (model, batch):
            return rate
    command = re.sub(r"--model \S+", lambda _: f"--model {model}", case.command)
    raise UsageError(
        f"--{'model ' + model if asked.model else f'batch-size {batch}'}: no rate of one device is known; measure "
        f"mpirun -np 1 {command} --batch-size {batch} --world-sizes 1 and give its {case.unit}/s as --rate"
    )


def world_sizes(asked: Asked, case: Case) -> tuple[int, ...]:
    """Return the asked world sizes, ascending. Raises UsageError if one is too far from the measured ones."""
    apart = asked.network or case.setting.link not in ("none", "unknown")
    most = FARTHEST_COLD if case.cold else FARTHEST * case.largest
    first = case.devices_per_node if case.cold else 2 * case.largest
    last = max(most if apart else case.devices_per_node, first)
    sizes = _sizes(asked.world_sizes) if asked.world_sizes else _doublings(first, last)[:DOUBLINGS]
    whose = f"--world-sizes {sizes[-1]}" if asked.world_sizes else f"N={sizes[-1]}"
    if sizes[-1] > most:
        larger = f"mpirun -np {-(-sizes[-1] // FARTHEST)} {case.command} --batch-size {case.batch_size}"
        why = f"{FARTHEST} times the largest measured; measure a larger one: {larger}"
        raise UsageError(f"{whose}: more than {most}, {'the largest published' if case.cold else why}")
    if sizes[-1] > case.devices_per_node and not apart:
        why, mend = "the rate of the network between nodes is unknown", ""
        if case.setting.link == "none":
            why = f"only one node of {case.devices_per_node} devices was measured"
            mend = ", or measure two nodes"
        raise UsageError(f"{whose}: {why}: give the network between nodes, --network ib:100{mend}")
    return sizes


def _sizes(words: str) -> tuple[int, ...]:
    found: tuple[int, ...] = ()
    if spanned := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", words):
        found = _doublings(int(spanned[1]), int(spanned[2]))
    elif re.fullmatch(r"\d{1,9}(,\d{1,9})*", words):
        found = tuple(sorted({int(word) for word in words.split(",")}))
    if not found or found[0] == 0:
        raise UsageError(f"--world-sizes {words}: write 32,64,128 or 32..1024")
    return found


def _doublings(first: int, last: int) -> tuple[int, ...]:
    return tuple(size for power in range(40) if (size := first * 2**power) <= last)


def supposed(asked: Asked, case: Case) -> tuple[str, ...]:
    asked = Asked(compress=asked.compress) if case.cold else asked  # --cold: all else is the case
    apart = (one.at for one in case.measured if one.at.nodes > case.layout(one.at.world_size).nodes)
    spread = next((f"N={at.world_size} was measured on {at.nodes} nodes" for at in apart), "")
    by_tcp = case.setting.carrier == "cpu" and asked.network.partition(":")[0].lower() in RDMA
    sockets = f"; {case.strategy} sends TCP there, not RDMA" if by_tcp else ""
    batch, model = asked.batch_size, asked.model
    said = (
        (asked.network, f"over {asked.network}, which was not measured{sockets}"),
        (
            batch not in (None, case.batch_size),
            f"batch {batch} per device; measured rows have batch {case.batch_size}",
        ),
        (model not in ("", case.model), f"model {model}; measured rows are of {case.model}"),
        (asked.rate, f"{asked.rate or 0:g} {case.unit}/s on one device, as --rate says"),
        (asked.compress > 1, f"gradients / {asked.compress:g}; the cost of compressing them is not counted"),
        (asked.devices_per_node, f"{asked.devices_per_node} devices a node"),
        (spread and not asked.devices_per_node, f"nodes are filled; {spread}"),
    )
    return tuple(f"what if: {text}" for given, text in said if given)


# ---------------------------------------------------------------- output

CHECKED = (
    "interval: PREDICTED 80 %, of one run on a healthy cluster, tested on published ones: "
    "scaling/tools/predict/README.md"
)


def prediction_table(case: Case, rows: Sequence[Forecast], extra: Sequence[str], following: Next | None) -> str:
    lines = [f"PREDICTED, not measured: {case.title}"]
    lines += [f"note: {text}" for text in (*case.notes, *extra)]
    lines += _aligned(case, rows)
    lines += sorted({f"not claimed: {row.unclaimed}" for row in rows if row.unclaimed})
    if by_priors := ", ".join(f"{row.at.world_size:,}" for row in rows if row.by_priors):
        lines.append(f"N={by_priors}: published clusters alone say this; the measured points weigh too little")
    if following is not None:
        lines.append(
            f"measure next: {following.what} (the interval at {following.asked:,} would be "
            f"± {100 * following.then:.1f} instead of ± {100 * following.now:.1f})"
        )
    lines.append("losses are per cent of a step; PREDICTED rows are never ranked against measured ones")
    over_rounds = any(one.low is not None for one in case.measured)
    lines.append(CHECKED + "; measured 95 %, over rounds" * over_rounds)
    return "\n".join(map(printable, lines)) + "\n"


def _aligned(case: Case, rows: Sequence[Forecast]) -> list[str]:
    head = ["N", "nodes", "", f"{case.unit}/s", "efficiency", "interval", "contention", "straggling", "exposed",
            "rest", "largest"]  # fmt: skip
    cells = [head]
    every: list[Measured | Forecast] = [*case.measured, *rows]
    for one in every:
        said = [f"{one.samples_per_s * case.units_per_sample:,.0f}", f"{100 * one.efficiency:.1f} %"]
        between = "" if one.low is None or one.high is None else f"{100 * one.low:.0f} to {100 * one.high:.0f}"
        kind, parts = "measured", [""] * 5
        if isinstance(one, Forecast):
            kind, losses = "PREDICTED", (one.contention, one.straggling, one.exposed, one.unexplained)
            if one.unclaimed:
                said = ["not claimed"] * 2
            else:
                parts = [*(f"{round(100 * part, 1) + 0.0:.1f}" for part in losses), one.cause]
        cells.append([f"{one.at.world_size:,}", f"{one.at.nodes:,}", kind, *said, between, *parts])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [">", ">", "<", *">" * 7, "<"]
    return ["  ".join(map("{:{}{}}".format, line, sides, widths)).rstrip() for line in cells]


def prediction_json(case: Case, rows: Sequence[Forecast], extra: Sequence[str], following: Next | None) -> str:
    """Render the prediction as JSON; fractions are of 1."""
    plain: dict[str, Any] = {
        "kind": "PREDICTED", "interval_percent": 80, "measured_interval_percent": 95, "title": case.title,
        "notes": [*case.notes, *extra], "unit": case.unit, "units_per_sample": case.units_per_sample,
        "measured": msgspec.to_builtins(case.measured),
        "predicted": [msgspec.to_builtins(row) | {"kind": "PREDICTED", "cause": row.cause} for row in rows],
        "measure_next": following._asdict() if following else None,
    }  # fmt: skip
    return as_json(rounded(plain))


def predict(asked: Asked) -> str:
    case = case_of(asked, None if asked.run is None else load(asked.run))
    found, sizes = look(asked, case), world_sizes(asked, case)
    write = prediction_json if asked.format == "json" else prediction_table
    extra = (*doubts(case), *supposed(asked, case))
    return write(case, forecasts(found, sizes), extra, measure_next(found, sizes[-1]))


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        deliver(predict(asked), asked.output)


def main(argv: Sequence[str] | None = None) -> int:
    return obey(_act, argv, NAME)


if __name__ == "__main__":
    raise SystemExit(main())
