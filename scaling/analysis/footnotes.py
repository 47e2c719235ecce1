"""What a row must say beside its numbers: warnings, failures, retries, the network, controls in doubt. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from scaling.analysis.audit import audit, describe, flags, throttle_reasons
from scaling.analysis.controls import Controls
from scaling.analysis.stats import Estimate
from scaling.analysis.traffic_receipt import Receipt
from scaling.records.events import Failed
from scaling.records.point import Kind, Point
from scaling.records.run import PointRecord


def of_network(receipt: Receipt | None) -> Iterator[str]:
    """What is wrong with the network that the bytes took, or why nobody knows."""
    if receipt is not None and receipt.why:
        yield f"{receipt.verdict}: asked for {' and '.join(receipt.wanted) or 'RDMA'}; {receipt.why}"


def findings(
    records: Sequence[PointRecord],
    stamps: Sequence[str],
    solo: Mapping[int, PointRecord],
    efficiency: Estimate | None,
) -> tuple[str, ...]:
    """What failed, what the audit found, what the stamps mean; `solo` is the baseline by round."""
    notes = _failures(records)
    notes += _counted([text for record in records for text in audit(record)], len(records))
    if "OVERSUBSCRIBED" in stamps:
        notes.append("OVERSUBSCRIBED: more workers than cores; neither efficiency nor loss is claimed")
    if "SUPERLINEAR" in stamps and efficiency is not None:
        notes.append(f"SUPERLINEAR: {_superlinear(records, solo, efficiency)}")
    warned = {warning.kind for record in records for warning in record.warnings}
    if "UNSETTLED" in stamps and "unsettled" not in warned:
        notes.append("UNSETTLED: the windows were still drifting when they began to count")
    if "THROTTLED" in stamps and "throttled" not in warned:
        reasons = sorted(set().union(*(throttle_reasons(record) for record in records)))
        notes.append(f"THROTTLED: {', '.join(reasons)}")
    return tuple(notes)


def of_controls(controls: Mapping[Kind, Sequence[PointRecord]]) -> tuple[str, ...]:
    """Which controls of a row are themselves in doubt: its efficiency and losses are no better than they."""
    return tuple(
        f"its {kind} control is {', '.join(stamps)}"
        for kind, records in controls.items()
        if (stamps := [flag for flag in flags(records, None, None) if flag not in _expected(kind)])
    )


def _expected(kind: Kind) -> tuple[str, ...]:
    """Flags that say nothing against a control: it is as emulated as its row, and `comm` feeds nothing."""
    return ("EMULATED", "AUDIT") if kind == "comm" else ("EMULATED",)


def warnings(records: Sequence[PointRecord]) -> tuple[str, ...]:
    """What the records themselves warn of, each once, with the number of rounds that say it."""
    texts = [text for record in records for text in _warned(record)]
    return tuple(_counted(texts, len(records)))


def _warned(record: PointRecord) -> Iterator[str]:
    yield from (warning.text for warning in record.warnings)
    yield from (f"tried again: {text}" for text in record.retries)


def _counted(texts: Sequence[str], rounds: int) -> list[str]:
    """Each text once, with the number of rounds that say it."""
    counts = Counter(texts)
    return [text if rounds == 1 else f"{text} ({n} of {rounds} rounds)" for text, n in counts.items()]


def _failures(records: Sequence[PointRecord]) -> list[str]:
    """One note per cause of failure, with how often, where, and the log."""
    by_cause: dict[str, list[Failed]] = {}
    for record in records:
        if isinstance(record.outcome, Failed):
            by_cause.setdefault(record.outcome.cause, []).append(record.outcome)
    return [f"{_often(len(found), len(records))}: {describe(found[0])}" for found in by_cause.values()]


def _often(count: int, rounds: int) -> str:
    if count == rounds:
        return "failed" if rounds == 1 else f"all {rounds} rounds failed"
    return f"{count} of {rounds} rounds failed"


def _superlinear(records: Sequence[PointRecord], solo: Mapping[int, PointRecord], efficiency: Estimate) -> str:
    """The probable cause of more than N times one device, by the evidence at hand."""
    point = records[0].point
    reasons = sorted(set().union(*(throttle_reasons(record) for record in solo.values())))
    if reasons:
        return f"the baseline's device was throttled ({', '.join(reasons)})"
    devices, base = _devices(records), _devices(list(solo.values()))
    if base and not devices <= base:
        return f"the baseline ran on {_names(base)}, the row on {_names(devices)} as well"
    if efficiency.low is not None and efficiency.low <= 1:
        return "probably noise: the interval reaches below 100 %; more rounds would tell"
    if point.workload.batch_rule == "strong" and point.world_size > 1:
        batch = point.workload.batch_size
        return f"probably the smaller batch of {batch} per device, whose data fit the caches better"
    return "probably the baseline's machine was busier or its clocks lower; measure on an idle machine"


def _devices(records: Sequence[PointRecord]) -> set[str]:
    return {rank.ready.device_name for record in records for rank in record.ranks if rank.ready}


def _names(devices: set[str]) -> str:
    return ", ".join(sorted(devices))


def no_baseline(point: Point, controls: Controls, count: int, measured: int) -> tuple[str, ...]:
    """Why `count` of the `measured` rounds of a row have no efficiency; empty when all have."""
    if count == 0:
        return ()
    batch_size = point.reference.batch_size
    cause = controls.why_missing("solo", point, batch_size)
    why = f"failed: {cause}" if cause else "was not measured"
    rounds = "" if count == measured else f" in {count} of {measured} rounds"
    return (f"no efficiency{rounds}: the baseline {controls.plain(point.strategy)} at batch {batch_size} {why}",)
