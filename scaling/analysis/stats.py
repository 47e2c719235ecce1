"""Intervals over rounds, steady state. Pure; SciPy does the statistics.

The unit of repetition is the round, in which each process is started once: windows of one point follow each other
and are not independent, so no interval is ever formed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp, log, sqrt
from statistics import fmean

from msgspec.structs import replace

from scaling.records.point import Record

STEADY_WINDOWS = 4
TRIMMED = 0.2


class Estimate(Record, frozen=True, kw_only=True):
    """A mean over `n` rounds with its confidence interval, Student's t with `df` degrees of freedom, or of several
    rivals the studentized range; `low`, `high` and `df` are None when n < 2. Of ratios and rates the mean is the
    geometric one, and its interval reaches farther up than down."""

    mean: float
    low: float | None
    high: float | None
    n: int
    df: int | None = None

    @property
    def half_width(self) -> float | None:
        """Half of the interval, in the unit of the mean; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def holds_zero(self) -> bool:
        """Whether noise explains it; never without an interval."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    def times(self, factor: float) -> Estimate:
        """The same of a multiple."""
        return replace(self, mean=self.mean * factor, **self._ends(lambda end: end * factor))

    def plus(self, more: float) -> Estimate:
        """The same of a sum."""
        return replace(self, mean=self.mean + more, **self._ends(lambda end: end + more))

    def exp(self) -> Estimate:
        """Of what this is the logarithm of."""
        return replace(self, mean=exp(self.mean), **self._ends(exp))

    def _ends(self, changed: Callable[[float], float]) -> dict[str, float | None]:
        ends = {"low": self.low, "high": self.high}
        return {name: None if end is None else changed(end) for name, end in ends.items()}


@lru_cache(maxsize=256)
def quantile(df: int, confidence: float = 0.95) -> float:
    """Of Student's t, two-sided."""
    # Imported here: every rank of a launch starts with this module, only rank 0 forms intervals.
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(df, (1 + confidence) / 2))


def variance(values: Sequence[float]) -> float:
    """Of the sample: over n - 1."""
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def student(mean: float, variance_of_mean: float, n: int, df: int, confidence: float = 0.95) -> Estimate:
    """A mean over `n` rounds with Student's interval: mean +- t(df) sqrt(variance of the mean)."""
    half = quantile(df, confidence) * sqrt(variance_of_mean)
    return Estimate(mean=mean, low=mean - half, high=mean + half, n=n, df=df)


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
    return student(mean, variance(values) / n, n, n - 1, confidence)


def geometric(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of `values`, one per round, with Student's interval of their logarithms."""
    return interval([log(value) for value in values]).exp()


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest fifth (Tukey & McLaughlin, 1963)."""
    ordered, cut = sorted(values), _cut(len(values))
    return fmean(ordered[cut : len(ordered) - cut])


def trimmed_variance(values: Sequence[float]) -> float | None:
    """Return the variance of `trimmed_mean` if the values are independent: that of the winsorized values over
    n (1 - 2 x 0.2)^2 (Tukey & McLaughlin, 1963); None of fewer than two values."""
    ordered, count = sorted(values), len(values)
    if count < 2:
        return None
    cut = _cut(count)
    low, high = ordered[cut], ordered[count - cut - 1]
    return variance([min(max(value, low), high) for value in ordered]) * count / (count - 2 * cut) ** 2


def trimmed_df(count: int) -> int:
    """Return the degrees of freedom of that variance: one less than the values that are kept (Yuen, 1974)."""
    return count - 2 * _cut(count) - 1


def _cut(count: int) -> int:
    """How many of so many values are left out at either end."""
    return int(TRIMMED * count)


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
