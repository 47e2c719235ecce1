"""One cell of a sweep, exchange or control, over its rounds: loss, stalls, feeds, audit, facts of its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from statistics import fmean, median
from typing import TypeVar

from scaling.analysis.measured import cpu, device_use, traffic
from scaling.analysis.measured.step_time import (
    NO_RESULT,
    StepTime,
    beside_s,
    script_unsynced,
    step_time,
    unsynced_s,
)
from scaling.analysis.statistics.intervals import Estimate, known_mean
from scaling.quiet import notes as quiet
from scaling.records.events import Failed, Finished, Ready, Window
from scaling.records.point import Point
from scaling.records.run import Emulation, PointRecord, RankRecord
from scaling.text import counted, several

T = TypeVar("T")

# ---------------------------------------------------------------- training loss

# The samples of all ranks and the loss of one at each window's end.
Curve = Sequence[tuple[int, float]]


def finished_ranks(records: Iterable[PointRecord]) -> Iterator[RankRecord]:
    """Yield all ranks of the finished records."""
    return (rank for record in records if isinstance(record.outcome, Finished) for rank in record.ranks)


def staleness(records: Iterable[PointRecord]) -> float | None:
    """Return the mean staleness over ranks, measured windows and rounds; None for synchronous modes."""
    return known_mean(window.staleness for rank in finished_ranks(records) for window in rank.windows)


def first_and_last_loss(records: Iterable[PointRecord]) -> tuple[float | None, float | None]:
    """Return the means over ranks and rounds of the first and the last window with a loss."""
    by_rank = ([w.loss for w in _windows(rank) if w.loss is not None] for rank in finished_ranks(records))
    known = [losses for losses in by_rank if losses]
    return known_mean(losses[0] for losses in known), known_mean(losses[-1] for losses in known)


def _windows(rank: RankRecord) -> tuple[Window, ...]:
    """In order of time, repeated windows included: they trained too."""
    measured = sorted((*rank.windows, *rank.disturbed), key=lambda window: window.start_s)
    return (*rank.warmup, *measured)


def loss_curves(record: PointRecord) -> list[Curve] | None:
    """Return the curve of each rank, over the samples of all ranks; None if the point failed."""
    if not isinstance(record.outcome, Finished):
        return None
    ranks = list(map(_windows, record.ranks))
    same = zip(*ranks, strict=False)
    totals = list(accumulate(sum(w.samples + w.uncounted_samples for w in windows) for windows in same))
    return [[(total, w.loss) for total, w in zip(totals, of, strict=False) if w.loss is not None] for of in ranks]


def _at(curve: Curve, count: int) -> float | None:
    """The loss after so many samples, linear between windows; None beyond the ends."""
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


def stall_notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """Yield notes on the longest stalled window, with the number of others, and on suspended machines."""
    found = sorted(chain.from_iterable(map(_stalled, records)), key=lambda one: one[0])
    if found:
        others = f"; {counted(len(found) - 1, 'other')} like it" if len(found) > 1 else ""
        yield f"slow window: {found[0][1]}{others}"
    asleep: dict[str, float] = {}
    for rank in (rank for record in records for rank in record.ranks):
        asleep[rank.host] = max(rank.telemetry.suspended_s, asleep.get(rank.host, 0.0))
    for host, seconds in asleep.items():
        if seconds:
            yield (
                f"{host} was suspended for {seconds:.1f} s during measured windows; windows do not count that time"
            )


def _stalled(record: PointRecord) -> Iterator[tuple[float, str]]:
    """Yield the excess seconds (negative) of each stalled window, and its text."""
    by_window: dict[int, list[tuple[float, float, RankRecord]]] = {}
    for rank in record.ranks:
        step_s = [one.seconds / one.steps for one in rank.windows if one.steps]
        if len(step_s) < STALL_LEAST or len(step_s) < len(rank.windows):
            continue
        for place, window in enumerate(rank.windows):
            usual_s = window.steps * median(step_s[:place] + step_s[place + 1 :])
            if window.seconds > STALL_FAR * usual_s:
                by_window.setdefault(window.index, []).append((window.seconds, usual_s, rank))
    for same in by_window.values():
        seconds, usual_s, _ = max(same, key=lambda one: one[0])
        names = [f"rank {rank.rank} on {rank.host}" for _, _, rank in same]
        whose = f"all {len(same)} ranks" if len(same) == len(record.ranks) > 1 else several(names)
        yield (
            usual_s - seconds,
            (
                f"{whose} {'took' if len(same) == 1 else 'each took'} {seconds:.2g} s in round "
                f"{record.point.round + 1}; the median of the other windows is {usual_s:.2g} s"
                f"{_stood_still(record, seconds - usual_s)}"
            ),
        )


def _stood_still(record: PointRecord, excess_s: float) -> str:
    """Names hosts whose agents stood still too, for over half of the excess time."""
    still_s: dict[str, float] = {}
    for rank in record.ranks:
        still_s[rank.host] = min(rank.telemetry.still_s, still_s.get(rank.host, rank.telemetry.still_s))
    stopped = [host for host, seconds in still_s.items() if seconds > excess_s / 2]
    if not stopped:
        return ""
    whose = "the whole job" if len(stopped) == len(still_s) else several(stopped)
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
    windows = (window for rank in finished_ranks(records) for window in rank.windows)
    told = [(window.waited_s, window.steps) for window in windows if window.waited_s is not None]
    steps = sum(count for _, count in told)
    return sum(seconds for seconds, _ in told) / steps if steps else None


def feed(records: Iterable[PointRecord]) -> tuple[str, str]:
    """Return native feeds, such as `DataLoader, 2 processes a rank`, and `page cache` or `disk`; "" without."""
    told = [(ready.fed_by, ready.read_from) for ready in ready_of(records)] or [("", "")]
    fed_by, read_from = (" or ".join(dict.fromkeys(filter(None, of))) for of in zip(*told, strict=True))
    return fed_by, read_from


def feed_notes(records: Sequence[PointRecord]) -> Iterator[str]:
    fed_by, read_from = feed(records)
    if fed_by:
        yield f"native feed: {fed_by}"
    if read_from == "page cache":
        yield "files come from the page cache, as far as they fit; --drop-caches reads them from disk"
    elif read_from:
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


def audit(record: PointRecord) -> Iterator[str]:
    """Yield what is off by more than 1 % in a finished exchange, by two independent counts.

    Samples per second x time must be the samples fed, monotonic and wall clocks must agree, and steps must change
    the parameters.
    """
    if not isinstance(record.outcome, Finished):
        return
    yield from _of_script(record) if record.point.workload.script else _samples(record)
    results = [rank.result for rank in record.ranks if rank.result]
    if any(one.first_digest is not None and one.first_digest == one.digest for one in results):
        yield f"{AUDIT} the parameters never changed"
    for rank in record.ranks:
        yield from _clocks(rank)


def _samples(record: PointRecord) -> Iterator[str]:
    steps = [sum(window.steps for window in rank.windows) for rank in record.ranks]
    waits = record.synchronous and record.point.kind != "each"
    done = max(steps, default=0) if waits else fmean(steps or [0])
    timed = round(record.point.global_batch_size * done)
    fed = sum(window.samples for rank in record.ranks for window in rank.windows)
    if abs(fed - timed) > TOLERANCE * timed:
        yield f"{AUDIT} {record.point.workload.unit}/s x time gives {timed} samples, but the ranks fed {fed}"


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


def _clocks(rank: RankRecord) -> Iterator[str]:
    """Compare clocks. A device's edges are known by its own clock alone, so it is compared over whole turns."""
    whose = f"{AUDIT} rank {rank.rank} on {rank.host} measured"
    if len(rank.windows) > 1:
        first, last = (of(rank.windows, key=attrgetter("end_s")) for of in (min, max))
        steady_s, wall_s = last.end_s - first.end_s, last.end_unix_s - first.end_unix_s
        if steady_s > CLOCK_SPAN_S and abs(wall_s - steady_s) > TOLERANCE * steady_s:
            yield f"{whose} {steady_s:.2f} s while its wall clock moved by {wall_s:.2f} s"
    turns = [(one.turn_s, one.turn_device_s) for one in rank.windows if one.turn_s and one.turn_device_s]
    host_s, device_s = sum(host_s for host_s, _ in turns), sum(device_s for _, device_s in turns)
    if abs(device_s - host_s) > TOLERANCE * host_s:
        yield f"{whose} {device_s:.2f} s by its device's clock, {host_s:.2f} s by its host's"


def superlinear(efficiency: Estimate | None) -> bool:
    """Return whether an efficiency is over 102 %, and its interval over 100 % if it has one."""
    return efficiency is not None and efficiency.mean > SUPERLINEAR and (efficiency.low or efficiency.mean) > 1


# ---------------------------------------------------------------- cell


def by_round(records: Iterable[PointRecord], of: Callable[[PointRecord], T | None]) -> dict[int, T]:
    """Return the known values of the records by round."""
    return {record.point.round: value for record in records if (value := of(record)) is not None}


def _of_all(of: Callable[[Sequence[PointRecord]], T]) -> cached_property[T]:
    return cached_property(lambda cell: of(cell.records))


def _of_each(of: Callable[[PointRecord], T | None]) -> cached_property[dict[int, T]]:
    return cached_property(lambda cell: by_round(cell.records, of))


class Cell:
    """The records of one cell by round, at least one. Each fact is computed once."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        self.records = records
        # Text of the comparison with plain loops (controls.py); "" if the work is enough.
        self.less_work = ""

    # By round, if known: time and CPU time of a step, a step in the wrapper without an exchange, a script's steps
    # without exchange, an exchange while the devices compute, the training loss by rank.
    times = _of_each(step_time)
    cpu = _of_each(cpu.cpu_step)
    unsynced = _of_each(unsynced_s)
    script_unsynced = _of_each(script_unsynced)
    comm_beside = _of_each(beside_s)
    curves = _of_each(loss_curves)

    synchronous = _of_all(lambda records: all(record.synchronous for record in records))
    # Whether each rank updates all parameters, as a plain loop does.
    updates_all = _of_all(lambda records: all(record.updates_all for record in records))
    # Number of GPUs (0 on other devices and in older records), and the most hosts with devices in a round.
    gpus = _of_all(lambda records: max(len(set(record.gpus)) for record in records))
    nodes = _of_all(lambda records: max(1, *(record.nodes for record in records)))
    # Devices by the names of the frameworks.
    devices = _of_all(lambda records: frozenset(ready.device_name for ready in ready_of(records)))
    soaked = _of_all(lambda records: any(rank.later for record in records for rank in record.ranks))
    load = _of_all(quiet.of)
    clocks = _of_all(device_use.clocks)
    gpu_times = _of_all(device_use.gpu_times)
    nccl = _of_all(traffic.nccl_choices)
    receipt = _of_all(traffic.of_row)
    paths = _of_all(traffic.paths)
    nccl_notes = _of_all(lambda records: (*traffic.nccl_notes(records), *traffic.link_notes(records)))
    # Notes on CPU quota, memory faults, kernel time and stalled windows.
    kernel_notes = _of_all(lambda records: (*cpu.condition_notes(records), *stall_notes(records)))
    feed_notes = _of_all(lambda records: tuple(feed_notes(records)))
    # (round, finding) of the audit.
    audits = _of_all(lambda records: tuple((one.point.round, text) for one in records for text in audit(one)))

    @property
    def point(self) -> Point:
        """The point of its first record."""
        return self.records[0].point

    @cached_property
    def name(self) -> str:
        return self.point.cell

    @cached_property
    def at_first(self) -> tuple[tuple[int, StepTime], ...]:
        """Step times by round of the first tries of windows, without those on a slow core."""
        found = ((one.point.round, step_time(one)) for one in quiet.at_first(self.records))
        return tuple((number, time) for number, time in found if time is not None)

    @cached_property
    def seats(self) -> frozenset[int]:
        """Ranks of the launch on whose devices it ran; empty if one worker drove several."""
        whole = (r for r in self.records if len(r.ranks) == r.point.world_size)
        return frozenset(rank.launch_rank for record in whole for rank in record.ranks)

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

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """Reasons other than the power limit that lowered GPU clocks in any round."""
        return self.clocks.throttled if self.clocks else ()

    @property
    def emulation(self) -> Emulation | None:
        """Quality of the emulation; None for real devices or if unknown."""
        found = next((record.emulation for record in self.records if record.emulation), None)
        return found and found.of(self.point)

    @cached_property
    def fewest_samples(self) -> int | None:
        """Smallest number of samples that the ranks of a round trained up to a loss of each; None without one."""
        reached = (min((of[-1][0] for of in by_rank if of), default=0) for by_rank in self.curves.values())
        return min(filter(None, reached), default=None)

    def loss_after(self, count: int) -> float | None:
        """Return the training loss after `count` samples, mean over ranks and rounds; None if none reached it."""
        return known_mean(_at(curve, count) for by_rank in self.curves.values() for curve in by_rank)

    def losses_after(self, count: int) -> Mapping[int, float]:
        """Return the same by round, of the rounds that reached it."""
        found = {n: known_mean(_at(curve, count) for curve in by_rank) for n, by_rank in self.curves.items()}
        return {number: loss for number, loss in found.items() if loss is not None}


def cells(records: Iterable[PointRecord]) -> list[Cell]:
    """Return the cells of these records, in order of their first record."""
    by_name: dict[str, list[PointRecord]] = {}
    for record in records:
        by_name.setdefault(record.point.cell, []).append(record)
    return [Cell(found) for found in by_name.values()]
