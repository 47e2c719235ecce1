"""Audit of a row's numbers by two independent counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from scaling.analysis.statistics.intervals import Estimate
from scaling.records.events import Finished, Window
from scaling.records.run import PointRecord, RankRecord

TOLERANCE = 0.01
SUPERLINEAR = 1.02
# In a shorter span, adjustments of the wall clock may exceed the tolerance.
CLOCK_SPAN_S = 1.0


def audit(record: PointRecord) -> tuple[str, ...]:
    """Return what is off by more than 1 % in a finished exchange, by two independent counts.

    Samples per second x time must be the samples fed; monotonic and wall clocks must agree.
    """
    if not isinstance(record.outcome, Finished):
        return ()
    return (
        *_samples(record),
        *_unchanged(record),
        *(text for rank in record.ranks for text in _clock(rank)),
    )


def _samples(record: PointRecord) -> Iterator[str]:
    steps = [sum(window.steps for window in rank.windows) for rank in record.ranks]
    waits = record.synchronous and record.point.kind != "each"
    done = max(steps, default=0) if waits else fmean(steps or [0])
    timed = round(record.point.global_batch_size * done)
    fed = sum(window.samples for rank in record.ranks for window in rank.windows)
    if abs(fed - timed) > TOLERANCE * timed:
        yield f"audit: {record.point.workload.unit}/s x time gives {timed} samples, but the ranks fed {fed}"


def _unchanged(record: PointRecord) -> Iterator[str]:
    """Training steps must change the parameters."""
    results = [rank.result for rank in record.ranks if rank.result]
    if any(one.first_digest is not None and one.first_digest == one.digest for one in results):
        yield "audit: the parameters never changed"


def _clock(rank: RankRecord) -> Iterator[str]:
    if len(rank.windows) < 2:
        return
    first, last = min(rank.windows, key=_end_s), max(rank.windows, key=_end_s)
    steady_s, wall_s = last.end_s - first.end_s, last.end_unix_s - first.end_unix_s
    if steady_s > CLOCK_SPAN_S and abs(wall_s - steady_s) > TOLERANCE * steady_s:
        yield (
            f"audit: rank {rank.rank} on {rank.host} measured {steady_s:.2f} s "
            f"while its wall clock moved by {wall_s:.2f} s"
        )


def _end_s(window: Window) -> float:
    return window.end_s


def superlinear(efficiency: Estimate | None) -> bool:
    """Return whether an efficiency is over 102 % and its interval over 100 %; False without an interval."""
    if efficiency is None or efficiency.low is None:
        return False
    return efficiency.mean > SUPERLINEAR and efficiency.low > 1


def oversubscribed(records: Sequence[PointRecord]) -> bool:
    """Return whether workers shared cores or a GPU in any round."""
    return any(record.oversubscribed for record in records)
