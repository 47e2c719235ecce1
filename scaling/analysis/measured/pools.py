"""Cells that share a work: their pooled variance, and drift of their windows.

A pool is the exchanges of one framework's work on one kind of device at all world sizes, and the plain loops
behind them. `comm` is not in it, because it does another work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import log, sqrt
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Controls, Key
from scaling.analysis.measured.step_time import Blocks
from scaling.analysis.statistics.intervals import Residual, quantile, residual, variance
from scaling.records.point import Kind, Point, Record

# ---------------------------------------------------------------- drift
#
# The mean slope of many points of a kind is tested by Student's t, because one point's slope is mostly noise.
# A unit is a point measured alone or an epoch: the machine's drift hits all points of an epoch equally.
# The kinds of one work are tested at ERROR in all (Bonferroni).

ERROR = 0.01
LEAST_UNITS = 3
# Least change over the measured windows worth a stamp, as a fraction of a step.
LEAST = 0.005


class Drift(Record, frozen=True, kw_only=True):
    """Drift of points of one kind: mean change per window (fraction of a step), and `t` over units."""

    kind: Kind
    per_window: float
    windows: int
    points: int
    units: int
    t: float

    @property
    def whole(self) -> float:
        """Change from the first to the last measured window."""
        return self.per_window * (self.windows - 1)

    def t_is_beyond(self, confidence: float) -> bool:
        return abs(self.t) > quantile(self.units - 1, confidence)

    def __str__(self) -> str:
        change = "faster" if self.per_window < 0 else "slower"
        size = f"{100 * abs(self.per_window):.2f} % {change} from window to window"
        return f"{self.kind} became {size}, {100 * abs(self.whole):.1f} % in all ({self.points} points)"


def drifts(by_kind: Mapping[Kind, Iterable[Sequence[Blocks]]]) -> tuple[Drift, ...]:
    """Return the kinds of points with a significant drift; each unit is a sequence of points."""
    slopes = {kind: list(filter(None, map(_slopes, units))) for kind, units in sorted(by_kind.items())}
    found = [_drift(kind, units) for kind, units in slopes.items() if len(units) >= LEAST_UNITS]
    return tuple(one for one in found if one.t_is_beyond(1 - ERROR / len(found)) and abs(one.whole) > LEAST)


def slope(windows: Blocks) -> float | None:
    """Return the least-squares slope of log step times per window; None for fewer than three windows."""
    if len(windows) < 3:
        return None
    middle, level = fmean(windows), fmean(windows.values())
    squares = sum((index - middle) ** 2 for index in windows)
    return sum((index - middle) * (value - level) for index, value in windows.items()) / squares


class _Slope(NamedTuple):
    per_window: float
    windows: int


def _slopes(points: Iterable[Blocks]) -> list[_Slope]:
    found = ((slope(windows), len(windows)) for windows in points)
    return [_Slope(per_window, count) for per_window, count in found if per_window is not None]


def _drift(kind: Kind, units: Sequence[Sequence[_Slope]]) -> Drift:
    slopes = [fmean(one.per_window for one in unit) for unit in units]
    error, mean = sqrt(variance(slopes) / len(slopes)), fmean(slopes)
    points = list(chain.from_iterable(units))
    return Drift(
        kind=kind,
        per_window=mean,
        windows=round(fmean(one.windows for one in points)),
        points=len(points),
        units=len(units),
        t=mean / error if error else 0.0,
    )


# ---------------------------------------------------------------- pools


def pool_of(point: Point, controls: Controls) -> Key:
    """Return the key of a point's pool."""
    return (controls.plain(point.strategy), point.reference, point.hardware)


class Shared(NamedTuple):
    """Facts of one pool: residual of a cell's logarithm, drifts, number of soaked exchanges."""

    residual: Residual | None
    drifts: tuple[Drift, ...]
    soaked: int


def shared(cells: Iterable[Cell], controls: Controls, claims: Callable[[Cell], bool]) -> dict[Key, Shared]:
    """Return the facts of each pool, without the cells for which `claims` is false."""
    by_pool: dict[Key, list[Cell]] = {}
    for cell in cells:
        by_pool.setdefault(pool_of(cell.point, controls), []).append(cell)
    return {key: of_pool(filter(claims, found), controls) for key, found in by_pool.items()}


def of_pool(cells: Iterable[Cell], controls: Controls) -> Shared:
    """Return the facts of one pool of exchanges, each of which claims an efficiency."""
    layout: dict[str, Mapping[int, float]] = {}
    kinds: dict[Kind, dict[str, Cell]] = {}
    soaked = 0
    for cell in cells:
        if cell.times:
            soaked += bool(cell.soaked)
            layout[cell.name] = _logs(cell)
            layout.update(_plain_loops(cell, controls))
            for one in (cell, *controls.cells_behind(cell.point)):
                kinds.setdefault(one.point.kind, {})[one.name] = one
    by_kind = {kind: _side_by_side(one for _, one in sorted(found.items())) for kind, found in kinds.items()}
    return Shared(residual(dict(sorted(layout.items()))), drifts(by_kind), soaked)


def _side_by_side(cells: Iterable[Cell]) -> list[list[Blocks]]:
    """Windows of the points of one epoch and round together, of other points alone.

    First tries only: repeated windows would make the first blocks of a round look faster than the last.
    """
    found: dict[tuple[int, int | str], list[Blocks]] = {}
    for cell in cells:
        for number, time in cell.at_first:
            found.setdefault((number, cell.name if time.epoch is None else time.epoch), []).append(time.blocks)
    return list(found.values())


def _plain_loops(cell: Cell, controls: Controls) -> dict[str, Mapping[int, float]]:
    """First and last device alone, so that these do not outnumber exchanges; and all at once."""
    point = cell.point
    found: dict[str, Mapping[int, float]] = {}
    for batch_size in {point.workload.batch_size, point.reference.batch_size}:
        alone = controls.by_seat(cell, batch_size)
        seats = sorted(alone, key=int)[:: max(1, len(alone) - 1)]
        # Seats measured one after the other resemble each other, which would make the residual too small.
        for seat in seats if _took_turns(cell, controls, batch_size) else seats[:1]:
            found[f"alone/{batch_size}/{seat}"] = alone[seat]
    together = controls.together(point)
    if together is not None and together.times:
        found[together.name] = _logs(together)
    return found


def _took_turns(cell: Cell, controls: Controls, batch_size: int) -> bool:
    return all(time.epoch is not None for time in controls.times_alone(cell, batch_size).values())


def _logs(cell: Cell) -> dict[int, float]:
    return {number: log(time.step_s) for number, time in cell.times.items()}
