"""Whether points still became faster or slower while they were measured, found in all of a kind together. Pure.

The slope of one point's windows is mostly noise, and windows of one point are not independent. The mean of the
slopes of many points is tested by Student's t. Units are points that were measured by themselves, and epochs of
those that took turns: a machine that wanders hits all of a block alike, so that their slopes are one and the same
look at it. The kinds of points of one work are tested at 1 % in all (Bonferroni): each of them would else add its
own false alarms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import sqrt
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.stats import quantile, variance
from scaling.analysis.step_time import Blocks
from scaling.records.point import Kind, Record

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
