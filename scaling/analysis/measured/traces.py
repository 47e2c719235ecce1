"""The profiled steps of a cell: the cost of profiling, and the split of a step on the GPU.

Seconds per step, means over ranks, against the traced steps of the plain loop on as many devices (`alone`):

    computing      kernels of alone, with their time there
    slowed         extra time of the same kernels, by name, for as many runs as both have
    other kernels  the rest of computing: the wrapper's copies, other algorithms of a library
    transfer       exposed time of a collective, at most its shortest run of all ranks: the last rank does not wait
    waiting        exposed time of a collective beyond that
    idle, host     idle time in alone; idle time beyond it

They add up to the traced step. No clocks of two ranks are compared. The hidden part of a collective is taken to be
its beginning. The union of intervals is that of Holistic Trace Analysis (https://hta.readthedocs.io).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from msgspec.structs import replace

from scaling.analysis.measured.step_time import step_time
from scaling.records.point import Record
from scaling.records.run import PointRecord, RankRecord
from scaling.records.telemetry import GpuTime

# If profiling slows a step by more, only shares of the step are valid.
MOST_SLOWED = 0.03


class GpuSplit(Record, frozen=True, kw_only=True):
    """Seconds of a traced step, means over ranks, which add up to it; None if unknown.

    Without `alone`, `compute_s` and `idle_s` are the exchange's. Without `waiting_s`, `transfer_s` is all exposed
    time.
    """

    compute_s: float
    slowed_s: float | None
    other_s: float | None
    transfer_s: float
    waiting_s: float | None
    idle_s: float
    host_s: float | None


class Traced(Record, frozen=True, kw_only=True):
    """The longest rank's step with and without profilers, and patterns of the trace files below the run's folder.

    `step_s` is None if a rank has no profile.
    """

    step_s: float | None
    untraced_s: float
    files: tuple[str, ...] = ()
    gpu: GpuSplit | None = None

    @property
    def slowed(self) -> float | None:
        return None if self.step_s is None else self.step_s / self.untraced_s - 1

    @property
    def is_faithful(self) -> bool:
        """Whether profiled seconds are valid for the measured steps."""
        return self.slowed is not None and abs(self.slowed) <= MOST_SLOWED


def traced(records: Iterable[PointRecord]) -> Traced | None:
    """Return the profiled steps of the first record with any; `gpu` is not set yet."""
    for record in records:
        if not any(rank.traced for rank in record.ranks):  # a run without --trace
            continue
        of_windows, untraced = step_time(_of_traced(record)), step_time(record)
        if untraced is not None:
            step_s = of_windows.step_s if of_windows else None
            return Traced(step_s=step_s, untraced_s=untraced.step_s, files=_patterns(record.ranks))
    return None


def _of_traced(record: PointRecord) -> PointRecord:
    return replace(record, ranks=tuple(replace(rank, windows=rank.traced) for rank in record.ranks))


def gpu_times(records: Iterable[PointRecord]) -> tuple[GpuTime, ...]:
    """Return the GPU times by rank of the first record in which all ranks have them."""
    for record in records:
        found = tuple(rank.gpu for rank in record.ranks if rank.gpu is not None)
        if found and len(found) == len(record.ranks):
            return found
    return ()


def _patterns(ranks: Sequence[RankRecord]) -> tuple[str, ...]:
    names = (f"{name.rpartition(f'.{rank.rank}.')[0]}.*" for rank in ranks for name in rank.traces)
    return tuple(dict.fromkeys(names))


# ---------------------------------------------------------------- on the GPU


def split(ranks: Sequence[GpuTime], alone: Sequence[GpuTime]) -> GpuSplit | None:
    """Split the traced step of an exchange; `alone` is the plain loop's, empty without a trace."""
    if not ranks:
        return None
    waiting_s = _waiting(ranks)
    exposed_s = fmean(one.exposed_s / one.steps for one in ranks)
    whole = GpuSplit(
        compute_s=fmean(one.compute_s / one.steps for one in ranks),
        slowed_s=None,
        other_s=None,
        transfer_s=exposed_s - (waiting_s or 0.0),
        waiting_s=waiting_s,
        idle_s=fmean(one.idle_s / one.steps for one in ranks),
        host_s=None,
    )
    return _against(whole, ranks, alone) if alone else whole


def _against(whole: GpuSplit, ranks: Sequence[GpuTime], alone: Sequence[GpuTime]) -> GpuSplit:
    compute_s = fmean(one.compute_s / one.steps for one in alone)
    idle_s = fmean(one.idle_s / one.steps for one in alone)
    # Pair the same devices if each has a trace of the plain loop.
    pairs = zip(ranks, alone if len(alone) == len(ranks) else [alone[0]] * len(ranks), strict=True)
    slowed_s = fmean(_slowed(beside, by_itself) for beside, by_itself in pairs)
    return replace(
        whole,
        compute_s=compute_s,
        slowed_s=slowed_s,
        other_s=whole.compute_s - compute_s - slowed_s,
        idle_s=idle_s,
        host_s=whole.idle_s - idle_s,
    )


def _slowed(beside: GpuTime, alone: GpuTime) -> float:
    of_alone = {one.name: one for one in alone.kernels}
    return sum(
        (one.run_s / one.count - other.run_s / other.count)
        * min(one.count / beside.steps, other.count / alone.steps)
        for one in beside.kernels
        if (other := of_alone.get(one.name)) is not None
    )


def _waiting(ranks: Sequence[GpuTime]) -> float | None:
    """Exposed seconds per step beyond each collective's shortest run; None if ranks' collectives differ."""
    if len({tuple(each.name for each in one.collectives) for one in ranks}) > 1:
        return None
    waited_s = 0.0
    for same in zip(*(one.collectives for one in ranks), strict=True):
        shortest_s = min(each.run_s for each in same)
        waited_s += sum(max(0.0, each.exposed_s - shortest_s) for each in same)
    return waited_s / sum(one.steps for one in ranks)
