"""Intervals over rounds, paired differences, steady state. Pure; SciPy does the statistics.

The unit of repetition is the round: windows of one point follow each other and are not independent,
so no interval is ever formed from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from statistics import fmean

from scaling.records.point import Record

STEADY_WINDOWS = 4


class Estimate(Record, frozen=True, kw_only=True):
    """A mean over `n` rounds with its confidence interval; `low` and `high` are None when n < 2."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """Half of the interval, in the unit of the mean; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@lru_cache(maxsize=256)
def _quantile(n: int, confidence: float) -> float:
    # Imported here: every rank of a launch starts with this module, only rank 0 forms intervals.
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(n - 1, (1 + confidence) / 2))


def interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean of `values`, one per round, with Student's interval: mean +- t(n-1) s / sqrt(n).

    Raises ValueError when there is no value.
    """
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one round")
    mean = fmean(values)
    if n == 1:
        return Estimate(mean=mean, low=None, high=None, n=1)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = _quantile(n, confidence) * deviation / sqrt(n)
    return Estimate(mean=mean, low=mean - half, high=mean + half, n=n)


def paired(a: Sequence[float], b: Sequence[float], confidence: float = 0.99) -> Estimate:
    """Return the relative difference b/a - 1 with its interval; a[i] and b[i] are of the same round.

    Pairing removes the drift that hits all points of a round alike. The default is 99 %, not 95 %,
    because one table makes many comparisons: at 95 % one in twenty of them would find a difference
    between equals. Raises ValueError when the lengths differ or are 0.
    """
    return interval([y / x - 1 for x, y in zip(a, b, strict=True)], confidence)


def is_distinguishable(difference: Estimate) -> bool:
    """Whether the interval of a difference leaves zero; never without an interval."""
    low, high = difference.low, difference.high
    return low is not None and high is not None and (low > 0 or high < 0)


def steady(seconds: Sequence[float], tolerance: float = 0.05) -> bool:
    """Whether the warm-up is over: no drift is left in the `seconds` of windows with equal steps.

    The mean of the last two windows must be within `tolerance` (a fraction) of the two before.
    """
    if len(seconds) < STEADY_WINDOWS:
        return False
    before, last = fmean(seconds[-4:-2]), fmean(seconds[-2:])
    return abs(last - before) <= tolerance * before
