"""One cell of a sweep, exchange or control, over its rounds: what its own records say, each thing read once. Pure.

A cell is what is repeated round by round. What follows from its records alone stands here, so that a running sweep
need not read them again when a point elsewhere ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import NamedTuple

from scaling.analysis.measured import audit, cpu, device_use, traces, traffic
from scaling.analysis.measured.cpu import CpuStep, ServerUse, cpu_step
from scaling.analysis.measured.device_use import Clocks, DeviceUse, MachineUse, clocks
from scaling.analysis.measured.step_time import NO_RESULT, StepTime, beside_s, step_time, unsynced_s
from scaling.analysis.measured.traces import Traced
from scaling.analysis.measured.traffic import Path, Receipt
from scaling.quiet import notes as quiet
from scaling.records.events import Failed, Finished, Ready, Window
from scaling.records.network import NcclChoice
from scaling.records.point import Point
from scaling.records.run import Emulation, PointRecord, RankRecord
from scaling.records.telemetry import GpuTime
from scaling.text import counted, several

# ---------------------------------------------------------------- training loss
#
# What training came to: its loss, the loss after equal numbers of samples, staleness.


def staleness(records: Iterable[PointRecord]) -> float | None:
    """Return the mean over ranks, measured windows and rounds; None for synchronous modes."""
    windows = (window for record in _finished(records) for rank in record.ranks for window in rank.windows)
    known = [window.staleness for window in windows if window.staleness is not None]
    return fmean(known) if known else None


def first_and_last_loss(records: Iterable[PointRecord]) -> tuple[float | None, float | None]:
    """Return the means over ranks and rounds of the first and of the last window that has a loss."""
    ends = [found for record in _finished(records) for rank in record.ranks if (found := _ends(rank)) is not None]
    if not ends:
        return None, None
    return fmean([first for first, _ in ends]), fmean([last for _, last in ends])


def trained_samples(record: PointRecord) -> int:
    """Return how many samples all ranks have trained on up to their last loss, warm-up included; 0 without a
    loss. What ranks of an asynchronous mode go on doing when their own windows are over is not counted."""
    return min((curve[-1][0] for curve in _curves(record) if curve), default=0)


def equal_samples(cells: Iterable[Iterable[PointRecord]]) -> int | None:
    """Return the smallest number of samples that any finished record of these cells was trained on."""
    found = [count for records in cells for record in _finished(records) if (count := trained_samples(record))]
    return min(found, default=None)


def loss_after(records: Iterable[PointRecord], count: int) -> float | None:
    """Return the training loss after `count` samples, mean over ranks and rounds; None where none reached it.

    A rank's curve is the loss of each window over the samples that all ranks had done by that window's end,
    linear in between. Ranks that do not wait for each other end the same window at different times; the
    samples are then those that all have done when each has ended it.
    """
    curves = (curve for record in _finished(records) for curve in _curves(record))
    known = [loss for curve in curves if (loss := _at(curve, count)) is not None]
    return fmean(known) if known else None


def _finished(records: Iterable[PointRecord]) -> Iterable[PointRecord]:
    return (record for record in records if isinstance(record.outcome, Finished))


def _windows(rank: RankRecord) -> tuple[Window, ...]:
    """In which it was trained, one after the other: also in those that were then measured again."""
    measured = sorted((*rank.windows, *rank.disturbed), key=lambda window: window.start_s)
    return (*rank.warmup, *measured)


def _curves(record: PointRecord) -> list[list[tuple[int, float]]]:
    """The curve of each rank."""
    totals = _totals(record)
    return [_curve(rank, totals) for rank in record.ranks]


def _totals(record: PointRecord) -> list[int]:
    """Samples of all ranks up to the end of each window."""
    same = zip(*map(_windows, record.ranks), strict=False)
    return list(accumulate(sum(w.samples + w.uncounted_samples for w in windows) for windows in same))


def _curve(rank: RankRecord, totals: Sequence[int]) -> list[tuple[int, float]]:
    """(samples, loss) of the windows that have a loss."""
    both = zip(totals, _windows(rank), strict=False)
    return [(total, window.loss) for total, window in both if window.loss is not None]


def _at(curve: Sequence[tuple[int, float]], count: int) -> float | None:
    if curve and curve[0][0] == count:
        return curve[0][1]
    for (before, high), (after, low) in pairwise(curve):
        if before < count <= after:
            return high + (low - high) * (count - before) / (after - before)
    return None


def _ends(rank: RankRecord) -> tuple[float, float] | None:
    losses = [window.loss for window in _windows(rank) if window.loss is not None]
    return (losses[0], losses[-1]) if losses else None


# ---------------------------------------------------------------- stalls
#
# Windows far longer than the others of their rank: which, how long, and whether all stood still.
#
# No window is left out for being slow: a note tells what the numbers do not.


# A window is named if it takes so many times as long as the median of the others of its rank and round: a program
# that has half of a rank's core makes its windows twice as long.
STALL_FAR = 3.0
# Windows of a rank, of which the others' median tells something.
STALL_LEAST = 3


class Stall(NamedTuple):
    """A window of a record that was far too long for some of its ranks; `usual_s` is what their others took."""

    record: PointRecord
    ranks: tuple[RankRecord, ...]
    seconds: float
    usual_s: float


def stall_notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """The longest such window, with how many others there are; and machines that were suspended."""
    found = sorted(_found(records), key=lambda one: one.usual_s - one.seconds)
    if found:
        others = f"; {counted(len(found) - 1, 'other')} like it" if len(found) > 1 else ""
        yield f"slow window: {_told(found[0])}{others}"
    asleep: dict[str, float] = {}
    for rank in (rank for record in records for rank in record.ranks):
        asleep[rank.host] = max(rank.telemetry.suspended_s, asleep.get(rank.host, 0.0))
    for host, seconds in asleep.items():
        if seconds:
            yield f"{host} was suspended for {seconds:.1f} s while windows were measured, which no window counts"


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
    """Of a rank, the index of each such window, its seconds, and those of as many steps of the others."""
    step_s = [one.seconds / one.steps for one in rank.windows if one.steps]
    if len(step_s) < STALL_LEAST or len(step_s) < len(rank.windows):
        return
    for place, window in enumerate(rank.windows):
        usual_s = window.steps * median(step_s[:place] + step_s[place + 1 :])
        if window.seconds > STALL_FAR * usual_s:
            yield window.index, window.seconds, usual_s


# ---------------------------------------------------------------- in words


def _told(stall: Stall) -> str:
    record, ranks, seconds, usual_s = stall
    whose = f"all {len(ranks)} ranks" if len(ranks) == len(record.ranks) > 1 else several(list(map(_name, ranks)))
    verb = "took" if len(ranks) == 1 else "each took"
    return (
        f"{whose} {verb} {seconds:.2g} s for one of round {record.point.round + 1}, {usual_s:.2g} s is the median "
        f"of its others{_stood_still(stall)}"
    )


def _name(rank: RankRecord) -> str:
    return f"rank {rank.rank} on {rank.host}"


def _stood_still(stall: Stall) -> str:
    """Whose agents stood still too for most of what was too long: of all ranks of some hosts, or of all."""
    hosts = dict.fromkeys(rank.host for rank in stall.record.ranks)
    still_s = {
        host: min(rank.telemetry.still_s for rank in stall.record.ranks if rank.host == host) for host in hosts
    }
    stopped = [host for host in hosts if still_s[host] > (stall.seconds - stall.usual_s) / 2]
    if not stopped:
        return ""
    whose = "the whole job" if len(stopped) == len(hosts) else several(stopped)
    seconds = max(still_s[host] for host in stopped)
    return f"; {whose} stood still for {seconds:.1f} s: it was stopped, or its machine was (a checkpoint)"


# ---------------------------------------------------------------- feeds
#
# What fed a cell: its pipeline, where its files came from, how long its ranks were blocked.
#
# Seconds blocked in a feed are a diagnosis and no part of a loss: a device may compute meanwhile, and decoding
# takes cores from computing without blocking anybody (rounds.py).


# Of its bytes: what is no longer cold.
STILL_CACHED = 0.01


class Fed(NamedTuple):
    """What is known of a cell's feeds; `notes` are what a reader of its row must know."""

    waited_s: float | None
    fed_by: str
    read_from: str
    notes: tuple[str, ...]


def fed(records: Sequence[PointRecord]) -> Fed:
    """Return what these records of one cell tell."""
    return Fed(waited_s(records), fed_by(records), read_from(records), tuple(feed_notes(records)))


def waited_s(records: Iterable[PointRecord]) -> float | None:
    """Seconds of a step in which a rank was blocked in its feed, mean over ranks, windows and rounds; None where
    batches stay on the device, or nobody has told."""
    finished = (record for record in records if isinstance(record.outcome, Finished))
    windows = [window for record in finished for rank in record.ranks for window in rank.windows]
    told = [(window.waited_s, window.steps) for window in windows if window.waited_s is not None]
    steps = sum(count for _, count in told)
    return sum(seconds for seconds, _ in told) / steps if steps else None


def fed_by(records: Iterable[PointRecord]) -> str:
    """What its native feeds are, "" for the reference feed: `DataLoader, 2 processes a rank; Pillow ...`."""
    return " or ".join(dict.fromkeys(ready.fed_by for ready in _ready(records) if ready.fed_by))


def read_from(records: Iterable[PointRecord]) -> str:
    """`page cache` or `disk`; "" for data in memory."""
    return " or ".join(dict.fromkeys(ready.read_from for ready in _ready(records) if ready.read_from))


def feed_notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """What a reader of its row must know."""
    if own := fed_by(records):
        yield f"native feed: {own}"
    found = read_from(records)
    if found == "page cache":
        yield "files come from the page cache, as far as they fit; --drop-caches reads them from disk"
    elif found:
        yield f"files were dropped from the page cache before each point{_kept(records)}"


def _kept(records: Iterable[PointRecord]) -> str:
    """`, of which 12 % stayed there`, at most."""
    known = [ready.cached_fraction for ready in _ready(records) if ready.read_from == "disk"]
    if not known or None in known:
        return ", as far as the kernel obeys, which it does not tell this user"
    most = max(part for part in known if part is not None)
    return f"; up to {100 * most:.0f} % stayed there" if most > STILL_CACHED else ""


def _ready(records: Iterable[PointRecord]) -> Iterator[Ready]:
    return (rank.ready for record in records for rank in record.ranks if rank.ready)


# ---------------------------------------------------------------- cell


class Cell:
    """The records of one cell by round, at least one; `times` has the step times of those that ended well."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        self.records = records
        self._loss_after: dict[int, float | None] = {}
        self._losses_after: dict[int, dict[int, float]] = {}
        # What the plain loops beside it say of its work (controls.py), "" for nothing.
        self.less_work = ""

    @property
    def point(self) -> Point:
        """Of one of its rounds."""
        return self.records[0].point

    @cached_property
    def name(self) -> str:
        """Which cell it is."""
        return self.point.cell

    @cached_property
    def synchronous(self) -> bool:
        """Whether its ranks wait for each other."""
        return all(record.synchronous for record in self.records)

    @cached_property
    def times(self) -> dict[int, StepTime]:
        """Step time by round, of the records that have one."""
        found = ((record.point.round, step_time(record)) for record in self.records)
        return {number: time for number, time in found if time is not None}

    @cached_property
    def at_first(self) -> tuple[tuple[int, StepTime], ...]:
        """Step times by round of the windows as they were at first, where no core was slow."""
        found = ((one.point.round, step_time(one)) for one in quiet.at_first(self.records))
        return tuple((number, time) for number, time in found if time is not None)

    @cached_property
    def cpu(self) -> dict[int, CpuStep]:
        """CPU time of a step by round, of the records that tell it."""
        found = ((record.point.round, cpu_step(record)) for record in self.records)
        return {number: cpu for number, cpu in found if cpu is not None}

    @cached_property
    def unsynced(self) -> dict[int, float]:
        """Seconds of a step inside the wrapper without any exchange, by round, mean over ranks."""
        found = ((record.point.round, unsynced_s(record)) for record in self.records)
        return {number: step_s for number, step_s in found if step_s is not None}

    @cached_property
    def comm_beside(self) -> dict[int, float]:
        """Seconds of one exchange while the devices compute, by round."""
        found = ((record.point.round, beside_s(record)) for record in self.records)
        return {number: step_s for number, step_s in found if step_s is not None}

    @cached_property
    def seats(self) -> frozenset[int]:
        """The ranks of the launch on whose devices it ran; empty where one worker drove several."""
        whole = (r for r in self.records if len(r.ranks) == r.point.world_size)
        return frozenset(rank.launch_rank for record in whole for rank in record.ranks)

    @cached_property
    def soaked(self) -> tuple[PointRecord, ...]:
        """Its records that went on after their measured windows."""
        return tuple(one for one in self.records if any(rank.later for rank in one.ranks))

    @cached_property
    def kernel_notes(self) -> tuple[str, ...]:
        """What a CPU quota, memory faults and the kernel cost, and which windows stalled."""
        return (*cpu.condition_notes(self.records), *stall_notes(self.records))

    @cached_property
    def load(self) -> quiet.Load:
        """What else used the machine."""
        return quiet.of(self.records)

    @cached_property
    def where(self) -> dict[int, str]:
        """By rank of the launch, which rank it was, on which host and device."""
        return {
            rank.launch_rank: f"rank {rank.rank} on {rank.host}{f' ({name})' if name else ''}"
            for record in self.records
            for rank in record.ranks
            for name in (rank.device_name(record.point.hardware.device),)
        }

    @property
    def rates(self) -> list[float]:
        """Samples per second of each round."""
        return [self.point.global_batch_size / time.step_s for time in self.times.values()]

    @cached_property
    def failure(self) -> Failed | None:
        """Why no round has a result; None where one has."""
        if self.times:
            return None
        failures = (record.outcome for record in self.records if isinstance(record.outcome, Failed))
        return next(failures, NO_RESULT)

    @cached_property
    def gpus(self) -> int:
        """On how many GPUs it ran; 0 on other devices, and in older records."""
        return max(len(set(record.gpus)) for record in self.records)

    @property
    def updates_all(self) -> bool:
        """Whether each rank updates all parameters, as a plain loop does."""
        return all(record.updates_all for record in self.records)

    @cached_property
    def audits(self) -> tuple[tuple[int, str], ...]:
        """What the audit found in single rounds, each with its round."""
        return tuple((record.point.round, text) for record in self.records for text in audit.audit(record))

    @cached_property
    def fed(self) -> Fed:
        """What fed its ranks, and how long they waited for it."""
        return fed(self.records)

    @cached_property
    def machine_energy(self) -> MachineUse | None:
        """What its machines' processors and memory used."""
        return device_use.machine_use(self.records, self.times)

    @cached_property
    def clocks(self) -> Clocks | None:
        """How fast its GPUs were clocked."""
        return clocks(self.records)

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """What lowered its GPUs' clocks beside the power limit, in any round."""
        return self.clocks.throttled if self.clocks else ()

    @cached_property
    def devices(self) -> frozenset[str]:
        """On which devices it ran."""
        ranks = (rank for record in self.records for rank in record.ranks)
        return frozenset(rank.ready.device_name for rank in ranks if rank.ready)

    @cached_property
    def nodes(self) -> int:
        """The most hosts whose devices took part in a round."""
        return max(1, *(record.nodes for record in self.records))

    @cached_property
    def server_use(self) -> tuple[ServerUse, ...]:
        """Its parameter servers."""
        return cpu.server_use(self.records)

    @property
    def emulation(self) -> Emulation | None:
        """How well it is emulated; None for real devices, and where it was not measured."""
        found = next((record.emulation for record in self.records if record.emulation), None)
        return found and found.of(self.point)

    @cached_property
    def machine_cpu_percent(self) -> float | None:
        """Of all cores of the machine that emulated; None for real devices."""
        return cpu.of_machine(self.records)

    @cached_property
    def _ready(self) -> tuple[Ready, ...]:
        return tuple(rank.ready for record in self.records for rank in record.ranks if rank.ready)

    @cached_property
    def operations_per_sample(self) -> int:
        """Floating-point operations of both passes; 0 where nobody has counted them."""
        return max((each.operations_per_sample for each in self._ready), default=0)

    @cached_property
    def device_names(self) -> frozenset[str]:
        """As frameworks call what they ran on."""
        return frozenset(each.device_name for each in self._ready)

    @cached_property
    def device_use(self) -> DeviceUse | None:
        """How its GPUs ran; None where none was read."""
        return device_use.of(self.records)

    @cached_property
    def nccl(self) -> NcclChoice | None:
        """What NCCL chose; None where it has not told."""
        return traffic.nccl_choices(self.records)

    @cached_property
    def nccl_notes(self) -> tuple[str, ...]:
        """What of NCCL's choices a reader must know."""
        return tuple(traffic.nccl_notes(self.records))

    @cached_property
    def receipt(self) -> Receipt | None:
        """Which card carried its bytes; None where none crossed nodes."""
        return traffic.of_row(self.records)

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """The paths between nodes that carried its bytes."""
        return traffic.paths(self.records)

    @cached_property
    def traced(self) -> Traced | None:
        """Its profiled steps; None where no round has any."""
        return traces.traced(self.records)

    @cached_property
    def gpu_times(self) -> tuple[GpuTime, ...]:
        """What GPUs did in them, by rank."""
        return traces.gpu_times(self.records)

    @cached_property
    def staleness(self) -> float | None:
        """Of its parameters, mean; None in synchronous modes."""
        return staleness(self.records)

    @cached_property
    def first_and_last_loss(self) -> tuple[float | None, float | None]:
        """The training loss of the first and of the last window, means."""
        return first_and_last_loss(self.records)

    @cached_property
    def fewest_samples(self) -> int | None:
        """The smallest number of samples that any of its rounds was trained on; None without a training loss."""
        return equal_samples([self.records])

    def loss_after(self, count: int) -> float | None:
        """The training loss after `count` samples, mean over ranks and rounds."""
        if count not in self._loss_after:
            self._loss_after = {count: loss_after(self.records, count)}
        return self._loss_after[count]

    def losses_after(self, count: int) -> Mapping[int, float]:
        """The same by round, of those that have got so far."""
        if count not in self._losses_after:
            each = ((one.point.round, loss_after([one], count)) for one in self.records)
            self._losses_after = {count: {number: loss for number, loss in each if loss is not None}}
        return self._losses_after[count]


def cells(records: Iterable[PointRecord]) -> list[Cell]:
    """The cells of these records, in the order in which they first come."""
    by_name: dict[str, list[PointRecord]] = {}
    for record in records:
        by_name.setdefault(record.point.cell, []).append(record)
    return [Cell(found) for found in by_name.values()]
