"""The control runs of a sweep: plain loops alone, other controls, and the check for less work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import exp, log
from statistics import fmean
from typing import Any

from scaling.analysis.measured.cell import Cell, by_round, cells
from scaling.analysis.measured.cpu import CpuStep, Use, mean_of
from scaling.analysis.measured.step_time import Blocks, StepTime, by_rate, harmonic, lock_step, step_time
from scaling.analysis.statistics.intervals import Layout, additive
from scaling.records.events import Failed
from scaling.records.network import NcclChoice
from scaling.records.point import BESIDE, Kind, Point, Record
from scaling.records.run import PointRecord
from scaling.records.telemetry import GpuTime

# ---------------------------------------------------------------- plain loops alone
#
# The ideal rate of a row is the sum of its seats' rates alone (`each`), so its ideal step time is their harmonic
# mean. Seats that a round lacks are filled by an additive fit of seats and rounds to logarithms. If only one seat
# was measured (`solo`), it represents all.


class AloneTime(Record, frozen=True, kw_only=True):
    """Seconds of a step of a row's seats, each alone, in one round: harmonic mean, mean, and by seat.

    `blocks` are logarithms by window (step_time.by_rate); `seats_measured` counts the seats of this round.
    """

    harmonic_s: float
    mean_s: float
    seats: Mapping[int, float]
    blocks: Blocks
    epoch: int | None
    use: Use | None
    seats_measured: int


def by_seat(times: Mapping[int, StepTime]) -> dict[str, dict[int, float]]:
    """Return logarithms of step times by seat and round."""
    found: dict[str, dict[int, float]] = {}
    for number, time in sorted(times.items()):
        for seat, one in sorted(time.seats.items()):
            found.setdefault(str(seat), {})[number] = log(one.step_s)
    return found


class Alone:
    """Plain loops alone of one framework, work and kind of device; at least one record."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        self.records = records
        self.cells = cells(records)
        self._found: dict[tuple[frozenset[int], int], dict[int, AloneTime]] = {}

    @cached_property
    def whole(self) -> Cell:
        return Cell(self.records)

    def seats(self, world_size: int) -> frozenset[int]:
        """Return the seats measured at this world size, or else at any."""
        own = [cell for cell in self._by_nearness(world_size) if cell.point.world_size == world_size]
        times = (time for cell in own or self.cells for time in cell.times.values())
        return frozenset(seat for time in times for seat in time.seats)

    def times(self, seats: Collection[int], world_size: int) -> Mapping[int, AloneTime]:
        """Return the times of these seats by round, preferably measured at this world size."""
        key = (frozenset(seats), world_size)
        if key not in self._found:
            self._found[key] = self._times(key[0], world_size)
        return self._found[key]

    def by_seat(self, seats: Collection[int], world_size: int) -> dict[str, dict[int, float]]:
        """Return logarithms of the measured step times, by seat and round."""
        found = by_seat(self._sources(seats, world_size))
        return {seat: of for seat, of in found.items() if int(seat) in seats}

    def _by_nearness(self, world_size: int) -> list[Cell]:
        """This world size first, then the widest; `solo` last."""
        return sorted(
            self.cells,
            key=lambda cell: (
                cell.point.kind != "each", cell.point.world_size != world_size, -cell.point.world_size, cell.name
            ),
        )  # fmt: skip

    def _sources(self, seats: Collection[int], world_size: int) -> dict[int, StepTime]:
        """By round, the nearest cell with any of these seats, or else the nearest cell."""
        found: dict[int, StepTime] = {}
        nearest = self._by_nearness(world_size)
        for wanted in (frozenset(seats), None):
            for cell in nearest:
                for number, time in cell.times.items():
                    if wanted is None or wanted & time.seats.keys():
                        found.setdefault(number, time)
        return dict(sorted(found.items()))

    def _times(self, seats: frozenset[int], world_size: int) -> dict[int, AloneTime]:
        sources = self._sources(seats, world_size)
        if not sources:
            return {}
        layout: Layout = self.by_seat(seats, world_size)
        if not layout:  # another seat represents these
            layout = {"": {number: log(time.harmonic_s) for number, time in sources.items()}}
        columns, rows = additive(layout)
        found = {}
        for number, time in sources.items():
            if number not in rows:
                continue
            filled = {seat: exp(of.get(number, columns[seat] + rows[number])) for seat, of in layout.items()}
            known = {int(seat): value for seat, value in filled.items() if seat}
            cpu = next((cell.cpu.get(number) for cell in self.cells if cell.times.get(number) is time), None)
            found[number] = AloneTime(
                harmonic_s=harmonic(filled.values()),
                mean_s=fmean(filled.values()),
                seats=known,
                blocks=_blocks(time, columns) if known else time.blocks,
                epoch=time.epoch,
                use=_use(cpu, known),
                seats_measured=max(1, len(known.keys() & time.seats.keys())),
            )
        return found


def _blocks(time: StepTime, columns: Mapping[str, float]) -> Blocks:
    """Corrects for the seats missing in a block: seats' differences are known from all rounds."""
    apart = {int(seat): exp(column) for seat, column in columns.items()}
    known = [(apart[seat], one.blocks) for seat, one in time.seats.items() if seat in apart]
    return by_rate(harmonic(apart.values()), known)


def _use(cpu: CpuStep | None, seats: Mapping[int, float]) -> Use | None:
    if cpu is None:
        return None
    found = [use for seat, use in cpu.seats.items() if seat in seats] or list(cpu.seats.values())
    return mean_of(found, len(found))


# ---------------------------------------------------------------- controls

Key = tuple[Any, ...]


def key_of(point: Point) -> Key:
    """Return the key of a control. Plain loops use no network and no options of a strategy."""
    if point.kind in ("solo", "each"):
        return _alone_key(point, point.strategy, point.workload.batch_size)
    if point.kind in BESIDE:
        return _beside_key(point.kind, point, point.strategy, point.world_size)
    return _comm_key(point)


def _alone_key(point: Point, plain: str, batch_size: int) -> Key:
    return ("solo", plain, point.workload.alone(batch_size), point.hardware)


def _beside_key(kind: Kind, point: Point, plain: str, world_size: int) -> Key:
    return (kind, plain, point.workload.alone(), point.hardware, world_size, point.placement)


def _comm_key(point: Point) -> Key:
    # The batch size does not matter for gradients.
    work = point.workload.alone(0)
    where = (point.interconnect, point.sorted_options, point.world_size, point.placement)
    return ("comm", point.strategy, work, point.hardware, *where, point.servers, point.server_hosts)


class Control(Cell):
    """One control over its rounds; of several records of a round the last by key counts."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        super().__init__(list({record.point.round: record for record in records}.values()))
        self.all_records = records

    @cached_property
    def times(self) -> dict[int, StepTime]:
        """Step time by round; plain loops at once are timed in lock step."""
        timed = lock_step if self.point.kind in BESIDE else step_time
        return by_round(self.all_records, timed)


class Controls:
    """The controls of a sweep by key; facts are cached until a new record of the key."""

    def __init__(self, records: Iterable[PointRecord] = ()) -> None:
        self._records: dict[Key, dict[str, PointRecord]] = defaultdict(dict)
        self._control: dict[Key, Control] = {}
        self._alone: dict[Key, Alone] = {}
        self.plains: set[str] = set()
        for record in records:
            if record.point.kind != "exchange" and not record.point.hosts:
                self.put(record)

    def put(self, record: PointRecord) -> Key:
        """Add the record of a control, replacing an older one of its point; return its key."""
        key = key_of(record.point)
        self._records[key][record.point.key] = record
        self._control.pop(key, None)
        self._alone.pop(key, None)
        if record.point.kind in ("solo", "each"):
            self.plains.add(record.point.strategy)
        return key

    def _sorted(self, key: Key) -> list[PointRecord]:
        return sorted(self._records[key].values(), key=lambda one: (one.point.round, one.point.key))

    def _found(self, key: Key) -> Control | None:
        if key not in self._control and key in self._records:
            self._control[key] = Control(self._sorted(key))
        return self._control.get(key)

    def _plain_loops(self, key: Key) -> Alone | None:
        if key not in self._alone and key in self._records:
            self._alone[key] = Alone(self._sorted(key))
        return self._alone.get(key)

    def baselines(self) -> list[Alone]:
        """Return all plain loops alone, in table order."""
        keys = sorted(key for key in self._records if key[0] == "solo")
        return [alone for key in keys if (alone := self._plain_loops(key))]

    def plain(self, strategy: str) -> str:
        """Return the plain loop that is the strategy's baseline: its framework's.

        For an external strategy (`package.module:mode`) it is the sweep's only plain loop.
        """
        framework = strategy.partition(":")[0]
        return next(iter(self.plains)) if "." in framework and len(self.plains) == 1 else f"{framework}:plain"

    def is_plain(self, point: Point) -> bool:
        """Return whether an exchange is a plain loop without a baseline of its own."""
        return point.strategy == self.plain(point.strategy) and self.baseline(point) is None

    def alone(self, point: Point, batch_size: int) -> Alone | None:
        """Return the plain loops alone at `batch_size`, failed rounds included; None if not tried."""
        return self._plain_loops(_alone_key(point, self.plain(point.strategy), batch_size))

    def baseline(self, point: Point) -> Alone | None:
        return self.alone(point, point.reference.batch_size)

    def times_alone(self, cell: Cell, batch_size: int) -> Mapping[int, AloneTime]:
        """Return by round the times alone of a cell's devices at `batch_size`."""
        alone = self.alone(cell.point, batch_size)
        if alone is None:
            return {}
        size = cell.point.world_size
        return alone.times(cell.seats or alone.seats(size), size)

    def together(self, point: Point) -> Control | None:
        """Return the plain loops on all devices at once, at the point's batch per device."""
        return self._beside("together", point, point.world_size)

    def held(self, point: Point, world_size: int) -> Control | None:
        """Return `world_size` plain loops at once, each with one batch that stays on its device."""
        return self._beside("held", point, world_size)

    def feed(self, point: Point, world_size: int) -> Control | None:
        """Return the feeds of `world_size` plain loops, without training."""
        return self._beside("feed", point, world_size)

    def _beside(self, kind: Kind, point: Point, world_size: int) -> Control | None:
        return self._found(_beside_key(kind, point, self.plain(point.strategy), world_size))

    def comm(self, point: Point) -> Mapping[int, StepTime]:
        """Return by round the exchange of gradients without compute."""
        found = self._found(_comm_key(point))
        return found.times if found else {}

    def nccl(self, point: Point) -> NcclChoice | None:
        """Return NCCL's choices in the exchange of gradients without compute."""
        found = self._found(_comm_key(point))
        return found.nccl if found else None

    def gpu_times(self, point: Point) -> tuple[GpuTime, ...]:
        """Return by rank the GPU times of the plain loop on as many devices as the point has."""
        plain = self.plain(point.strategy)
        alone = point.world_size == 1
        key = _alone_key(point, plain, point.workload.batch_size)
        found = self._found(key) if alone else self.together(point)
        return found.gpu_times if found else ()

    def keys_behind(self, point: Point) -> Mapping[Kind, set[Key]]:
        """Return the keys of the controls behind a row's efficiency and losses."""
        plain = self.plain(point.strategy)
        sizes = (point.workload.batch_size, point.reference.batch_size)
        return {
            "solo": {_alone_key(point, plain, size) for size in sizes},
            "together": {_beside_key("together", point, plain, point.world_size)},
            "comm": {_comm_key(point)},
            "held": {_beside_key("held", point, plain, size) for size in (1, point.world_size)},
            "feed": {_beside_key("feed", point, plain, size) for size in (1, point.world_size)},
        }

    def of_key(self, key: Key) -> Alone | Control | None:
        """Return a control; it is another object after a new record of its key."""
        return self._plain_loops(key) if key[0] == "solo" else self._found(key)

    def cells_behind(self, point: Point, kinds: Iterable[Kind] = ("solo", "together")) -> list[Cell]:
        """Return the controls of these kinds behind a row."""
        behind = self.keys_behind(point)
        found = [self.of_key(key) for kind in kinds for key in sorted(behind[kind])]
        return [cell for one in found if one for cell in (one.cells if isinstance(one, Alone) else (one,))]

    def by_kind_behind(self, point: Point) -> Mapping[Kind, list[Cell]]:
        """Return the controls behind a row's efficiency and losses, by kind."""
        found: dict[Kind, list[Cell]] = {}
        for kind in self.keys_behind(point):
            for cell in self.cells_behind(point, (kind,)):
                found.setdefault(cell.point.kind if kind == "solo" else kind, []).append(cell)
        return found

    def why_missing(self, kind: Kind, point: Point, batch_size: int) -> str:
        """Return the first failure's cause of the control that `point` lacks; empty if not tried."""
        if kind in ("solo", "each"):
            alone = self.alone(point, batch_size)
            tried = [alone.records] if alone else []
        else:
            found = map(self._found, sorted(self.keys_behind(point)[kind]))
            tried = [one.all_records for one in found if one]
        for records in tried:
            failed = {r.point.round: r.outcome.cause for r in records if isinstance(r.outcome, Failed)}
            if failed:
                return failed[min(failed)]
        return ""


# ---------------------------------------------------------------- less work
#
# An honest exchange computes what the plain loop computes at the same batch. The evidence is CPU time on CPUs (it
# does not grow by waiting), step time elsewhere. Strategies whose ranks update only some parameters are skipped.

# Least part of the plain loop's time; a lower one in every round is reported. In a single round foreign load on
# the plain loop's cores alone makes a fifth: that one must be lower.
LEAST_PART, LEAST_PART_OF_ONE = 0.85, 0.65
# CPU time below this part of a step is not computing (a scripted step sleeps).
LEAST_BUSY = 0.2


def less_work(cell: Cell, controls: Controls) -> str:
    """Compare a cell with its plain loops; return how it does less, "" if it does not."""
    on_cpu = cell.point.hardware.device == "cpu"
    alone = controls.baseline(cell.point)
    if not cell.updates_all or alone is None or alone.whole.throttle_reasons:
        return ""
    if not cell.devices <= alone.whole.devices:
        return ""
    parts = list(_of_cpu_time(cell, controls) if on_cpu else _of_step_time(cell, controls))
    if not parts or max(parts) >= (LEAST_PART if len(parts) > 1 else LEAST_PART_OF_ONE):
        return ""
    what = "CPU time of a step" if on_cpu else "time of a step"
    return (
        f"audit: the {what} is at most {100 * max(parts):.0f} % of the plain loop's in all rounds: it computes "
        "less than its samples need, or uses other code than its baseline"
    )


def _of_cpu_time(cell: Cell, controls: Controls) -> Iterator[float]:
    own = controls.times_alone(cell, cell.point.workload.batch_size)
    together = controls.together(cell.point)
    for number, cpu in cell.cpu.items():
        alone = own.get(number)
        if alone is None or alone.use is None or alone.use.run_s < LEAST_BUSY * alone.mean_s:
            continue
        beside = together.cpu.get(number) if together else None
        yield cpu.mean.run_s / min(alone.use.run_s, beside.mean.run_s if beside else alone.use.run_s)


def _of_step_time(cell: Cell, controls: Controls) -> Iterator[float]:
    own = controls.times_alone(cell, cell.point.workload.batch_size)
    for number, time in cell.times.items():
        if number in own:
            yield time.step_s / min(own[number].harmonic_s, *own[number].seats.values())
