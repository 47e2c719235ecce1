"""The controls of a sweep: which of them explain an exchange, round by round. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scaling.analysis.breakdown import Round
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


def _key(point: Point) -> Key:
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


class Controls:
    """The controls of a sweep by what an exchange asks for; each answer is round -> step time."""

    def __init__(self, records: Iterable[PointRecord]) -> None:
        self._times: dict[Key, dict[int, StepTime]] = defaultdict(dict)
        self._failed: dict[Key, dict[int, Failed]] = defaultdict(dict)
        self.solos: dict[Key, dict[int, PointRecord]] = defaultdict(dict)
        self._plains: set[str] = set()
        self._records: dict[Key, dict[int, PointRecord]] = defaultdict(dict)
        for record in records:
            if record.point.kind != "exchange":
                self._add(record)

    def _add(self, record: PointRecord) -> None:
        point, key = record.point, _key(record.point)
        self._records[key][point.round] = record
        if point.kind == "solo":
            self._plains.add(point.strategy)
            self.solos[key][point.round] = record
        time = lock_step(record) if point.kind == "together" else step_time(record)
        if time is not None:
            self._times[key][point.round] = time
        elif isinstance(record.outcome, Failed):
            self._failed[key][point.round] = record.outcome

    def plain(self, strategy: str) -> str:
        """The plain loop that is the strategy's baseline: its framework's, or the only one there is
        (a strategy from outside may rest on any framework)."""
        name = strategy.partition(":")[0] + ":plain"
        return next(iter(self._plains)) if name not in self._plains and len(self._plains) == 1 else name

    def solo(self, point: Point, batch_size: int) -> Mapping[int, StepTime]:
        """The plain loop alone, at `batch_size`."""
        return self._times.get(_solo_key(point, self.plain(point.strategy), batch_size), {})

    def solo_records(self, point: Point) -> Mapping[int, PointRecord]:
        """The records behind the baseline of `point`, failed ones too."""
        return self.solos.get(_solo_key(point, self.plain(point.strategy), point.reference.batch_size), {})

    def together(self, point: Point) -> Mapping[int, StepTime]:
        """As many plain loops as the point has ranks, at once, at its batch per device."""
        return self._times.get(_together_key(point, self.plain(point.strategy)), {})

    def comm(self, point: Point) -> Mapping[int, StepTime]:
        """The exchange of the model's gradients without compute."""
        return self._times.get(_comm_key(point), {})

    def behind(self, point: Point) -> Mapping[Kind, Sequence[PointRecord]]:
        """The controls that a row's efficiency and losses rest on."""
        plain = self.plain(point.strategy)
        solos = {_solo_key(point, plain, size) for size in (point.workload.batch_size, point.reference.batch_size)}
        return {
            "solo": [record for key in solos for record in self._records.get(key, {}).values()],
            "together": list(self._records.get(_together_key(point, plain), {}).values()),
            "comm": list(self._records.get(_comm_key(point), {}).values()),
        }

    def why_missing(self, kind: Kind, point: Point, batch_size: int) -> str:
        """The cause of the first failure of the control that `point` lacks; empty where it was not tried."""
        plain = self.plain(point.strategy)
        keys = {
            "solo": _solo_key(point, plain, batch_size),
            "together": _together_key(point, plain),
            "comm": _comm_key(point),
        }
        failed = self._failed.get(keys[kind], {})
        return failed[min(failed)].cause if failed else ""


def rounds(
    point: Point, exchange: Mapping[int, StepTime], controls: Controls, *, synchronous: bool
) -> tuple[Round, ...]:
    """Join a cell's exchanges with the controls of their rounds; rounds without a baseline are left out."""
    share = 1 if point.workload.batch_rule == "weak" else point.world_size
    reference = controls.solo(point, point.reference.batch_size)
    solo, together, comm = (
        controls.solo(point, point.workload.batch_size),
        controls.together(point),
        controls.comm(point),
    )
    found = []
    for number, time in sorted(exchange.items()):
        if number not in reference:
            continue
        beside = together.get(number)
        if point.world_size == 1 and beside is None:
            beside = solo[number]  # one device beside none: the same thing
        one = Round(
            number=number,
            exchange_s=time.step_s,
            ideal_s=reference[number].step_s / share,
            solo_s=solo[number].step_s if number in solo else None,
            together=beside,
            comm_s=comm[number].step_s if number in comm else None,
            synchronous=synchronous,
        )
        found.append(one)
    return tuple(found)


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
