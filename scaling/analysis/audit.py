"""What a reader of a row must know: the audit of its numbers, its flags, its footnotes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from scaling.analysis.controls import Controls, reference_batch
from scaling.analysis.stats import Estimate
from scaling.analysis.traffic_receipt import Receipt
from scaling.records.point import Kind, Point
from scaling.records.run import Failed, Finished, PointRecord, RankRecord

TOLERANCE = 0.01
SUPERLINEAR = 1.02
# Below this span a wall clock's own steps and slews are more than the tolerance.
CLOCK_SPAN_S = 1.0


def audit(record: PointRecord) -> tuple[str, ...]:
    """Check a finished exchange against two independent counts; return what is off by more than 1 %.

    images/s x time must be the samples that the ranks really fed, and every rank's monotonic clock must
    have run as its wall clock did. A single worker that drives all devices feeds those of all; an
    asynchronous rank's own rate and time count, and not what it fed when its windows were over.
    """
    if not isinstance(record.outcome, Finished):
        return ()
    return (*_samples(record), *(text for rank in record.ranks for text in _clock(rank)))


def _samples(record: PointRecord) -> Iterator[str]:
    steps = [sum(window.steps for window in rank.windows) for rank in record.ranks]
    done = max(steps, default=0) if record.synchronous else fmean(steps or [0])
    timed = round(record.point.global_batch_size * done)
    fed = sum(window.samples for rank in record.ranks for window in rank.windows)
    if abs(fed - timed) > TOLERANCE * timed:
        yield f"audit: images/s x time is {timed} samples, the ranks fed {fed}"


def _clock(rank: RankRecord) -> Iterator[str]:
    if len(rank.windows) < 2:
        return
    first, last = rank.windows[0], rank.windows[-1]
    steady_s, wall_s = last.end_s - first.end_s, last.end_unix_s - first.end_unix_s
    if steady_s > CLOCK_SPAN_S and abs(wall_s - steady_s) > TOLERANCE * steady_s:
        yield (
            f"audit: rank {rank.rank} on {rank.host} measured {steady_s:.2f} s "
            f"while its wall clock moved by {wall_s:.2f} s"
        )


def throttle_reasons(record: PointRecord) -> set[str]:
    """Why the GPUs of a point ran slower than they could; empty if they did not."""
    samples = (sample for rank in record.ranks for sample in rank.telemetry.samples)
    return {reason for sample in samples for reason in sample.throttle}


def flags(records: Sequence[PointRecord], failed: Failed | None, efficiency: Estimate | None) -> tuple[str, ...]:
    """The stamps of a row, worst first."""
    found = {
        "FAILED": failed is not None,
        "EMULATED": any(record.point.device == "emulated" for record in records),
        "AUDIT": any(audit(record) for record in records),
        "OVERSUBSCRIBED": oversubscribed(records),
        "SUPERLINEAR": efficiency is not None and efficiency.mean > SUPERLINEAR,
        "UNSETTLED": any(not record.settled for record in records),
        "THROTTLED": any(throttle_reasons(record) for record in records),
    }
    return tuple(flag for flag, is_set in found.items() if is_set)


def of_network(receipt: Receipt | None) -> Iterator[str]:
    """What is wrong with the network that the bytes took, or why nobody knows."""
    if receipt is not None and receipt.why:
        yield f"{receipt.verdict}: asked for {' and '.join(receipt.wanted) or 'RDMA'}; {receipt.why}"


def oversubscribed(records: Sequence[PointRecord]) -> bool:
    """Whether more workers than cores ran in any round; then no efficiency is claimed."""
    return any(record.oversubscribed for record in records)


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
    said = " ".join(text for record in records for text in record.warnings)
    if "UNSETTLED" in stamps and "settled" not in said:
        notes.append("UNSETTLED: the windows were still drifting when they began to count")
    if "THROTTLED" in stamps and "throttled" not in said:
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
    texts = [text for record in records for text in (*record.warnings, *_retries(record))]
    return tuple(_counted(texts, len(records)))


def _retries(record: PointRecord) -> Iterator[str]:
    return (f"tried again: {text}" for text in record.retries)


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


def describe(failed: Failed) -> str:
    """`oom: out of memory (rank 3 on node2; log: logs/...)`: cause, message, where, and where to look."""
    where = f"rank {failed.rank} on {failed.host}" if failed.host else ""
    log = f"log: {failed.log}" if failed.log else ""
    details = "; ".join(text for text in (where, log) if text)
    text = f"{failed.cause}: {failed.message}" if failed.message else failed.cause
    return f"{text} ({details})" if details else text


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
    if point.batch_rule == "strong" and point.world_size > 1:
        return f"probably the smaller batch of {point.batch_size} per device, whose data fit the caches better"
    return "probably the baseline's machine was busier or its clocks lower; measure on an idle machine"


def _devices(records: Sequence[PointRecord]) -> set[str]:
    return {rank.ready.device_name for record in records for rank in record.ranks if rank.ready}


def _names(devices: set[str]) -> str:
    return ", ".join(sorted(devices))


def no_baseline(point: Point, controls: Controls, count: int, measured: int) -> tuple[str, ...]:
    """Why `count` of the `measured` rounds of a row have no efficiency; empty when all have."""
    if count == 0:
        return ()
    batch_size = reference_batch(point)
    cause = controls.why_missing("solo", point, batch_size)
    why = f"failed: {cause}" if cause else "was not measured"
    rounds = "" if count == measured else f" in {count} of {measured} rounds"
    return (f"no efficiency{rounds}: the baseline {controls.plain(point.strategy)} at batch {batch_size} {why}",)
