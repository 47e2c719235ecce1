"""The controls of a sweep: which of them an exchange rests on. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from scaling.analysis.alone import Alone, AloneTime
from scaling.analysis.audit import Flag
from scaling.analysis.cell import Cell
from scaling.analysis.step_time import StepTime, lock_step, step_time
from scaling.records.events import Failed
from scaling.records.network import NcclChoice
from scaling.records.point import BESIDE, Kind, Point
from scaling.records.run import PointRecord
from scaling.records.telemetry import GpuTime

Key = tuple[Any, ...]


def key_of(point: Point) -> Key:
    """By which an exchange finds this control. A plain loop uses no network and no strategy's options."""
    if point.kind in ("solo", "each"):
        return _alone_key(point, point.strategy, point.workload.batch_size)
    if point.kind in BESIDE:
        return _beside_key(point.kind, point, point.strategy, point.world_size)
    return _comm_key(point)


def _alone_key(point: Point, plain: str, batch_size: int) -> Key:
    return ("solo", plain, point.workload.alone(batch_size), point.hardware)


def _beside_key(kind: Kind, point: Point, plain: str, world_size: int) -> Key:
    work = point.workload.alone(point.workload.batch_size)
    return (kind, plain, work, point.hardware, world_size, point.placement)


def _comm_key(point: Point) -> Key:
    # Gradients are as large at any batch.
    work = point.workload.alone(0)
    where = (point.interconnect, point.sorted_options, point.world_size, point.placement)
    return ("comm", point.strategy, work, point.hardware, *where, point.servers, point.server_hosts)


class Control(Cell):
    """One control over its rounds; where a round has several records of it, the last by key counts."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        super().__init__(list({record.point.round: record for record in records}.values()))
        self._all = records

    @cached_property
    def times(self) -> dict[int, StepTime]:
        """Step time by round; plain loops side by side are timed as if they waited for each other."""
        timed = lock_step if self.point.kind in BESIDE else step_time
        found = ((record.point.round, timed(record)) for record in self._all)
        return {number: time for number, time in found if time is not None}

    @cached_property
    def first_cause(self) -> str:
        """Of the first round that failed; empty where none did."""
        failed = {r.point.round: r.outcome.cause for r in self._all if isinstance(r.outcome, Failed)}
        return failed[min(failed)] if failed else ""


class Controls:
    """The controls of a sweep by what an exchange asks for; what is read from their records is kept until another
    one comes."""

    def __init__(self, records: Iterable[PointRecord] = ()) -> None:
        self._records: dict[Key, dict[str, PointRecord]] = defaultdict(dict)
        self._control: dict[Key, Control] = {}
        self._alone: dict[Key, Alone] = {}
        self.plains: set[str] = set()
        for record in records:
            if record.point.kind != "exchange" and not record.point.hosts:
                self.put(record)

    def put(self, record: PointRecord) -> Key:
        """Take the record of a control, in place of an older one of its point; return by which it is found."""
        key = key_of(record.point)
        self._records[key][record.point.key] = record
        self._control.pop(key, None)
        self._alone.pop(key, None)
        if record.point.kind in ("solo", "each"):
            self.plains.add(record.point.strategy)
        return key

    def _sorted(self, key: Key) -> list[PointRecord]:
        by_point = sorted(self._records[key].items(), key=lambda item: (item[1].point.round, item[0]))
        return [record for _, record in by_point]

    def _found(self, key: Key) -> Control | None:
        if key not in self._control and key in self._records:
            self._control[key] = Control(self._sorted(key))
        return self._control.get(key)

    def _plain_loops(self, key: Key) -> Alone | None:
        if key not in self._alone and key in self._records:
            self._alone[key] = Alone(self._sorted(key))
        return self._alone.get(key)

    def baselines(self) -> list[Alone]:
        """All plain loops alone, in the order of a table."""
        keys = sorted(key for key in self._records if key[0] == "solo")
        return [alone for key in keys if (alone := self._plain_loops(key))]

    def plain(self, strategy: str) -> str:
        """The plain loop that is the strategy's baseline: its framework's; of a strategy from outside
        (`package.module:mode`), which may rest on any framework, the only one there is."""
        framework = strategy.partition(":")[0]
        return next(iter(self.plains)) if "." in framework and len(self.plains) == 1 else f"{framework}:plain"

    def is_plain(self, point: Point) -> bool:
        """Whether an exchange is that of a plain loop, beside which no other was tried."""
        return point.strategy == self.plain(point.strategy) and self.baseline(point) is None

    def alone(self, point: Point, batch_size: int) -> Alone | None:
        """The plain loops alone at `batch_size`, failed rounds too; None if not tried."""
        return self._plain_loops(_alone_key(point, self.plain(point.strategy), batch_size))

    def baseline(self, point: Point) -> Alone | None:
        """The plain loops alone behind the efficiency of `point`."""
        return self.alone(point, point.reference.batch_size)

    def times_alone(self, cell: Cell, batch_size: int) -> Mapping[int, AloneTime]:
        """By round, what the devices of a cell do alone at `batch_size`."""
        alone = self.alone(cell.point, batch_size)
        if alone is None:
            return {}
        size = cell.point.world_size
        return alone.times(cell.seats or alone.seats(size), size)

    def by_seat(self, cell: Cell, batch_size: int) -> Mapping[str, Mapping[int, float]]:
        """Logarithms of what each device of a cell takes alone for a step, by seat and round."""
        alone = self.alone(cell.point, batch_size)
        if alone is None:
            return {}
        size = cell.point.world_size
        return alone.by_seat(cell.seats or alone.seats(size), size)

    def together(self, point: Point) -> Control | None:
        """As many plain loops as the point has ranks, at once, at its batch per device."""
        return self._beside("together", point, point.world_size)

    def held(self, point: Point, world_size: int) -> Control | None:
        """So many of these plain loops at once, each on one batch that stays on its device."""
        return self._beside("held", point, world_size)

    def feed(self, point: Point, world_size: int) -> Control | None:
        """What feeds so many of these plain loops, by itself."""
        return self._beside("feed", point, world_size)

    def _beside(self, kind: Kind, point: Point, world_size: int) -> Control | None:
        return self._found(_beside_key(kind, point, self.plain(point.strategy), world_size))

    def comm(self, point: Point) -> Mapping[int, StepTime]:
        """The exchange of the model's gradients without compute."""
        found = self._found(_comm_key(point))
        return found.times if found else {}

    def nccl(self, point: Point) -> NcclChoice | None:
        """What NCCL chose in the exchange of the model's gradients without compute."""
        found = self._found(_comm_key(point))
        return found.nccl if found else None

    def gpu_times(self, point: Point) -> tuple[GpuTime, ...]:
        """Of the profiled steps of the plain loop on as many devices as the point has, by rank."""
        plain = self.plain(point.strategy)
        alone = point.world_size == 1
        key = _alone_key(point, plain, point.workload.batch_size)
        found = self._found(key) if alone else self.together(point)
        return found.gpu_times if found else ()

    def keys_behind(self, point: Point) -> Mapping[Kind, set[Key]]:
        """By which the controls are found that a row's efficiency and losses rest on."""
        plain = self.plain(point.strategy)
        sizes = (point.workload.batch_size, point.reference.batch_size)
        return {
            "solo": {_alone_key(point, plain, size) for size in sizes},
            "together": {_beside_key("together", point, plain, point.world_size)},
            "comm": {_comm_key(point)},
            "held": {_beside_key("held", point, plain, size) for size in (1, point.world_size)},
            "feed": {_beside_key("feed", point, plain, size) for size in (1, point.world_size)},
        }

    def cells_behind(self, point: Point, kinds: Iterable[Kind] = ("solo", "together")) -> list[Cell]:
        """The controls of these kinds that a row rests on, by default the plain loops."""
        found = self.keys_behind(point)
        return [cell for kind in kinds for key in sorted(found[kind]) for cell in self._cells(key)]

    def flags_behind(self, point: Point) -> Mapping[Kind, frozenset[Flag]]:
        """The stamps of the controls that a row's efficiency and losses rest on, by their kind."""
        found: dict[Kind, frozenset[Flag]] = {}
        for kind, keys in self.keys_behind(point).items():
            for key in sorted(keys):
                for cell in self._cells(key):
                    named = cell.point.kind if kind == "solo" else kind
                    found[named] = found.get(named, frozenset()) | cell.flags
        return found

    def _cells(self, key: Key) -> Sequence[Cell]:
        if key[0] == "solo":
            alone = self._plain_loops(key)
            return alone.cells if alone else ()
        control = self._found(key)
        return (control,) if control else ()

    def why_missing(self, kind: Kind, point: Point, batch_size: int) -> str:
        """The cause of the first failure of the control that `point` lacks; empty where it was not tried."""
        if kind in ("solo", "each"):
            alone = self.alone(point, batch_size)
            return alone.first_cause if alone else ""
        tried = [self._found(key) for key in sorted(self.keys_behind(point)[kind])]
        return next((one.first_cause for one in tried if one and one.first_cause), "")
