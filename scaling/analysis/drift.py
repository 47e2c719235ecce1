"""Whether points still became faster or slower while they were measured, found in all of a kind together. Pure.

The slope of one point's windows is mostly noise, and windows of one point are not independent. The mean of the
slopes of many points is tested by Student's t, with points as units: noise that lasts does it no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean

from scaling.analysis.stats import quantile, variance
from scaling.analysis.step_time import Blocks
from scaling.records.point import Kind, Record

CONFIDENCE = 0.99
LEAST_POINTS = 3
# Of a step, over the measured windows: less is not worth a stamp.
LEAST = 0.005


class Drift(Record, frozen=True, kw_only=True):
    """Points of one kind change by this part of a step from each window to the next, over so many windows; `t` is
    Student's."""

    kind: Kind
    per_window: float
    windows: int
    points: int
    t: float

    @property
    def whole(self) -> float:
        """From the first to the last measured window."""
        return self.per_window * (self.windows - 1)

    def __str__(self) -> str:
        change = "faster" if self.per_window < 0 else "slower"
        size = f"{100 * abs(self.per_window):.2f} % {change} from window to window"
        return f"{self.kind} became {size}, {100 * abs(self.whole):.1f} % in all ({self.points} points)"


def drifts(by_kind: Mapping[Kind, Sequence[Blocks]]) -> tuple[Drift, ...]:
    """Those kinds of points whose mean slope is not noise."""
    found = (_drift(kind, windows) for kind, windows in sorted(by_kind.items()))
    return tuple(one for one in found if one is not None)


def slope(windows: Blocks) -> float | None:
    """Of a line through logarithms of step times, per window, by least squares; None of fewer than three."""
    if len(windows) < 3:
        return None
    middle, level = fmean(windows), fmean(windows.values())
    squares = sum((index - middle) ** 2 for index in windows)
    return sum((index - middle) * (value - level) for index, value in windows.items()) / squares


def _drift(kind: Kind, points: Iterable[Blocks]) -> Drift | None:
    told = [(found, len(windows)) for windows in points if (found := slope(windows)) is not None]
    slopes = [found for found, _ in told]
    if len(slopes) < LEAST_POINTS:
        return None
    error = sqrt(variance(slopes) / len(slopes))
    mean = fmean(slopes)
    one = Drift(
        kind=kind,
        per_window=mean,
        windows=round(fmean(count for _, count in told)),
        points=len(slopes),
        t=mean / error if error else 0.0,
    )
    is_told = abs(one.t) > quantile(len(slopes) - 1, CONFIDENCE) and abs(one.whole) > LEAST
    return one if is_told else None
