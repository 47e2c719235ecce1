"""One cell of a sweep, exchange or control, over its rounds: loss, stalls, feeds, audit, facts of its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from operator import attrgetter
from statistics import fmean, median
from typing import NamedTuple, TypeVar

from scaling.analysis.measured import cpu, device_use, traffic
from scaling.analysis.measured.cpu import CpuStep, cpu_step
from scaling.analysis.measured.device_use import Clocks, clocks
from scaling.analysis.measured.step_time import (
    NO_RESULT,
    StepTime,
    Unsynced,
    beside_s,
    script_unsynced,
    step_time,
    unsynced_s,
)
from scaling.analysis.measured.traffic import Path, Receipt
from scaling.analysis.statistics.intervals import Estimate
from scaling.quiet import notes as quiet
from scaling.records.events import Failed, Finished, Ready, Window
from scaling.records.network import NcclChoice
from scaling.records.point import Point
from scaling.records.run import Emulation, PointRecord, RankRecord
from scaling.records.telemetry import GpuTime
from scaling.text import counted, several

T = TypeVar("T")

# ---------------------------------------------------------------- training loss


def staleness(records: Iterable[PointRecord]) -> float | None:
    """Return the mean staleness over ranks, measured windows and rounds; None for synchronous modes."""
    windows = (window for record in _finished(records) for rank in record.ranks for window in rank.windows)
    known = [window.staleness for window in windows if window.staleness is not None]
    return fmean(known) if known else None


def first_and_last_loss(records: Iterable[PointRecord]) -> tuple[float | None, float | None]:
    """Return the means over ranks and rounds of the first and the last window with a loss."""
    ranks = (rank for record in _finished(records) for rank in record.ranks)
    known = [losses for rank in ranks if (losses := [w.loss for w in _windows(rank) if w.loss is not None])]
    return (fmean(one[0] for one in known), fmean(one[-1] for one in known)) if known else (None, None)


def trained_samples(record: PointRecord) -> int:
    """Return the samples of all ranks up to their last loss, warm-up included; 0 without a loss."""
    return min((curve[-1][0] for curve in _curves(record) if curve), default=0)


def equal_samples(cells: Iterable[Iterable[PointRecord]]) -> int | None:
    """Return the smallest number of samples of any finished record of these cells; None without a loss."""
    found = [count for records in cells for record in _finished(records) if (count := trained_samples(record))]
    return min(found, default=None)


def loss_after(records: Iterable[PointRecord], count: int) -> float | None:
    """Return the training loss after `count` samples, mean over ranks and rounds; None if no rank reached it.

    A rank's curve: loss of its windows over the samples of all ranks at the same window's end, linear between.
    """
    curves = (curve for record in _finished(records) for curve in _curves(record))
    known = [loss for curve in curves if (loss := _at(curve, count)) is not None]
    return fmean(known) if known else None


def _finished(records: Iterable[PointRecord]) -> Iterable[PointRecord]:
    return (record for record in records if isinstance(record.outcome, Finished))


def _windows(rank: RankRecord) -> tuple[Window, ...]:
    """In order of time, repeated windows included: they trained too."""
    measured = sorted((*rank.windows, *rank.disturbed), key=lambda window: window.start_s)
    return (*rank.warmup, *measured)


def _curves(record: PointRecord) -> list[list[tuple[int, float]]]:
    """By rank, the samples of all ranks and its loss at each window's end."""
    ranks = list(map(_windows, record.ranks))
    same = zip(*ranks, strict=False)
    totals = list(accumulate(sum(w.samples + w.uncounted_samples for w in windows) for windows in same))
    return [[(total, w.loss) for total, w in zip(totals, of, strict=False) if w.loss is not None] for of in ranks]


def _at(curve: Sequence[tuple[int, float]], count: int) -> float | None:
    if curve and curve[0][0] == count:
        return curve[0][1]
    for (before, high), (after, low) in pairwise(curve):
        if before < count <= after:
            return high + (low - high) * (count - before) / (after - before)
    return None


# ---------------------------------------------------------------- stalls
#
# Slow windows are counted like all others; a note names them.

# In medians of the other windows of the rank and round. A program on half of a core only doubles the time.
STALL_FAR = 3.0
# Fewest windows of a rank for a useful median.
STALL_LEAST = 3


class Stall(NamedTuple):
    """A window that was far too long for some ranks; `usual_s` is the median of their other windows."""

    record: PointRecord
    ranks: tuple[RankRecord, ...]
    seconds: float
    usual_s: float


def stall_notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """Yield notes on the longest stalled window, with the number of others, and on suspended machines."""
    found = sorted(_found(records), key=lambda one: one.usual_s - one.seconds)
    if found:
        others = f"; {counted(len(found) - 1, 'other')} like it" if len(found) > 1 else ""
        yield f"slow window: {_told(found[0])}{others}"
    asleep: dict[str, float] = {}
    for rank in (rank for record in records for rank in record.ranks):
        asleep[rank.host] = max(rank.telemetry.suspended_s, asleep.get(rank.host, 0.0))
    for host, seconds in asleep.items():
        if seconds:
            yield (
                f"{host} was suspended for {seconds:.1f} s during measured windows; windows do not count that time"
            )


def _found(records: Iterable[PointRecord]) -> Iterator[Stall]:
    for record in records:
        by_window: dict[int, list[tuple[float, float, RankRecord]]] = {}
        for rank in record.ranks:
            for index, seconds, usual_s in _far(rank):
                by_window.setdefault(index, []).append((seconds, usual_s, rank))
        for same in by_window.values():
            seconds, usual_s, _ = max(same, key=lambda one: one[0])
            yield Stall(record, tuple(rank for _, _, rank in same), seconds, usual_s)


def _far(rank: RankRecord) -> Iterator[tuple[int, float, float]]:
    """(index, seconds, usual seconds) of each stalled window of a rank."""
    step_s = [one.seconds / one.steps for one in rank.windows if one.steps]
    if len(step_s) < STALL_LEAST or len(step_s) < len(rank.windows):
        return
    for place, window in enumerate(rank.windows):
        usual_s = window.steps * median(step_s[:place] + step_s[place + 1 :])
        if window.seconds > STALL_FAR * usual_s:
            yield window.index, window.seconds, usual_s


def _told(stall: Stall) -> str:
    record, ranks, seconds, usual_s = stall
    whose = (
        f"all {len(ranks)} ranks"
        if len(ranks) == len(record.ranks) > 1
        else several([f"rank {rank.rank} on {rank.host}" for rank in ranks])
    )
    verb = "took" if len(ranks) == 1 else "each took"
    return (
        f"{whose} {verb} {seconds:.2g} s in round {record.point.round + 1}; the median of the other windows is "
        f"{usual_s:.2g} s{_stood_still(stall)}"
    )


def _stood_still(stall: Stall) -> str:
    """Names hosts whose agents stood still too, for over half of the excess time."""
    hosts = dict.fromkeys(rank.host for rank in stall.record.ranks)
    still_s = {
        host: min(rank.telemetry.still_s for rank in stall.record.ranks if rank.host == host) for host in hosts
    }
    stopped = [host for host in hosts if still_s[host] > (stall.seconds - stall.usual_s) / 2]
    if not stopped:
        return ""
    whose = "the whole job" if len(stopped) == len(hosts) else several(stopped)
    seconds = max(still_s[host] for host in stopped)
    return f"; {whose} stood still for {seconds:.1f} s: the job or its machine was stopped (a checkpoint)"


# ---------------------------------------------------------------- feeds
#
# Seconds blocked in a feed are a diagnosis and not a part of a loss. A device may compute meanwhile, and decoding
# takes cores without blocking a rank (rounds.py).

# Part of the bytes in the page cache above which a note says so.
STILL_CACHED = 0.01


def waited_s(records: Iterable[PointRecord]) -> float | None:
    """Return mean seconds of a step in which a rank was blocked in its feed; None if unknown."""
    windows = [window for record in _finished(records) for rank in record.ranks for window in rank.windows]
    told = [(window.waited_s, window.steps) for window in windows if window.waited_s is not None]
    steps = sum(count for _, count in told)
    return sum(seconds for seconds, _ in told) / steps if steps else None


def fed_by(records: Iterable[PointRecord]) -> str:
    """Return the native feeds, such as `DataLoader, 2 processes a rank; Pillow ...`; "" for the reference feed."""
    return " or ".join(dict.fromkeys(ready.fed_by for ready in ready_of(records) if ready.fed_by))


def read_from(records: Iterable[PointRecord]) -> str:
    """Return `page cache` or `disk`; "" for data in memory."""
    return " or ".join(dict.fromkeys(ready.read_from for ready in ready_of(records) if ready.read_from))


def feed_notes(records: Sequence[PointRecord]) -> Iterator[str]:
    if own := fed_by(records):
        yield f"native feed: {own}"
    found = read_from(records)
    if found == "page cache":
        yield "files come from the page cache, as far as they fit; --drop-caches reads them from disk"
    elif found:
        yield f"files were dropped from the page cache before each point{_kept(records)}"


def _kept(records: Iterable[PointRecord]) -> str:
    known = [ready.cached_fraction for ready in ready_of(records) if ready.read_from == "disk"]
    if not known or None in known:
        return "; this user cannot see whether all of them were"
    most = max(part for part in known if part is not None)
    return f"; up to {100 * most:.0f} % stayed there" if most > STILL_CACHED else ""


def ready_of(records: Iterable[PointRecord]) -> Iterator[Ready]:
    return (rank.ready for record in records for rank in record.ranks if rank.ready)


# ---------------------------------------------------------------- audit
#
# Audit of a row's numbers by two independent counts.


TOLERANCE = 0.01
AUDIT = "audit:"
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
        *(_of_script(record) if record.point.workload.script else _samples(record)),
        *_unchanged(record),
        *(text for rank in record.ranks for text in (*_clock(rank), *_device_clock(rank))),
    )


def _samples(record: PointRecord) -> Iterator[str]:
    steps = [sum(window.steps for window in rank.windows) for rank in record.ranks]
    waits = record.synchronous and record.point.kind != "each"
    done = max(steps, default=0) if waits else fmean(steps or [0])
    timed = round(record.point.global_batch_size * done)
    fed = sum(window.samples for rank in record.ranks for window in rank.windows)
    if abs(fed - timed) > TOLERANCE * timed:
        yield f"audit: {record.point.workload.unit}/s x time gives {timed} samples, but the ranks fed {fed}"


def _of_script(record: PointRecord) -> Iterator[str]:
    """A script's batch is found by its samples, so these agree. Its faults are known by what its ranks saw."""
    results = [(rank.rank, rank.host, rank.result) for rank in record.ranks if rank.result]
    yield from dict.fromkeys(note for _, _, one in results for note in one.notes if note.startswith(AUDIT))
    if len(results) < 2 or record.point.kind != "exchange":
        return
    if len({one.found.get("samples") or str(rank) for rank, _, one in results}) == 1:
        yield f"{AUDIT} every rank reads the same samples: no DistributedSampler?"
    gpus = [(host, one.found["gpu"]) for _, host, one in results if "gpu" in one.found]
    if len(set(gpus)) < len(gpus):
        yield f"{AUDIT} ranks train on the same GPU: select cuda:LOCAL_RANK in the script"


def _unchanged(record: PointRecord) -> Iterator[str]:
    """Training steps must change the parameters."""
    results = [rank.result for rank in record.ranks if rank.result]
    if any(one.first_digest is not None and one.first_digest == one.digest for one in results):
        yield "audit: the parameters never changed"


def _clock(rank: RankRecord) -> Iterator[str]:
    if len(rank.windows) < 2:
        return
    first, last = (of(rank.windows, key=attrgetter("end_s")) for of in (min, max))
    steady_s, wall_s = last.end_s - first.end_s, last.end_unix_s - first.end_unix_s
    if steady_s > CLOCK_SPAN_S and abs(wall_s - steady_s) > TOLERANCE * steady_s:
        yield (
            f"audit: rank {rank.rank} on {rank.host} measured {steady_s:.2f} s "
            f"while its wall clock moved by {wall_s:.2f} s"
        )


def _device_clock(rank: RankRecord) -> Iterator[str]:
    """Compare the clocks over whole turns: single edges are known by the device's clock alone."""
    turns = [(one.turn_s, one.turn_device_s) for one in rank.windows if one.turn_s and one.turn_device_s]
    host_s, device_s = sum(host_s for host_s, _ in turns), sum(device_s for _, device_s in turns)
    if abs(device_s - host_s) > TOLERANCE * host_s:
        yield (
            f"audit: rank {rank.rank} on {rank.host} measured {device_s:.2f} s by its device's clock, "
            f"{host_s:.2f} s by its host's"
        )


def superlinear(efficiency: Estimate | None) -> bool:
    """Return whether an efficiency is over 102 %, and its interval over 100 % if it has one."""
    return efficiency is not None and efficiency.mean > SUPERLINEAR and (efficiency.low or efficiency.mean) > 1


def oversubscribed(records: Sequence[PointRecord]) -> bool:
    """Return whether workers shared cores or a GPU in any round."""
    return any(record.oversubscribed for record in records)


# ---------------------------------------------------------------- cell


def by_round(records: Iterable[PointRecord], of: Callable[[PointRecord], T | None]) -> dict[int, T]:
    """Return the known values of the records by round."""
    return {record.point.round: value for record in records if (value := of(record)) is not None}


class Cell:
    """The records of one cell by round, at least one. Each fact is computed once."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        self.records = records
        self._loss_after: dict[int, float | None] = {}
        self._losses_after: dict[int, dict[int, float]] = {}
        # Text of the comparison with plain loops (controls.py); "" if the work is enough.
        self.less_work = ""

    @property
    def point(self) -> Point:
        """The point of its first record."""
        return self.records[0].point

    @cached_property
    def name(self) -> str:
        return self.point.cell

    @cached_property
    def synchronous(self) -> bool:
        """Whether its ranks wait for each other."""
        return all(record.synchronous for record in self.records)

    @cached_property
    def times(self) -> dict[int, StepTime]:
        """Step time by round, of the finished records."""
        return by_round(self.records, step_time)

    @cached_property
    def at_first(self) -> tuple[tuple[int, StepTime], ...]:
        """Step times by round of the first tries of windows, without those on a slow core."""
        found = ((one.point.round, step_time(one)) for one in quiet.at_first(self.records))
        return tuple((number, time) for number, time in found if time is not None)

    @cached_property
    def cpu(self) -> dict[int, CpuStep]:
        """CPU time of a step by round, if known."""
        return by_round(self.records, cpu_step)

    @cached_property
    def unsynced(self) -> dict[int, float]:
        """Seconds of a step in the wrapper without an exchange, by round."""
        return by_round(self.records, unsynced_s)

    @cached_property
    def script_unsynced(self) -> dict[int, Unsynced]:
        """A script's steps without exchange by round."""
        return by_round(self.records, script_unsynced)

    @cached_property
    def comm_beside(self) -> dict[int, float]:
        """Seconds of one exchange while the devices compute, by round."""
        return by_round(self.records, beside_s)

    @cached_property
    def seats(self) -> frozenset[int]:
        """Ranks of the launch on whose devices it ran; empty if one worker drove several."""
        whole = (r for r in self.records if len(r.ranks) == r.point.world_size)
        return frozenset(rank.launch_rank for record in whole for rank in record.ranks)

    @cached_property
    def soaked(self) -> tuple[PointRecord, ...]:
        return tuple(one for one in self.records if any(rank.later for rank in one.ranks))

    @cached_property
    def kernel_notes(self) -> tuple[str, ...]:
        """Notes on CPU quota, memory faults, kernel time and stalled windows."""
        return (*cpu.condition_notes(self.records), *stall_notes(self.records))

    @cached_property
    def load(self) -> quiet.Load:
        return quiet.of(self.records)

    @cached_property
    def where(self) -> dict[int, str]:
        """By rank of the launch: its rank, host and device, as text."""
        return {
            rank.launch_rank: f"rank {rank.rank} on {rank.host}{f' ({name})' if name else ''}"
            for record in self.records
            for rank in record.ranks
            for name in (rank.device_name(record.point.hardware.device),)
        }

    @property
    def rates(self) -> list[float]:
        return [self.point.global_batch_size / time.step_s for time in self.times.values()]

    @cached_property
    def failure(self) -> Failed | None:
        if self.times:
            return None
        failures = (record.outcome for record in self.records if isinstance(record.outcome, Failed))
        return next(failures, NO_RESULT)

    @cached_property
    def gpus(self) -> int:
        """Number of GPUs; 0 on other devices and in older records."""
        return max(len(set(record.gpus)) for record in self.records)

    @property
    def updates_all(self) -> bool:
        """Whether each rank updates all parameters, as a plain loop does."""
        return all(record.updates_all for record in self.records)

    @cached_property
    def audits(self) -> tuple[tuple[int, str], ...]:
        """(round, finding) of the audit."""
        return tuple((record.point.round, text) for record in self.records for text in audit(record))

    @cached_property
    def feed_notes(self) -> tuple[str, ...]:
        return tuple(feed_notes(self.records))

    @cached_property
    def clocks(self) -> Clocks | None:
        return clocks(self.records)

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """Reasons other than the power limit that lowered GPU clocks in any round."""
        return self.clocks.throttled if self.clocks else ()

    @cached_property
    def devices(self) -> frozenset[str]:
        """Devices by the names of the frameworks."""
        return frozenset(ready.device_name for ready in ready_of(self.records))

    @cached_property
    def nodes(self) -> int:
        """The most hosts with devices in a round."""
        return max(1, *(record.nodes for record in self.records))

    @property
    def emulation(self) -> Emulation | None:
        """Quality of the emulation; None for real devices or if unknown."""
        found = next((record.emulation for record in self.records if record.emulation), None)
        return found and found.of(self.point)

    @cached_property
    def nccl(self) -> NcclChoice | None:
        return traffic.nccl_choices(self.records)

    @cached_property
    def nccl_notes(self) -> tuple[str, ...]:
        return (*traffic.nccl_notes(self.records), *traffic.link_notes(self.records))

    @cached_property
    def receipt(self) -> Receipt | None:
        """Traffic receipt; None if no bytes crossed nodes."""
        return traffic.of_row(self.records)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        return traffic.paths(self.records)

    @cached_property
    def gpu_times(self) -> tuple[GpuTime, ...]:
        """GPU times of the profiled steps, by rank."""
        return device_use.gpu_times(self.records)

    @cached_property
    def fewest_samples(self) -> int | None:
        """Smallest number of trained samples of a round; None without a training loss."""
        return equal_samples([self.records])

    def loss_after(self, count: int) -> float | None:
        if count not in self._loss_after:
            self._loss_after = {count: loss_after(self.records, count)}
        return self._loss_after[count]

    def losses_after(self, count: int) -> Mapping[int, float]:
        """Return the training loss after `count` samples by round, of the rounds that reached it."""
        if count not in self._losses_after:
            each = ((one.point.round, loss_after([one], count)) for one in self.records)
            self._losses_after = {count: {number: loss for number, loss in each if loss is not None}}
        return self._losses_after[count]


def cells(records: Iterable[PointRecord]) -> list[Cell]:
    """Return the cells of these records, in order of their first record."""
    by_name: dict[str, list[PointRecord]] = {}
    for record in records:
        by_name.setdefault(record.point.cell, []).append(record)
    return [Cell(found) for found in by_name.values()]
