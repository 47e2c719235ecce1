"""Rows of a running sweep: after each point, only the affected rows are computed again.

It runs on rank 0 between points, on cores that are about to be measured. A record changes:

    exchange  its own row; its curve's rows, if it is a single rank or alone on its node; its rivals' comparisons
    control   the rows that depend on it
    either    variance and drift of its pool

`rows()` equals the rows of `analyse(records)`, to the last bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Controls, Key, find_less_work
from scaling.analysis.measured.pools import Shared, of_pool, pool_of
from scaling.analysis.statistics.contrasts import Table
from scaling.analysis.table.catalogue import claims
from scaling.analysis.table.cell_rows import Measured, across_nodes, among, measured
from scaling.analysis.table.comparisons import (
    Beside,
    Contest,
    Loss,
    beside,
    comparable,
    contests,
    equal_losses,
    keys_of_series,
    numbered,
    series,
)
from scaling.analysis.table.rows import Row
from scaling.records.run import PointRecord


class _Place(NamedTuple):
    curve: Key
    curve_number: int
    group_number: int
    rivals: Key


class Analyser:
    """The analysis of a growing set of records; a later record of a key replaces the earlier."""

    def __init__(self, records: Iterable[PointRecord] = ()) -> None:
        self._controls = Controls()
        self._records: dict[str, dict[int, PointRecord]] = defaultdict(dict)
        self._resting: dict[Key, set[str]] = defaultdict(set)  # control -> cells that depend on it
        # By cell, in table order after `_place`.
        self._cells: dict[str, Cell] = {}
        self._series: dict[str, Key] = {}
        self._comparable: dict[str, Key] = {}
        self._places: dict[str, _Place] = {}
        self._measured: dict[str, Measured] = {}
        self._rows: dict[str, Row] = {}
        self._of_curve: dict[Key, list[str]] = {}
        self._rivals: dict[Key, list[str]] = {}
        self._contests: dict[Key, list[Contest]] = {}
        self._losses: dict[Key, Mapping[str, Loss]] = {}
        self._beside: Mapping[str, Beside] = {}
        # Since the last `rows`: cells with a new record, cells that depend on a change, whether a cell is new.
        self._renewed: set[str] = set()
        self._shaken: set[str] = set()
        self._shared: dict[Key, Shared] = {}
        self._has_new = False
        for record in records:
            self.add(record)

    def add(self, record: PointRecord) -> None:
        """Add a record and mark the affected cells; computing waits for `rows`."""
        if record.point.hosts:
            return
        if record.point.kind == "exchange":
            self._add_exchange(record)
        elif record.point.kind != "train":
            self._add_control(record)

    def rows(self) -> tuple[Row, ...]:
        """Return the table so far, equal to `analyse.rows`."""
        moved = self._place() if self._has_new else set()
        self._renewed |= {
            name for name in self._renewed | self._shaken if find_less_work(self._cells[name], self._controls)
        }
        for name in self._renewed:
            if self._cells[name].point.world_size == 1:
                self._shaken.update(self._of_curve[self._places[name].curve])
        self._pool()
        for name in self._renewed | self._shaken:
            self._measured[name] = self._measure(name)
        changed = self._renewed | self._shaken | moved | self._compare()
        for curve in {self._places[name].curve for name in changed}:
            names = self._of_curve[curve]
            self._rows.update(zip(names, across_nodes([self._among(name) for name in names]), strict=True))
        self._renewed, self._shaken = set(), set()
        return tuple(self._rows[name] for name in self._cells)

    def _add_exchange(self, record: PointRecord) -> None:
        name = record.point.cell
        by_round = self._records[name]
        by_round[record.point.round] = record
        cell = self._cells[name] = Cell([by_round[number] for number in sorted(by_round)])
        self._renewed.add(name)
        if name not in self._series:
            self._series[name], self._comparable[name] = series(cell.point), comparable(cell.point)
            self._note_controls(cell)
            self._has_new = True

    def _note_controls(self, cell: Cell) -> None:
        for keys in self._controls.keys_behind(cell.point).values():
            for key in keys:
                self._resting[key].add(cell.name)

    def _add_control(self, record: PointRecord) -> None:
        plains = len(self._controls.plains)
        key = self._controls.put(record)
        if len(self._controls.plains) != plains:  # baselines of strategies may change
            for cell in self._cells.values():
                self._note_controls(cell)
            self._shaken.update(self._cells)
        self._shaken.update(self._resting.get(key, ()))

    def _place(self) -> set[str]:
        """Sort all cells; return those with a changed place."""
        keys = keys_of_series({name: (self._series[name], cell.point) for name, cell in self._cells.items()})
        names = sorted(self._cells, key=lambda name: (keys[name], self._cells[name].point.world_size))
        self._cells = {name: self._cells[name] for name in names}
        curves, groups = numbered(keys[name] for name in names), numbered(self._comparable[name] for name in names)
        before, self._places = self._places, {}
        self._of_curve, self._rivals = defaultdict(list), defaultdict(list)
        for name, cell in self._cells.items():
            curve, group = keys[name], self._comparable[name]
            place = _Place(curve, curves[curve], groups[group], (group, cell.point.world_size))
            self._places[name] = place
            self._of_curve[place.curve].append(name)
            self._rivals[place.rivals].append(name)
        return self._moved(before)

    def _moved(self, before: Mapping[str, _Place]) -> set[str]:
        """Also marks all cells of a curve that got a new cell."""
        moved = {name for name, place in self._places.items() if before.get(name) != place}
        for name in moved:
            curve = self._places[name].curve
            if name not in before or before[name].curve != curve:
                self._shaken.update(self._of_curve[curve])
        self._has_new = False
        return moved

    def _pool(self) -> None:
        """Compute the changed pools again, and mark their rows."""
        changed = {pool_of(self._cells[name].point, self._controls) for name in self._renewed | self._shaken}
        for key in changed:
            found = of_pool(
                (cell for cell in self._cells.values() if self._is_in(cell, key) and claims(cell)), self._controls
            )
            if key not in self._shared or found != self._shared[key]:
                self._shared[key] = found
                self._shaken.update(cell.name for cell in self._cells.values() if self._is_in(cell, key))

    def _is_in(self, cell: Cell, key: Key) -> bool:
        return pool_of(cell.point, self._controls) == key

    def _measure(self, name: str) -> Measured:
        curve = self._of_curve[self._places[name].curve]
        singles = [cell for cell in map(self._cells.__getitem__, curve) if cell.point.world_size == 1]
        cell = self._cells[name]
        pool = self._shared[pool_of(cell.point, self._controls)]
        return measured(cell, self._controls, singles[-1] if singles else None, pool)

    def _compare(self) -> set[str]:
        """Compare again; return the cells with a changed comparison."""
        for group in {self._places[name].rivals for name in self._renewed}:
            cells = [cell for name in self._rivals[group] if (cell := self._cells[name]).times]
            self._contests[group], self._losses[group] = list(contests(cells)), equal_losses(cells)
        order = sorted(self._contests)
        found = [contest for group in order for contest in self._contests[group]]
        losses = {name: loss for of_group in self._losses.values() for name, loss in of_group.items()}
        table = Table([contest.layout for contest in found])
        before = self._beside
        self._beside = beside(self._cells.values(), table, found, losses, self._controls.plain)
        return {name for name, said in self._beside.items() if before.get(name) != said}

    def _among(self, name: str) -> Measured:
        place = self._places[name]
        return among(
            self._measured[name],
            curve=place.curve_number,
            group=place.group_number,
            beside=self._beside[name],
        )
