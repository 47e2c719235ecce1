"""The predict command, `python -m scaling predict RUN`: what is asked, forecasts, and their output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import exp

import msgspec
from msgspec.structs import replace

from scaling.command import deliver, obey
from scaling.errors import UsageError
from scaling.records.run import Header, PointRecord
from scaling.records.store import load
from scaling.text import as_json, printable, rounded
from scaling.tools.predict import evidence, flags
from scaling.tools.predict.evidence import Case
from scaling.tools.predict.flags import NAME, Asked
from scaling.tools.predict.model import Fit, fit, predict
from scaling.tools.predict.setting import NORMAL_95, At, Measured, network, read

# ---------------------------------------------------------------- what is asked

DOUBLINGS = 5
# limits: times the largest measured world size; without a run, the largest published one
FARTHEST, FARTHEST_COLD = 64, 1024
# a run has its own
OF_A_NODE = ("device", "bus", "precision", "sequence_length", "flops_per_sample")


def case_of(asked: Asked, run: tuple[Header, Sequence[PointRecord]] | None) -> Case:
    """Build the case from the run's curve, an import, or one device and a data sheet. Raises UsageError."""
    if asked.cold != (asked.run is None):
        needed = "--cold --rate R --model NAME --batch-size B --network KIND:GBIT"
        raise UsageError(f"RUN: give either a run's folder, or {needed}")
    is_import = run is not None and run[0].is_import
    for flag in () if asked.cold or is_import else OF_A_NODE:
        if getattr(asked, flag):
            why = "only with --cold or an import, because a run has its own"
            raise UsageError(f"--{flag.replace('_', '-')}: {why}")
    if run is None:
        return evidence.cold(asked)
    case = evidence.imported(asked, run[0]) if is_import else evidence.case(*run, asked)
    if not is_import and asked.model not in ("", case.model):  # its samples may have another length
        case = case._replace(unit="samples", units_per_sample=1)
    return what_if(asked, case._replace(notes=(*case.notes, *doubts(case), *supposed(asked, case))))


def what_if(asked: Asked, case: Case) -> Case:
    """Return the case with the asked setting and the rate of one device there. Raises UsageError."""
    setting, rate = case.setting, (asked.rate or 0.0) / case.units_per_sample
    model, batch = asked.model or case.model, asked.batch_size or case.batch_size
    if (model, batch) == (case.model, case.batch_size) and asked.rate is None:
        rate = case.rate
    else:
        rate = rate or next((rate for name, size, rate in case.rates if (name, size) == (model, batch)), 0.0)
        if not rate:
            command = re.sub(r"--model \S+", lambda _: f"--model {model}", case.command)
            command = re.sub(r"--batch-size \d+", f"--batch-size {batch}", command)
            raise UsageError(
                f"--{'model ' + model if asked.model else f'batch-size {batch}'}: no rate of one device is known; "
                f"measure mpirun -np 1 {command} --world-sizes 1 and give its {case.unit}/s as --rate"
            )
        step_s = evidence.checked_step(batch, rate) / case.setting.anchor.accumulation
        setting = replace(setting, step_s=step_s)
    if model != case.model:
        new = evidence.known_by_name(asked)
        setting = replace(setting, gradient_bytes=4.0 * new.parameters, tail=new.tail, tensors=new.tensors)
    if asked.network:
        setting = replace(setting, **network(asked.network, verbs=setting.carrier == "nccl")._asdict())
    return case._replace(asked=setting, rate=rate)


def world_sizes(asked: Asked, case: Case) -> tuple[int, ...]:
    """Return the asked world sizes, ascending. Raises UsageError if one is too far from the measured ones."""
    apart = asked.network or case.setting.link != "unknown"
    largest = max((one.at.world_size for one in case.observed), default=1)
    first, most = (2 * largest, FARTHEST * largest) if case.measured else (case.devices_per_node, FARTHEST_COLD)
    sizes = _doublings(first, max(most if apart else case.devices_per_node, first))[:DOUBLINGS]
    if words := asked.world_sizes:
        spanned = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", words)
        listed = re.fullmatch(r"\d{1,9}(,\d{1,9})*", words) and sorted({int(word) for word in words.split(",")})
        sizes = _doublings(int(spanned[1]), int(spanned[2])) if spanned else tuple(listed or ())
        if not sizes or sizes[0] == 0:
            raise UsageError(f"--world-sizes {words}: write 32,64,128 or 32..1024")
    whose = f"--world-sizes {sizes[-1]}" if words else f"N={sizes[-1]}"
    if sizes[-1] > most:
        why = f"{FARTHEST} times the largest run; measure mpirun -np {-(-sizes[-1] // FARTHEST)} {case.command}"
        raise UsageError(f"{whose}: more than {most}, {why if case.measured else 'the largest published'}")
    if sizes[-1] > case.devices_per_node and not apart:
        nodes = f"nodes of {case.devices_per_node} devices"
        fix = "give --network ib:100, or measure two nodes over one of known rate"
        raise UsageError(f"{whose}: the network between {nodes} is unknown: {fix}")
    return sizes


def _doublings(first: int, last: int) -> tuple[int, ...]:
    return tuple(size for power in range(40) if 0 < (size := first * 2**power) <= last)


def supposed(asked: Asked, case: Case) -> tuple[str, ...]:
    """Say which flags change what was measured."""
    flags = {"batch-size": (asked.batch_size, case.batch_size), "model": (asked.model, case.model)}
    changed = {flag: new for flag, (new, old) in flags.items() if new != old}
    given = {"network": asked.network, **changed, "rate": asked.rate, "devices-per-node": asked.devices_per_node}
    said = ", ".join(f"--{flag} {value}" for flag, value in given.items() if value)
    by_tcp = asked.network and case.setting.carrier == "cpu" and network(asked.network).link == "rdma"
    said += f"; {case.strategy} sends TCP there, not RDMA" if by_tcp else ""
    return (f"what if: {said}; measured rows are of {case.model}, batch {case.batch_size}",) if said else ()


# ---------------------------------------------------------------- forecasts

# intervals with a larger half width are not claimed
WIDEST = 0.15
# no published efficiency is below (the lowest is 6.5 %: BERT-Large over 10 GbE on 32 devices)
LOWEST = 0.05
# a measured efficiency this far outside the interval of published clusters is reported
FAR_OFF = 0.05
# a prediction of which measurements explain less than this share of the variance rests on the priors
LEAST_WEIGHT = 0.1
CAUSES = ("contention", "straggling", "exposed", "rest")


class Forecast(Measured, frozen=True, kw_only=True):
    """A predicted world size: the ends are of the 80 % interval, losses are fractions of the step, by cause.

    `unclaimed`: why it is not claimed. `by_priors`: the measurements say nothing of it.
    """

    low: float
    high: float
    losses: dict[str, float]
    unclaimed: str = ""
    by_priors: bool = False


def doubts(case: Case) -> tuple[str, ...]:
    """Say which measured points no published cluster is like."""
    said, unmeasured = [], fit(case.setting, (), read())
    for one in case.observed:
        _, low, high, *_ = predict(unmeasured, one.at)
        off = exp(NORMAL_95 * one.noise)
        least, most = one.efficiency / off, one.efficiency * off
        told = f"N={one.at.world_size} was measured at {100 * one.efficiency:.0f} %"
        told += f" ({100 * least:.0f} to {100 * most:.0f} %)"
        if max(low - most, least - high) > 0 and max(low - one.efficiency, one.efficiency - high) > FAR_OFF:
            usually = f"published clusters like it have {100 * low:.0f} to {100 * high:.0f} %"
            said.append(f"{told}, but {usually}: predictions follow the measurement, and are wider")
    return tuple(said)


def forecasts(case: Case, world_sizes: Sequence[int]) -> tuple[Forecast, ...]:
    found = fit(case.setting, case.observed, read(), case.asked)
    return tuple(_forecast(case, found, case.layout(size)) for size in world_sizes)


def _forecast(case: Case, fit: Fit, at: At) -> Forecast:
    (middle, low, high, _, step_s, weight), unclaimed = predict(fit, at), case.unclaimed
    lost = [one / sum(step_s) for one in step_s[1:]]
    losses = dict(zip(CAUSES, (*lost, 1 - middle - sum(lost)), strict=True))
    if not unclaimed and (high - low) / 2 > WIDEST:
        unclaimed = f"the interval is wider than ± {100 * WIDEST:.0f} points"
    elif not unclaimed and middle < LOWEST:
        check = "check --rate, which is in tokens/s with --sequence-length alone"
        unclaimed = f"an efficiency below {100 * LOWEST:.0f} %, which no published cluster has; {check}"
    return Forecast(
        at=at, samples_per_s=at.world_size * case.rate * middle, efficiency=middle, low=low, high=high,
        losses=losses, unclaimed=unclaimed, by_priors=bool(case.observed) and weight < LEAST_WEIGHT,
    )  # fmt: skip


# ---------------------------------------------------------------- output

CHECKED = "80 %, of one run on a healthy cluster, tested on published ones: scaling/tools/predict/README.md"


def prediction_table(case: Case, rows: Sequence[Forecast]) -> str:
    lines = [f"PREDICTED, not measured: {case.title}", *(f"note: {text}" for text in case.notes)]
    lines += [*_aligned(case, rows), *sorted({f"not claimed: {row.unclaimed}" for row in rows if row.unclaimed})]
    if by_priors := ", ".join(f"{row.at.world_size:,}" for row in rows if row.by_priors):
        lines.append(f"N={by_priors}: published clusters alone say this; the measured points weigh too little")
    lines.append("losses are per cent of a step; PREDICTED rows are never ranked against measured ones")
    over_rounds = any(one.low is not None for one in case.measured)
    lines.append(f"interval: PREDICTED {CHECKED}" + "; measured 95 %, over rounds" * over_rounds)
    return "\n".join(map(printable, lines)) + "\n"


def _aligned(case: Case, rows: Sequence[Forecast]) -> list[str]:
    cells = [["N", "nodes", "", f"{case.unit}/s", "efficiency", "interval", *CAUSES]]
    for one in (*case.measured, *rows):
        said = [f"{one.samples_per_s * case.units_per_sample:,.0f}", f"{100 * one.efficiency:.1f} %"]
        between = "" if one.low is None or one.high is None else f"{100 * one.low:.0f} to {100 * one.high:.0f}"
        kind, parts = "measured", [""] * len(CAUSES)
        if isinstance(one, Forecast):
            kind = "PREDICTED"
            if one.unclaimed:
                said = ["not claimed"] * 2
            else:
                parts = [f"{round(100 * lost, 1) + 0.0:.1f}" for lost in one.losses.values()]
        cells.append([f"{one.at.world_size:,}", f"{one.at.nodes:,}", kind, *said, between, *parts])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map("{:{}{}}".format, line, ">><" + ">" * 7, widths)).rstrip() for line in cells]


def prediction_json(case: Case, rows: Sequence[Forecast]) -> str:
    """Render the prediction as JSON; fractions are of 1."""
    return as_json(rounded({
        "kind": "PREDICTED", "interval_percent": 80, "measured_interval_percent": 95, "title": case.title,
        "notes": case.notes, "unit": case.unit, "units_per_sample": case.units_per_sample,
        "measured": msgspec.to_builtins(case.measured),
        "predicted": [msgspec.to_builtins(row) | {"kind": "PREDICTED"} for row in rows],
    }))  # fmt: skip


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        case = case_of(asked, None if asked.run is None else load(asked.run))
        write = prediction_json if asked.format == "json" else prediction_table
        deliver(write(case, forecasts(case, world_sizes(asked, case))), asked.output)


def main(argv: Sequence[str] | None = None) -> int:
    return obey(_act, argv, NAME)


if __name__ == "__main__":
    raise SystemExit(main())
