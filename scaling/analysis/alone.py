"""What devices do alone: the plain loop on the first of them (`solo`), or on every seat in turn (`each`). Pure.

The ideal of a row is the sum of the rates of its own seats, so that a step's ideal time is the harmonic mean of
theirs. Where seats take turns over the rounds, those that a round lacks are filled by an additive fit of seats and
rounds to logarithms; where only one seat was ever measured, it stands for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import exp, log
from statistics import fmean

from scaling.analysis.cell import Cell
from scaling.analysis.cpu_time import CpuStep, Use, mean_of
from scaling.analysis.pooling import Layout, additive
from scaling.analysis.step_time import Blocks, StepTime, by_rate, harmonic
from scaling.records.events import Failed
from scaling.records.point import Record
from scaling.records.run import PointRecord


class AloneTime(Record, frozen=True, kw_only=True):
    """Seconds of one step of a row's seats, each alone, in one round: means of rates and of times.

    `blocks` are the windows' own logarithms (step_time.by_rate); `seats_measured` is how many of the seats this
    round has; `use` is the CPU time of a step, if known.
    """

    harmonic_s: float
    mean_s: float
    seats: Mapping[int, float]
    blocks: Blocks
    epoch: int | None
    use: Use | None
    seats_measured: int


class Alone:
    """The records of plain loops alone of one framework, work and kind of device; at least one."""

    def __init__(self, records: Sequence[PointRecord]) -> None:
        self.records = records
        by_cell: dict[str, list[PointRecord]] = {}
        for record in records:
            by_cell.setdefault(record.point.cell, []).append(record)
        self.cells = [Cell(found) for found in by_cell.values()]
        self._found: dict[tuple[frozenset[int], int], dict[int, AloneTime]] = {}

    @cached_property
    def whole(self) -> Cell:
        """All of its records as one: for flags and what is said of a baseline."""
        return Cell(self.records)

    @cached_property
    def first_cause(self) -> str:
        """Of the first round that failed; empty where none did."""
        failed = {r.point.round: r.outcome.cause for r in self.records if isinstance(r.outcome, Failed)}
        return failed[min(failed)] if failed else ""

    def seats(self, world_size: int) -> frozenset[int]:
        """All that were measured at this world size, or else anywhere."""
        own = [cell for cell in self._by_nearness(world_size) if cell.point.world_size == world_size]
        times = (time for cell in own or self.cells for time in cell.times.values())
        return frozenset(seat for time in times for seat in time.seats)

    def times(self, seats: Collection[int], world_size: int) -> Mapping[int, AloneTime]:
        """By round, of these seats; measured at this world size where they were."""
        key = (frozenset(seats), world_size)
        if key not in self._found:
            self._found[key] = self._times(key[0], world_size)
        return self._found[key]

    def by_seat(self, seats: Collection[int], world_size: int) -> dict[str, dict[int, float]]:
        """Logarithms of the step times that were measured, by seat and round."""
        found: dict[str, dict[int, float]] = {}
        for number, time in self._sources(seats, world_size).items():
            for seat, one in sorted(time.seats.items()):
                if seat in seats:
                    found.setdefault(str(seat), {})[number] = log(one.step_s)
        return found

    # ------------------------------------------------------------ one round after the other

    def _by_nearness(self, world_size: int) -> list[Cell]:
        """At this world size first, then the widest; `solo` last."""
        return sorted(
            self.cells,
            key=lambda cell: (
                cell.point.kind != "each", cell.point.world_size != world_size, -cell.point.world_size, cell.name
            ),
        )  # fmt: skip

    def _sources(self, seats: Collection[int], world_size: int) -> dict[int, StepTime]:
        """By round, the nearest that has any of these seats; else the nearest there is."""
        found: dict[int, StepTime] = {}
        nearest = self._by_nearness(world_size)
        for wanted in (frozenset(seats), None):
            for cell in nearest:
                for number, time in cell.times.items():
                    if wanted is None or wanted & time.seats.keys():
                        found.setdefault(number, time)
        return dict(sorted(found.items()))

    def _cpu(self, number: int, time: StepTime) -> CpuStep | None:
        return next((cell.cpu.get(number) for cell in self.cells if cell.times.get(number) is time), None)

    def _times(self, seats: frozenset[int], world_size: int) -> dict[int, AloneTime]:
        sources = self._sources(seats, world_size)
        if not sources:
            return {}
        layout: Layout = self.by_seat(seats, world_size)
        if not layout:  # another seat stands for these
            layout = {"": {number: log(time.harmonic_s) for number, time in sources.items()}}
        fit = additive(layout)
        return {
            number: _alone(number, time, layout, fit.columns, fit.rows, self._cpu(number, time))
            for number, time in sources.items()
            if number in fit.rows
        }


def _alone(
    number: int,
    time: StepTime,
    layout: Layout,
    columns: Mapping[str, float],
    rows: Mapping[int, float],
    cpu: CpuStep | None,
) -> AloneTime:
    filled = {seat: exp(column.get(number, columns[seat] + rows[number])) for seat, column in layout.items()}
    known = {int(seat): value for seat, value in filled.items() if seat}
    return AloneTime(
        harmonic_s=harmonic(filled.values()),
        mean_s=fmean(filled.values()),
        seats=known,
        blocks=_blocks(time, columns) if known else time.blocks,
        epoch=time.epoch,
        use=_use(cpu, known),
        seats_measured=max(1, len(known.keys() & time.seats.keys())),
    )


def _blocks(time: StepTime, columns: Mapping[str, float]) -> Blocks:
    """Of the seats that had a turn in each block: what one of them is apart from the others is known from all
    rounds."""
    apart = {int(seat): exp(column) for seat, column in columns.items()}
    known = [(apart[seat], one.blocks) for seat, one in time.seats.items() if seat in apart]
    return by_rate(harmonic(apart.values()), known)


def _use(cpu: CpuStep | None, seats: Mapping[int, float]) -> Use | None:
    """Of the seats that were measured; all there are where another stands for them."""
    if cpu is None:
        return None
    found = [use for seat, use in cpu.seats.items() if seat in seats] or list(cpu.seats.values())
    return mean_of(found, len(found))
