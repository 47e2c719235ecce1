"""The time of one step of a record, by its slowest rank and by the mean of its ranks. Pure.

A rank's step time runs from the common start to its last device synchronisation, divided by its steps. A point's
follows from whether its ranks wait for each other:

    synchronous    the longest rank's
    asynchronous   N x batch / samples/s, where samples/s is the sum of the ranks' own rates: each rank goes on
                   stepping until all are done, so its own time is loaded from end to end. With equal
                   batches that is the harmonic mean of the ranks' step times.
"""

from __future__ import annotations

from statistics import fmean

from msgspec.structs import replace

from scaling.records.events import Finished
from scaling.records.point import Record
from scaling.records.run import PointRecord


class StepTime(Record, frozen=True, kw_only=True):
    """Seconds of one step of a point. `step_s` is the point's own, on which rates and efficiency rest;
    `mean_s` and `harmonic_s` are means over its ranks, of times and of rates."""

    step_s: float
    mean_s: float
    harmonic_s: float


def step_time(record: PointRecord) -> StepTime | None:
    """Return the step time over all ranks; None where a rank has no measured time or the point failed.

    Of emulated devices the time of the cluster that they stand for: what the clock showed / `dilate`.

    A single worker that drives all devices is one rank whose steps are those of all.
    """
    if not isinstance(record.outcome, Finished) or not record.ranks:
        return None
    times = []
    for rank in record.ranks:
        steps = sum(window.steps for window in rank.windows)
        if not steps or rank.measured_s <= 0:
            return None
        times.append(rank.measured_s / steps / record.point.hardware.dilate)
    harmonic_s = 1 / fmean(1 / time for time in times)
    step_s = max(times) if record.synchronous else harmonic_s
    return StepTime(step_s=step_s, mean_s=fmean(times), harmonic_s=harmonic_s)


def lock_step(record: PointRecord) -> StepTime | None:
    """Of plain loops side by side: the longest rank of each window, since ranks that exchange gradients wait
    for whoever is last this time, and not only for who is slowest on the whole."""
    time = step_time(record)
    if time is None:
        return None
    steps = sum(window.steps for window in record.ranks[0].windows)
    longest_s = sum(
        max(w.seconds for w in same) for same in zip(*(rank.windows for rank in record.ranks), strict=False)
    )
    return replace(time, step_s=max(time.step_s, longest_s / steps / record.point.hardware.dilate))
