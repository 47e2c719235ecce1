"""Turns the command line into a case, a what-if and world sizes, or into an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.run import Header, PointRecord
from scaling.tools.predict import cold, evidence, imported
from scaling.tools.predict.catalogue import RDMA, network
from scaling.tools.predict.evidence import Wanted
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.forecast import Case, Outlook, outlook
from scaling.tools.predict.healthy import Relief
from scaling.tools.predict.setting import Setting

DOUBLINGS = 5
# limits: times the largest measured world size; without a run, the largest published one
FARTHEST, FARTHEST_COLD = 64, 1024
# larger ones are typing errors
MOST_COMPRESSION, MOST_PARAMETERS, MOST_DEVICES_PER_NODE, MOST_BATCH = 10_000, 1e13, 256, 10_000_000


def case_of(asked: Asked, run: tuple[Header, Sequence[PointRecord]] | None) -> Case:
    """Build the case from the run's curve, an import, or one device and a data sheet. Raises UsageError."""
    _checked(asked, is_import=run is not None and run[0].is_import)
    if run is None:
        return cold.case(asked)
    header, records = run
    if header.is_import:
        return imported.case(asked, header)
    wanted = Wanted(asked.strategy, asked.interconnect, asked.up_to, asked.model, asked.batch_size)
    found = evidence.case(header, records, wanted)
    if asked.devices_per_node:
        found = found._replace(devices_per_node=asked.devices_per_node)
    if asked.model not in ("", found.model):  # samples of another model may have another length
        found = found._replace(unit="samples", units_per_sample=1)
    return found.titled(asked.model, asked.batch_size, asked.network)


def _checked(asked: Asked, *, is_import: bool) -> None:
    if asked.cold and asked.run is not None:
        raise UsageError("--cold: predicts without a run; leave out RUN or --cold")
    if not asked.cold and asked.run is None:
        raise UsageError(
            "RUN: give a run's folder, or --cold --rate R --model NAME --batch-size B --network KIND:GBIT"
        )
    own = () if asked.cold or is_import else ("device", "bus", "precision", "sequence_length", "flops_per_sample")
    if given := next((name for name in own if getattr(asked, name)), ""):
        raise UsageError(f"--{given.replace('_', '-')}: only with --cold or an import, because a run has its own")
    limits = {
        "rate": (asked.rate, inf, "samples/s of one device"), "target": (asked.target, inf, "samples/s"),
        "parameters": (asked.parameters, MOST_PARAMETERS, "parameters of the model"),
        "flops-per-sample": (asked.flops_per_sample, 1e21, "operations of a sample"),
        "batch-size": (asked.batch_size, MOST_BATCH, "samples of one device"),
        "devices-per-node": (asked.devices_per_node, MOST_DEVICES_PER_NODE, "devices of a node"),
        "sequence-length": (asked.sequence_length, MOST_BATCH, "tokens of a sample"),
    }  # fmt: skip
    for flag, (value, most, what) in limits.items():
        if value is not None and not (0 < value < inf and value <= most):
            below = "" if most == inf else f", at most {most:,g}"
            raise UsageError(f"--{flag} {value:g}: {what}; above 0{below}")
    if not 1 <= asked.compress <= MOST_COMPRESSION:
        raise UsageError(f"--compress {asked.compress:g}: divides the gradients' bytes; 1 to {MOST_COMPRESSION:,}")
    if asked.target is not None:
        _planning(asked)


def _planning(asked: Asked) -> None:
    if asked.prices is None:
        raise UsageError("--target: needs --prices FILE (scaling/tools/predict/README.md has its format)")
    names = [
        "world_sizes",
        "without",
        *([] if asked.cold else ["batch_size", "model", "rate", "devices_per_node"]),
    ]
    if given := next((name for name in names if getattr(asked, name)), ""):
        flag = f"--{given.replace('_', '-')}"
        raise UsageError(
            f"--target: tries world sizes, the run's batches and machines of --prices itself: leave out {flag}"
        )


# ---------------------------------------------------------------- what is asked of a case


def look(asked: Asked, case: Case) -> Outlook:
    """Fit the case and transfer the fit to the asked setting. Raises UsageError."""
    if case.cold:
        return outlook(case)
    setting, rate = _work(asked, case)
    if asked.network:
        setting = over(asked.network, setting, case)
    return outlook(case, replace(setting, gradient_bytes=setting.gradient_bytes / asked.compress), rate)


def over(words: str, setting: Setting, case: Case) -> Setting:
    return replace(setting, **network(words, emulated=case.setting.emulated, verbs=case.verbs)._asdict())


def _work(asked: Asked, case: Case) -> tuple[Setting, float]:
    model, batch = asked.model or case.model, asked.batch_size or case.batch_size
    if (model, batch) == (case.model, case.batch_size) and asked.rate is None:
        return case.setting, case.rate
    measured = next((r for name, size, r in case.rates if (name, size) == (model, batch)), None)
    rate = asked.rate / case.units_per_sample if asked.rate else measured
    if rate is None:
        command = re.sub(r"--model \S+", lambda _: f"--model {model}", case.command)
        raise UsageError(
            f"--{'model ' + model if asked.model else f'batch-size {batch}'}: no rate of one device is "
            f"known; measure mpirun -np 1 {command} --batch-size {batch} --world-sizes 1 and give its "
            f"{case.unit}/s as --rate"
        )
    known = cold.known_by_name(asked) if model != case.model else None
    cold.checked_step(batch, rate, known)
    setting = replace(case.setting, step_s=batch / rate / case.known.anchor.accumulation)
    if known:
        size = 4.0 * known.parameters
        setting = replace(setting, gradient_bytes=size, tail=known.tail, tensors=known.tensors)
    return setting, rate


def world_sizes(asked: Asked, case: Case, relief: Relief | None = None) -> tuple[int, ...]:
    """Return the asked world sizes, ascending. Raises UsageError if one is too far from the measured ones."""
    apart = asked.network or case.setting.link not in ("none", "unknown")
    most = FARTHEST_COLD if case.cold else FARTHEST * case.largest
    if asked.world_sizes:
        sizes = _sizes(asked.world_sizes)
    elif relief:
        sizes = (relief.world_size,)
    else:  # doublings beyond the run, or the first alone
        first = case.devices_per_node if case.cold else 2 * case.largest
        last = max(most if apart else case.devices_per_node, first)
        sizes = tuple(size for power in range(DOUBLINGS) if (size := first * 2**power) <= last)
    whose = f"--world-sizes {sizes[-1]}" if asked.world_sizes else f"N={sizes[-1]}"
    if sizes[-1] > most:
        why = "the largest published" if case.cold else f"{FARTHEST} times the largest measured"
        larger = f"mpirun -np {-(-sizes[-1] // FARTHEST)} {case.command} --batch-size {case.batch_size}"
        raise UsageError(
            f"{whose}: more than {most}, {why}{'' if case.cold else f'; measure a larger one: {larger}'}"
        )
    if sizes[-1] > case.devices_per_node and not apart:
        inside = case.setting.link == "none"
        one = f"only one node of {case.devices_per_node} devices was measured"
        why = one if inside else "the rate of the network between nodes is unknown"
        mend = ", or measure two nodes" if inside else ""
        raise UsageError(f"{whose}: {why}: give the network between nodes, --network ib:100{mend}")
    return sizes


def _sizes(words: str) -> tuple[int, ...]:
    if spanned := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", words):
        first, last = int(spanned[1]), int(spanned[2])
        if 0 < first <= last:
            return tuple(size for power in range(40) if (size := first * 2**power) <= last)
    elif re.fullmatch(r"\d{1,9}(,\d{1,9})*", words):
        sizes = sorted({int(word) for word in words.split(",")})
        if sizes[0] > 0:
            return tuple(sizes)
    raise UsageError(f"--world-sizes {words}: write 32,64,128 or 32..1024")


def supposed(asked: Asked, case: Case, relief: Relief | None = None) -> tuple[str, ...]:
    asked = Asked(compress=asked.compress) if case.cold else asked  # --cold: all else is the case
    apart = (one.at for one in case.measured if one.at.nodes > case.layout(one.at.world_size).nodes)
    spread = next((f"N={at.world_size} was measured on {at.nodes} nodes" for at in apart), "")
    by_tcp = not case.verbs and asked.network.partition(":")[0].lower() in RDMA
    said = (
        (relief, relief.words if relief else ""),
        (
            asked.network,
            f"over {asked.network}, which was not measured"
            + (f"; {case.strategy} sends TCP there, not RDMA" if by_tcp else ""),
        ),
        (
            asked.batch_size not in (None, case.batch_size),
            f"batch {asked.batch_size} per device; measured rows have batch {case.batch_size}",
        ),
        (asked.model not in ("", case.model), f"model {asked.model}; measured rows are of {case.model}"),
        (asked.rate, f"{asked.rate or 0:g} {case.unit}/s on one device, as --rate says"),
        (asked.compress > 1, f"gradients / {asked.compress:g}; the cost of compressing them is not counted"),
        (asked.devices_per_node, f"{asked.devices_per_node} devices a node"),
        (spread and not asked.devices_per_node, f"nodes are filled; {spread}"),
    )
    return tuple(f"what if: {text}" for given, text in said if given)
