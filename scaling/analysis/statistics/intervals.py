"""Confidence intervals over rounds, steady state, and variances pooled over the cells that share a work.

Windows of one point are not independent, so no interval is formed from them. A row of three rounds has only 2
degrees of freedom. So the model y = round + cell + rest of logarithms of step times over all cells gives (rounds -
1) (cells - 1) of them, with guards against unequal noise ("Intervals" in scaling/analysis/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import exp, fsum, log, sqrt
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.records.point import Record

# ---------------------------------------------------------------- one row alone

STEADY_WINDOWS = 4
TRIMMED = 0.2


class Estimate(Record, frozen=True, kw_only=True):
    """A mean over `n` rounds with its interval (Student's t or studentized range, on `df`); none if n < 2.

    The mean of ratios and rates is geometric, so their interval is not symmetric.
    """

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
        """Whether the interval holds zero; False without an interval."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high

    def times(self, factor: float) -> Estimate:
        """Return the estimate of the value times `factor`."""
        return replace(self, mean=self.mean * factor, **self._ends(lambda end: end * factor))

    def plus(self, more: float) -> Estimate:
        """Return the estimate of the value plus `more`."""
        return replace(self, mean=self.mean + more, **self._ends(lambda end: end + more))

    def exp(self) -> Estimate:
        """Return the estimate of the exponential."""
        return replace(self, mean=exp(self.mean), **self._ends(exp))

    def _ends(self, changed: Callable[[float], float]) -> dict[str, float | None]:
        ends = {"low": self.low, "high": self.high}
        return {name: None if end is None else changed(end) for name, end in ends.items()}


@lru_cache(maxsize=1024)
def quantile(df: float, confidence: float = 0.95) -> float:
    """Return the two-sided quantile of Student's t; `df` need not be whole."""
    # Imported here, because every rank imports this module and only rank 0 forms intervals.
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(df, (1 + confidence) / 2))


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum of independent mean squares, given as (value, df).

    If all values are 0, it is the sum of their degrees of freedom.

    Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics 2 (1946).
    """
    whole = fsum(value for value, _ in parts)
    if not whole:
        return fsum(df for _, df in parts)
    return 1 / fsum((value / whole) ** 2 / df for value, df in parts)


def variance(values: Sequence[float]) -> float:
    """Return the sample variance (over n - 1)."""
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def student(mean: float, variance_of_mean: float, n: int, df: int, confidence: float = 0.95) -> Estimate:
    """Return Student's interval over `n` rounds: mean +- t(df) sqrt(variance of the mean)."""
    half = quantile(df, confidence) * sqrt(variance_of_mean)
    return Estimate(mean=mean, low=mean - half, high=mean + half, n=n, df=df)


def interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean of one value per round with Student's interval. Raises ValueError without a value."""
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
    """Return the variance of `trimmed_mean` by the winsorized values (ibid.); None for fewer than two values."""
    ordered, count = sorted(values), len(values)
    if count < 2:
        return None
    cut = _cut(count)
    low, high = ordered[cut], ordered[count - cut - 1]
    return variance([min(max(value, low), high) for value in ordered]) * count / (count - 2 * cut) ** 2


def trimmed_df(count: int) -> int:
    """Return the degrees of freedom of `trimmed_variance`: the number of kept values - 1 (Yuen, 1974)."""
    return count - 2 * _cut(count) - 1


def _cut(count: int) -> int:
    return int(TRIMMED * count)


def is_distinguishable(difference: Estimate) -> bool:
    """Return whether the interval of a difference excludes zero; False without an interval."""
    low, high = difference.low, difference.high
    return low is not None and high is not None and (low > 0 or high < 0)


def steady(seconds: Sequence[float], tolerance: float = 0.05) -> bool:
    """Return whether the last two windows took as long as the two before, within the fraction `tolerance`."""
    if len(seconds) < STEADY_WINDOWS:
        return False
    before, last = fmean(seconds[-4:-2]), fmean(seconds[-2:])
    return abs(last - before) <= tolerance * before


# ---------------------------------------------------------------- pooling

# A contrast keeps its own variance if that is over GUARD times the pooled one; else OWN_SHARE of it (shrinkage:
# Smyth, "Linear models and empirical Bayes methods", 2004). Chosen by simulation (tests/bench/intervals.py).
GUARD = 3.0
OWN_SHARE = 0.6
# Part of the variance implied by windows: this is an estimate too, and the larger of two estimates is biased up.
FLOOR = 0.5
# Variance of a difference of two cells, in that of one.
CONTRAST = 2.0
# Added before degrees of freedom are rounded down: a rounding error must not cost a whole one.
SLACK = 1e-9

# Column -> row -> logarithm. Columns are cells or seats, rows are rounds.
Layout = Mapping[str, Mapping[int, float]]


class Fit(NamedTuple):
    """An additive fit: columns less their mean, levels of rows, variance and degrees of freedom of the rest."""

    columns: Mapping[str, float]
    rows: Mapping[int, float]
    variance: float
    df: int


class Residual(NamedTuple):
    """The variance of a cell's or contrast's logarithm that rounds do not explain, and its degrees of freedom."""

    variance: float
    df: int


def residual(layout: Layout) -> Residual | None:
    """Return the variance of a layout's rest; None if it has no degrees of freedom."""
    repeated = {name: column for name, column in layout.items() if len(column) > 1}
    if len(repeated) < 2:
        return None
    found = additive(repeated)
    return Residual(found.variance, found.df) if found.df > 0 else None


def contrast(
    by_round: Sequence[float], pooled: Residual | None, *, floor: float = 0.0, cell_variances: float = CONTRAST
) -> Estimate:
    """Return the mean over rounds of a difference of two cells' logarithms, with its guarded interval.

    `floor` is the variance of the mean implied by windows; `cell_variances` is the difference's variance over one
    cell's.
    """
    count, mean = len(by_round), fmean(by_round)
    if count == 1:
        return Estimate(mean=mean, low=None, high=None, n=1)
    found = Residual(variance(by_round), count - 1)
    if pooled is not None:
        others = Residual(cell_variances * pooled.variance, pooled.df)
        if others.df > found.df and found.variance <= GUARD * others.variance:
            found = _shrunk(found, others)
    return student(mean, max(found.variance / count, FLOOR * floor), count, found.df)


def _shrunk(own: Residual, pooled: Residual) -> Residual:
    """Degrees of freedom are Satterthwaite's, at most those of `pooled`."""
    parts = OWN_SHARE * own.variance, (1 - OWN_SHARE) * pooled.variance
    df = satterthwaite([(part, of.df) for part, of in zip(parts, (own, pooled), strict=True)])
    return Residual(sum(parts), min(pooled.df, int(df + SLACK)))


def additive(layout: Layout) -> Fit:
    """Fit columns + rows by least squares; cells of the layout may be missing."""
    numbers = sorted({number for column in layout.values() for number in column})
    if all(len(column) == len(numbers) for column in layout.values()):
        return _balanced(layout, numbers)
    return _unbalanced(layout, numbers)


def _balanced(layout: Layout, numbers: Sequence[int]) -> Fit:
    rows = {number: fmean(column[number] for column in layout.values()) for number in numbers}
    level = fmean(rows.values())
    columns = {name: fmean(column.values()) - level for name, column in layout.items()}
    squares = fsum(
        (value - columns[name] - rows[number]) ** 2
        for name, column in layout.items()
        for number, value in column.items()
    )
    df = (len(numbers) - 1) * (len(layout) - 1)
    return Fit(columns, rows, squares / df if df else 0.0, df)


def _unbalanced(layout: Layout, numbers: Sequence[int]) -> Fit:
    # Imported here, because every rank imports this module and only rank 0 needs numpy.
    import numpy as np

    names = list(layout)
    cells = [(c, numbers.index(n), y) for c, name in enumerate(names) for n, y in sorted(layout[name].items())]
    design = np.zeros((len(cells), len(names) + len(numbers)))
    for at, (column, row, _) in enumerate(cells):
        design[at, column] = design[at, len(names) + row] = 1.0
    measured = np.array([value for _, _, value in cells])
    found, _, rank, _ = np.linalg.lstsq(design, measured, rcond=None)
    rest = measured - design @ found
    df = len(cells) - int(rank)
    level = float(found[: len(names)].mean())
    return Fit(
        {name: float(value) - level for name, value in zip(names, found, strict=False)},
        {number: float(value) + level for number, value in zip(numbers, found[len(names) :], strict=True)},
        float(rest @ rest) / df if df else 0.0,
        df,
    )
