"""Tests between launches: Welch's test of two means, and Holm's procedure for many tests.

Launches share no round, so nothing cancels between them. The variance of a difference is the sum of both sides'
(Welch, "The generalization of 'Student's' problem when several different population variances are involved",
Biometrika 34, 1947). Of m tests, the one with the k-th smallest p has the level 0.05 / (m - k + 1), until the
first one fails (Holm, "A simple sequentially rejective multiple test procedure", 1979). The chance of any false
difference is at most 5 %.

With three runs per side, Welch's test has only 2 to 4 degrees of freedom. Cells with the same work and number of
devices are about equally noisy, so their variances are pooled. `python -m tests.bench.gates` prints the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.statistics import intervals
from scaling.analysis.statistics.intervals import Estimate, quantile, satterthwaite

ALPHA = 0.05
# `units_needed` gives up here.
MOST_UNITS = 1000


class Side(NamedTuple):
    """One side's mean over `n` rounds or runs; `variance` is the mean's (None for one unit), on `df`."""

    mean: float
    variance: float | None
    df: float
    n: int


class Difference(NamedTuple):
    """The second side's mean minus the first's, with its standard error (None if a side is one unit).

    `n` is the number of units of the smaller side.
    """

    mean: float
    se: float | None
    df: float
    n: int

    def half(self, level: float) -> float | None:
        """Return half of the interval that misses the truth in a fraction `level` of cases; None without `se`."""
        return None if self.se is None else quantile(self.df, 1 - level) * self.se

    @property
    def p(self) -> float:
        """Two-sided p-value of no difference; 1 without a standard error."""
        from scipy.special import stdtr  # type: ignore[import-untyped]

        if self.se is None:
            return 1.0
        if self.se == 0:
            return 0.0 if self.mean else 1.0
        return float(2 * stdtr(self.df, -abs(self.mean) / self.se))


def of_estimate(estimate: Estimate, *, logarithm: bool = True) -> Side:
    """Return one launch's estimate as a side; `logarithm` for ratios and rates."""
    mean = log(estimate.mean) if logarithm else estimate.mean
    if estimate.low is None or estimate.high is None:
        return Side(mean, None, 0.0, estimate.n)
    width = log(estimate.high / estimate.low) if logarithm else estimate.high - estimate.low
    df = estimate.df or estimate.n - 1
    return Side(mean, (width / 2 / quantile(df)) ** 2, df, estimate.n)


def of_values(values: Sequence[float]) -> Side:
    """Return several launches as a side, one value each; at least one."""
    n = len(values)
    return Side(fmean(values), intervals.variance(values) / n if n > 1 else None, n - 1, n)


def welch(base: Side, new: Side) -> Difference:
    """Return the new side minus the base."""
    mean, n = new.mean - base.mean, min(base.n, new.n)
    if base.variance is None or new.variance is None:
        return Difference(mean, None, 0.0, n)
    df = satterthwaite([(base.variance, base.df), (new.variance, new.df)])
    return Difference(mean, sqrt(base.variance + new.variance), df, n)


def pooled(found: Sequence[Difference]) -> list[Difference]:
    """Return each difference with the larger of its own variance and the mean of all (on the df of all).

    Noisy ones keep their own: shrinking all towards the mean gave up to 11 % false differences in simulations.
    """
    known = [one for one in found if one.se is not None and one.df > 0]
    if len(known) < 2:
        return list(found)
    df = sum(one.df for one in known)
    se = sqrt(sum(one.df * one.se**2 for one in known if one.se is not None) / df)
    return [one if one.se is None or one.se >= se else one._replace(se=se, df=df) for one in found]


def holm(differences: Sequence[Difference]) -> list[float]:
    """Return each difference's level: its interval at that level excludes zero if Holm's procedure reports it."""
    order = sorted(range(len(differences)), key=lambda at: differences[at].p)
    levels = [ALPHA] * len(differences)
    level, goes_on = ALPHA, True
    for place, at in enumerate(order):
        if goes_on:
            level = ALPHA / (len(order) - place)
            goes_on = differences[at].p < level
        levels[at] = level
    return levels


def units_needed(found: Difference, level: float, half: float) -> int | None:
    """Return the units per side until half of the interval is below `half`; None if too many or unknown."""
    if found.se is None or found.n < 2 or half <= 0:
        return None
    for n in range(found.n + 1, MOST_UNITS + 1):
        df = found.df * (n - 1) / (found.n - 1)
        if quantile(df, 1 - level) * found.se * sqrt(found.n / n) < half:
            return n
    return None
