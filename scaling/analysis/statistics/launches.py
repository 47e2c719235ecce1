"""Whether two launches differ: Welch's test of two means, and Holm's procedure over many. Pure.

Launches share no round, so that nothing cancels between them: each side brings the mean of its logarithms with the
variance of that mean, and the difference has the sum of both (Welch, "The generalization of 'Student's' problem
when several different population variances are involved", Biometrika 34, 1947) and Satterthwaite's degrees of
freedom.
Over m tests the one with the k-th smallest p is held against 0.05 / (m - k + 1), and from the first that fails on
nothing more is told (Holm, "A simple sequentially rejective multiple test procedure", 1979): the chance to tell
apart any two that are equal is at most 5 %, whatever the tests have in common.

Three runs a side leave Welch's test 2 to 4 degrees of freedom, on which the first of six tests asks for 5 standard
errors and more, and 3.5 on 8. Cells that do one work on as many devices are about equally noisy, so that those
which seem quieter than their mean share its variance and its degrees of freedom (`pooled`; as rounds do in
intervals.py); those which are noisier keep their own. `python -m tests.bench.gates` prints what comes of it, also
where noise is not equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.statistics import intervals
from scaling.analysis.statistics.intervals import Estimate, quantile, satterthwaite

ALPHA = 0.05
# More units than this nobody starts: the answer is then that there are too many.
MOST_UNITS = 1000


class Side(NamedTuple):
    """The mean of one side over `n` units, rounds or runs; `variance` is that of the mean, on `df` degrees of
    freedom, None of a single unit."""

    mean: float
    variance: float | None
    df: float
    n: int


class Difference(NamedTuple):
    """The second side's mean less the first's, with its standard error on `df` degrees of freedom; `n` is the
    number of units of the side that has fewer. `se` is None where one side is a single unit."""

    mean: float
    se: float | None
    df: float
    n: int

    def half(self, level: float) -> float | None:
        """Half of the interval that misses the truth in a fraction `level` of cases; None without an error."""
        return None if self.se is None else quantile(self.df, 1 - level) * self.se

    @property
    def p(self) -> float:
        """How often equal sides differ by as much or more; 1 where nobody can tell."""
        from scipy.special import stdtr  # type: ignore[import-untyped]

        if self.se is None:
            return 1.0
        if self.se == 0:
            return 0.0 if self.mean else 1.0
        return float(2 * stdtr(self.df, -abs(self.mean) / self.se))


def of_estimate(estimate: Estimate, *, logarithm: bool = True) -> Side:
    """A side that is one launch, of an estimate over its rounds: mean and variance as its interval was formed, of
    logarithms for ratios and rates."""
    mean = log(estimate.mean) if logarithm else estimate.mean
    if estimate.low is None or estimate.high is None:
        return Side(mean, None, 0.0, estimate.n)
    width = log(estimate.high / estimate.low) if logarithm else estimate.high - estimate.low
    df = estimate.df or estimate.n - 1
    return Side(mean, (width / 2 / quantile(df)) ** 2, df, estimate.n)


def of_values(values: Sequence[float]) -> Side:
    """A side of several launches, a value of each; at least one."""
    n = len(values)
    return Side(fmean(values), intervals.variance(values) / n if n > 1 else None, n - 1, n)


def welch(base: Side, new: Side) -> Difference:
    """Return how much the new side is above the base."""
    mean, n = new.mean - base.mean, min(base.n, new.n)
    if base.variance is None or new.variance is None:
        return Difference(mean, None, 0.0, n)
    df = satterthwaite([(base.variance, base.df), (new.variance, new.df)])
    return Difference(mean, sqrt(base.variance + new.variance), df, n)


def pooled(found: Sequence[Difference]) -> list[Difference]:
    """Differences that should be equally noisy: each with the larger of its own variance and the mean of all.

    The mean has the degrees of freedom of all. It never makes a noisy one look quieter, as it would if all were
    shrunk towards it: equal sides of unequal noise were then called different in up to 11 of 100 simulations.
    """
    known = [one for one in found if one.se is not None and one.df > 0]
    if len(known) < 2:
        return list(found)
    df = sum(one.df for one in known)
    se = sqrt(sum(one.df * one.se**2 for one in known if one.se is not None) / df)
    return [one if one.se is None or one.se >= se else one._replace(se=se, df=df) for one in found]


def holm(differences: Sequence[Difference]) -> list[float]:
    """Return the level at which each is tested: its interval at that level leaves zero where Holm's procedure
    tells it from zero."""
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
    """How many units a side would take until half of the interval is below `half`, as noisy as these; None where
    they are over `MOST_UNITS` or nobody can tell."""
    if found.se is None or found.n < 2 or half <= 0:
        return None
    for n in range(found.n + 1, MOST_UNITS + 1):
        df = found.df * (n - 1) / (found.n - 1)
        if quantile(df, 1 - level) * found.se * sqrt(found.n / n) < half:
            return n
    return None
