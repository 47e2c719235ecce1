"""What a reader of a row must know: the audit of its numbers, its flags, its footnotes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from scaling.analysis.stats import Estimate
from scaling.records.events import Failed, Finished
from scaling.records.run import PointRecord, RankRecord

TOLERANCE = 0.01
SUPERLINEAR = 1.02
# Below this span a wall clock's own steps and slews are more than the tolerance.
CLOCK_SPAN_S = 1.0


def audit(record: PointRecord) -> tuple[str, ...]:
    """Check a finished exchange against two independent counts; return what is off by more than 1 %.

    Samples per second x time must be the samples that the ranks really fed, and every rank's monotonic clock must
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
        yield f"audit: {record.point.workload.unit}/s x time is {timed} samples, the ranks fed {fed}"


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
    watched = [child.telemetry for child in record.ranks]
    watched += [child.telemetry for child in record.helpers]  # they may compute too
    return {reason for telemetry in watched for sample in telemetry.samples for reason in sample.throttle}


def flags(records: Sequence[PointRecord], failed: Failed | None, efficiency: Estimate | None) -> tuple[str, ...]:
    """The stamps of a row, worst first."""
    found = {
        "FAILED": failed is not None,
        "EMULATED": any(record.point.hardware.device == "emulated" for record in records),
        "AUDIT": any(audit(record) for record in records),
        "OVERSUBSCRIBED": oversubscribed(records),
        "SUPERLINEAR": efficiency is not None and efficiency.mean > SUPERLINEAR,
        "UNSETTLED": any(not record.settled for record in records),
        "THROTTLED": any(throttle_reasons(record) for record in records),
    }
    return tuple(flag for flag, is_set in found.items() if is_set)


def oversubscribed(records: Sequence[PointRecord]) -> bool:
    """Whether more workers than cores ran in any round; then no efficiency is claimed."""
    return any(record.oversubscribed for record in records)


def describe(failed: Failed) -> str:
    """`oom: out of memory (rank 3 on node2; log: logs/...)`: cause, message, where, and where to look."""
    where = f"rank {failed.rank} on {failed.host}" if failed.host else ""
    log = f"log: {failed.log}" if failed.log else ""
    details = "; ".join(text for text in (where, log) if text)
    text = f"{failed.cause}: {failed.message}" if failed.message else failed.cause
    return f"{text} ({details})" if details else text
