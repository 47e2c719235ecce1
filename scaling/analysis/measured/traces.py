"""What the profiled steps of a cell show: how much profiling cost, and where the step went on the GPU. Pure.

With the traced steps of the plain loop on as many devices (`alone`), per step, means over ranks:

    computing      the kernels of alone, as long as they take there
    slowed         what the same kernels take longer beside the exchange: by name, as many runs as both have
    other kernels  what else computing takes more: the wrapper's copies, other algorithms of a library
    transfer       per collective at most its shortest run of all ranks, as far as no computing hides it
    waiting        what a collective that no computing hides takes beyond that: for the last rank
    idle           as in alone; host, what the GPU idles more than there

They add up to the traced step of the exchange. Who comes last to a collective does not wait in it, so that the
shortest run of all ranks is its transfer; no two ranks' clocks are compared. What computing hides of a collective
is taken to be its beginning. The split is this project's own; its union of intervals is that of Holistic Trace
Analysis (https://hta.readthedocs.io).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from msgspec.structs import replace

from scaling.analysis.measured.step_time import step_time
from scaling.records.point import Record
from scaling.records.run import PointRecord, RankRecord
from scaling.records.telemetry import GpuTime

# Beyond this a profiler changed what it watched: only shares of its step may be told.
MOST_SLOWED = 0.03


class GpuSplit(Record, frozen=True, kw_only=True):
    """Seconds of a traced step, means over ranks, which add up to it; None where nothing tells it.

    Without a trace of the plain loop `compute_s` and `idle_s` are the exchange's own. Where ranks' collectives are
    not the same ones `transfer_s` is all that is exposed.
    """

    compute_s: float
    slowed_s: float | None
    other_s: float | None
    transfer_s: float
    waiting_s: float | None
    idle_s: float
    host_s: float | None


class Traced(Record, frozen=True, kw_only=True):
    """The profiled steps of a cell: a step of the longest rank with profilers on, None where a rank had none, and,
    in the same processes, without; the pattern of the files' names below the run's folder."""

    step_s: float | None
    untraced_s: float
    files: tuple[str, ...] = ()
    gpu: GpuSplit | None = None

    @property
    def slowed(self) -> float | None:
        """By how much profilers made it slower, a fraction of 1."""
        return None if self.step_s is None else self.step_s / self.untraced_s - 1

    @property
    def is_faithful(self) -> bool:
        """Whether its seconds are those of the steps that were measured, too."""
        return self.slowed is not None and abs(self.slowed) <= MOST_SLOWED


def traced(records: Iterable[PointRecord]) -> Traced | None:
    """Of the first of a cell's records that has profiled steps; nothing is split yet."""
    for record in records:
        if not any(rank.traced for rank in record.ranks):  # of a run without --trace all of them
            continue
        of_windows, untraced = step_time(_of_traced(record)), step_time(record)
        if untraced is not None:
            step_s = of_windows.step_s if of_windows else None
            return Traced(step_s=step_s, untraced_s=untraced.step_s, files=_patterns(record.ranks))
    return None


def _of_traced(record: PointRecord) -> PointRecord:
    return replace(record, ranks=tuple(replace(rank, windows=rank.traced) for rank in record.ranks))


def gpu_times(records: Iterable[PointRecord]) -> tuple[GpuTime, ...]:
    """By rank, of the first of a cell's records in which all ranks have one."""
    for record in records:
        found = tuple(rank.gpu for rank in record.ranks if rank.gpu is not None)
        if found and len(found) == len(record.ranks):
            return found
    return ()


def _patterns(ranks: Sequence[RankRecord]) -> tuple[str, ...]:
    """`traces/0004-torch-gloo-exchange-n2-r0.*` for the files of all ranks."""
    names = (f"{name.rpartition(f'.{rank.rank}.')[0]}.*" for rank in ranks for name in rank.traces)
    return tuple(dict.fromkeys(names))


# ---------------------------------------------------------------- on the GPU


def split(ranks: Sequence[GpuTime], alone: Sequence[GpuTime]) -> GpuSplit | None:
    """The traced step of an exchange; `alone` is the plain loop's, empty where it has no trace."""
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
    """The split with what the exchange changed in computing and idling parted from the rest."""
    compute_s = fmean(one.compute_s / one.steps for one in alone)
    idle_s = fmean(one.idle_s / one.steps for one in alone)
    # The same device, where each has been traced alone too.
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
    """What the kernels that both have take longer per step, by name."""
    of_alone = {one.name: one for one in alone.kernels}
    return sum(
        (one.run_s / one.count - other.run_s / other.count)
        * min(one.count / beside.steps, other.count / alone.steps)
        for one in beside.kernels
        if (other := of_alone.get(one.name)) is not None
    )


def _waiting(ranks: Sequence[GpuTime]) -> float | None:
    """Exposed seconds per step beyond each collective's shortest run; None where ranks' collectives differ."""
    if len({tuple(each.name for each in one.collectives) for one in ranks}) > 1:
        return None
    waited_s = 0.0
    for same in zip(*(one.collectives for one in ranks), strict=True):
        shortest_s = min(each.run_s for each in same)
        waited_s += sum(max(0.0, each.exposed_s - shortest_s) for each in same)
    return waited_s / sum(one.steps for one in ranks)
