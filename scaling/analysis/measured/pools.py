"""Which cells share a work, so that one variance is made of all of them. Pure.

They are the exchanges of one framework's work on one kind of device at all world sizes, and the plain loops that
these rest on; not `comm`, which does another work.
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
# Whether points still became faster or slower while they were measured, found in all of a kind together. Pure.
#
# The slope of one point's windows is mostly noise, and windows of one point are not independent. The mean of the
# slopes of many points is tested by Student's t. Units are points that were measured by themselves, and epochs
# of those that took turns: a machine that wanders hits all of a block alike, so that their slopes are one and
# the same look at it. The kinds of points of one work are tested at 1 % in all (Bonferroni): each of them would
# else add its own false alarms.


ERROR = 0.01
LEAST_UNITS = 3
# Of a step, over the measured windows: less is not worth a stamp.
LEAST = 0.005


class Drift(Record, frozen=True, kw_only=True):
    """Points of one kind change by this part of a step from each window to the next, over so many windows; `t` is
    Student's over so many units."""

    kind: Kind
    per_window: float
    windows: int
    points: int
    units: int
    t: float

    @property
    def whole(self) -> float:
        """From the first to the last measured window."""
        return self.per_window * (self.windows - 1)

    def t_is_beyond(self, confidence: float) -> bool:
        """Whether noise alone would seldom have such a `t`."""
        return abs(self.t) > quantile(self.units - 1, confidence)

    def __str__(self) -> str:
        change = "faster" if self.per_window < 0 else "slower"
        size = f"{100 * abs(self.per_window):.2f} % {change} from window to window"
        return f"{self.kind} became {size}, {100 * abs(self.whole):.1f} % in all ({self.points} points)"


def drifts(by_kind: Mapping[Kind, Iterable[Sequence[Blocks]]]) -> tuple[Drift, ...]:
    """Those kinds of points whose mean slope is not noise; points that took turns come together."""
    slopes = {kind: list(filter(None, map(_slopes, units))) for kind, units in sorted(by_kind.items())}
    found = [_drift(kind, units) for kind, units in slopes.items() if len(units) >= LEAST_UNITS]
    return tuple(one for one in found if one.t_is_beyond(1 - ERROR / len(found)) and abs(one.whole) > LEAST)


def slope(windows: Blocks) -> float | None:
    """Of a line through logarithms of step times, per window, by least squares; None of fewer than three."""
    if len(windows) < 3:
        return None
    middle, level = fmean(windows), fmean(windows.values())
    squares = sum((index - middle) ** 2 for index in windows)
    return sum((index - middle) * (value - level) for index, value in windows.items()) / squares


class _Slope(NamedTuple):
    """Of one point, over so many windows."""

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
    """What exchanges share whose variance is one."""
    return (controls.plain(point.strategy), point.reference, point.hardware)


class Shared(NamedTuple):
    """What the cells of one pool tell together: the variance of a cell's logarithm that rounds do not explain,
    which kinds of points drifted, and how many exchanges went on after their windows."""

    residual: Residual | None
    drifts: tuple[Drift, ...]
    soaked: int


def shared(cells: Iterable[Cell], controls: Controls, claims: Callable[[Cell], bool]) -> dict[Key, Shared]:
    """By pool; cells of which `claims` does not hold are left out."""
    by_pool: dict[Key, list[Cell]] = {}
    for cell in cells:
        by_pool.setdefault(pool_of(cell.point, controls), []).append(cell)
    return {key: of_pool(filter(claims, found), controls) for key, found in by_pool.items()}


def of_pool(cells: Iterable[Cell], controls: Controls) -> Shared:
    """Of the exchanges of one pool and the plain loops behind them; each claims an efficiency."""
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
    """Their points' windows: those of one epoch of a round together, others by themselves. All as they were at
    first: what is disturbed comes again until the time for that is spent, so that the first blocks of a round
    would look quicker than the last."""
    found: dict[tuple[int, int | str], list[Blocks]] = {}
    for cell in cells:
        for number, time in cell.at_first:
            found.setdefault((number, cell.name if time.epoch is None else time.epoch), []).append(time.blocks)
    return list(found.values())


def _plain_loops(cell: Cell, controls: Controls) -> dict[str, Mapping[int, float]]:
    """The loops on the first and the last device of a row alone, since all of them would outnumber the exchanges,
    and on all at once."""
    point = cell.point
    found: dict[str, Mapping[int, float]] = {}
    for batch_size in {point.workload.batch_size, point.reference.batch_size}:
        alone = controls.by_seat(cell, batch_size)
        seats = sorted(alone, key=int)[:: max(1, len(alone) - 1)]
        # One after the other in one stretch of the run, seats resemble each other more than cells do, whose rest
        # would come out too small.
        for seat in seats if _took_turns(cell, controls, batch_size) else seats[:1]:
            found[f"alone/{batch_size}/{seat}"] = alone[seat]
    together = controls.together(point)
    if together is not None and together.times:
        found[together.name] = _logs(together)
    return found


def _took_turns(cell: Cell, controls: Controls, batch_size: int) -> bool:
    """Whether the plain loops alone took turns with other points in every round."""
    return all(time.epoch is not None for time in controls.times_alone(cell, batch_size).values())


def _logs(cell: Cell) -> dict[int, float]:
    return {number: log(time.step_s) for number, time in cell.times.items()}
