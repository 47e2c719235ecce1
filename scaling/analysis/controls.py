"""The controls of a sweep: which of them explain an exchange, round by round. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from scaling.analysis.audit import Flag
from scaling.analysis.breakdown import Round
from scaling.analysis.cell import Cell
from scaling.analysis.step_time import StepTime, lock_step, step_time
from scaling.records.events import Failed
from scaling.records.point import Kind, Point
from scaling.records.run import PointRecord

Key = tuple[Any, ...]
# What a missing control leaves inside "unexplained".
LEFT_OVER = {
    "solo": "contention and small batch",
    "together": "contention, straggling and exposed communication",
    "comm": "exposed communication",
}


def key_of(point: Point) -> Key:
    """By which an exchange finds this control. A plain loop uses no network and no strategy's options."""
    if point.kind == "solo":
        return _solo_key(point, point.strategy, point.workload.batch_size)
    if point.kind == "together":
        return _together_key(point, point.strategy)
    return _comm_key(point)


def _solo_key(point: Point, plain: str, batch_size: int) -> Key:
    return ("solo", plain, point.workload.alone(batch_size), point.hardware)


def _together_key(point: Point, plain: str) -> Key:
    work = point.workload.alone(point.workload.batch_size)
    return ("together", plain, work, point.hardware, point.world_size, point.placement)


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
        timed = lock_step if self.point.kind == "together" else step_time
        found = ((record.point.round, timed(record)) for record in self._all)
        return {number: time for number, time in found if time is not None}

    @cached_property
    def first_cause(self) -> str:
        """Of the first round that failed; empty where none did."""
        failed = {r.point.round: r.outcome.cause for r in self._all if isinstance(r.outcome, Failed)}
        return failed[min(failed)] if failed else ""


class Controls:
    """The controls of a sweep by what an exchange asks for; each answer is round -> step time."""

    def __init__(self, records: Iterable[PointRecord] = ()) -> None:
        self._records: dict[Key, dict[str, PointRecord]] = defaultdict(dict)
        self._read: dict[Key, Control] = {}
        self.plains: set[str] = set()
        for record in records:
            if record.point.kind != "exchange":
                self.put(record)

    def put(self, record: PointRecord) -> Key:
        """Take the record of a control, in place of an older one of its point; return by which it is found."""
        key = key_of(record.point)
        self._records[key][record.point.key] = record
        self._read.pop(key, None)
        if record.point.kind == "solo":
            self.plains.add(record.point.strategy)
        return key

    def _found(self, key: Key) -> Control | None:
        """What is read from a control's records is kept until another one comes."""
        if key not in self._records:
            return None
        if key not in self._read:
            by_point = sorted(self._records[key].items(), key=lambda item: (item[1].point.round, item[0]))
            self._read[key] = Control([record for _, record in by_point])
        return self._read[key]

    def _times(self, key: Key) -> Mapping[int, StepTime]:
        found = self._found(key)
        return found.times if found else {}

    def baselines(self) -> list[Control]:
        """All plain loops alone, in the order of a table."""
        return [
            solo for key in sorted(key for key in self._records if key[0] == "solo") if (solo := self._found(key))
        ]

    def plain(self, strategy: str) -> str:
        """The plain loop that is the strategy's baseline: its framework's, or the only one there is
        (a strategy from outside may rest on any framework)."""
        name = strategy.partition(":")[0] + ":plain"
        return next(iter(self.plains)) if name not in self.plains and len(self.plains) == 1 else name

    def solo(self, point: Point, batch_size: int) -> Mapping[int, StepTime]:
        """The plain loop alone, at `batch_size`."""
        return self._times(_solo_key(point, self.plain(point.strategy), batch_size))

    def baseline(self, point: Point) -> Control | None:
        """The plain loop alone behind the efficiency of `point`, failed rounds too; None if not tried."""
        return self._found(_solo_key(point, self.plain(point.strategy), point.reference.batch_size))

    def together(self, point: Point) -> Mapping[int, StepTime]:
        """As many plain loops as the point has ranks, at once, at its batch per device."""
        return self._times(_together_key(point, self.plain(point.strategy)))

    def comm(self, point: Point) -> Mapping[int, StepTime]:
        """The exchange of the model's gradients without compute."""
        return self._times(_comm_key(point))

    def keys_behind(self, point: Point) -> Mapping[Kind, set[Key]]:
        """By which the controls are found that a row's efficiency and losses rest on."""
        plain = self.plain(point.strategy)
        sizes = (point.workload.batch_size, point.reference.batch_size)
        return {
            "solo": {_solo_key(point, plain, size) for size in sizes},
            "together": {_together_key(point, plain)},
            "comm": {_comm_key(point)},
        }

    def flags_behind(self, point: Point) -> Mapping[Kind, frozenset[Flag]]:
        """The stamps of the controls that a row's efficiency and losses rest on."""
        return {
            kind: frozenset().union(*(control.flags for key in keys if (control := self._found(key))))
            for kind, keys in self.keys_behind(point).items()
        }

    def why_missing(self, kind: Kind, point: Point, batch_size: int) -> str:
        """The cause of the first failure of the control that `point` lacks; empty where it was not tried."""
        plain = self.plain(point.strategy)
        keys = {
            "solo": _solo_key(point, plain, batch_size),
            "together": _together_key(point, plain),
            "comm": _comm_key(point),
        }
        found = self._found(keys[kind])
        return found.first_cause if found else ""


def rounds(cell: Cell, controls: Controls) -> tuple[Round, ...]:
    """Join a cell's exchanges with the controls of their rounds; rounds without a baseline are left out."""
    point = cell.point
    share = point.workload.share(point.world_size)
    reference = controls.solo(point, point.reference.batch_size)
    solo = controls.solo(point, point.workload.batch_size)
    # One device beside none is alone.
    together = {**(solo if point.world_size == 1 else {}), **controls.together(point)}
    comm = controls.comm(point)
    return tuple(
        Round(
            number=number,
            exchange_s=time.step_s,
            ideal_s=reference[number].step_s / share,
            solo_s=solo[number].step_s if number in solo else None,
            together=together.get(number),
            comm_s=comm[number].step_s if number in comm else None,
            synchronous=cell.synchronous,
        )
        for number, time in sorted(cell.times.items())
        if number in reference
    )


def missing_controls(point: Point, measured: Sequence[Round], controls: Controls) -> tuple[str, ...]:
    """Say which controls the split had to do without; a single device has none to miss."""
    if point.world_size == 1:
        return ()
    kinds: dict[Kind, int] = {
        "solo": sum(one.solo_s is None for one in measured),
        "together": sum(one.together is None for one in measured),
        # Without `together` nothing could be told from `comm` either.
        "comm": sum(one.comm_s is None and one.together is not None for one in measured),
    }
    return tuple(_missing(kind, count, point, measured, controls) for kind, count in kinds.items() if count)


def _missing(kind: Kind, count: int, point: Point, measured: Sequence[Round], controls: Controls) -> str:
    cause = controls.why_missing(kind, point, point.workload.batch_size)
    failed = f" (failed: {cause})" if cause else ""
    is_async = kind == "together" and not measured[0].synchronous
    left = "contention and exposed communication" if is_async else LEFT_OVER[kind]
    if count == len(measured):
        return f"no {kind} control{failed}; counted as unexplained: {left}"
    return f"no {kind} control in {count} of {len(measured)} rounds{failed}; from the others: {left}"
