"""Confidence intervals over rounds, steady state, additive fits, tests between launches and against a line.

Windows of one point are not independent, so no interval is formed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil, exp, fsum, log, sqrt
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.records.point import Kind, Record
from scaling.records.run import FAIL, NO_VERDICT, PASS, Criterion, Look

# ---------------------------------------------------------------- one row alone

STEADY_WINDOWS = 4
TRIMMED = 0.2
# Part of the variance implied by windows: this is an estimate too, and the larger of two estimates is biased up.
FLOOR = 0.5


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

    def each(self, change: Callable[[float], float]) -> Estimate:
        """Return the estimate with its mean and the ends of its interval changed."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return replace(self, mean=change(self.mean), low=low, high=high)

    def times(self, factor: float) -> Estimate:
        """Return the estimate of the value times `factor`."""
        return self.each(lambda value: value * factor)

    def plus(self, more: float) -> Estimate:
        """Return the estimate of the value plus `more`."""
        return self.each(lambda value: value + more)

    def exp(self) -> Estimate:
        """Return the estimate of the exponential."""
        return self.each(exp)


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


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def student(mean: float, variance_of_mean: float, n: int, df: int, confidence: float = 0.95) -> Estimate:
    """Return Student's interval over `n` rounds: mean +- t(df) sqrt(variance of the mean)."""
    half = quantile(df, confidence) * sqrt(variance_of_mean)
    return Estimate(mean=mean, low=mean - half, high=mean + half, n=n, df=df)


def interval(values: Sequence[float], confidence: float = 0.95, floor: float = 0.0) -> Estimate:
    """Return the mean of one value per round with Student's interval. Raises ValueError without a value.

    `floor` is the variance of the mean that windows imply. The variances of other cells are no help: pooled after
    a test of equality at 25 %, intervals of a cell twice as noisy as the others hold the truth in 85 to 92 of 100
    cases; of equal cells they are 14 % narrower at six rounds.
    """
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one round")
    mean = fmean(values)
    if n == 1:
        return Estimate(mean=mean, low=None, high=None, n=1)
    return student(mean, max(variance(values) / n, FLOOR * floor), n, n - 1, confidence)


def geometric(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of `values`, one per round, with Student's interval of their logarithms."""
    return interval([log(value) for value in values]).exp()


def trimmed(values: Sequence[float]) -> Side:
    """Return the mean without the lowest and the highest fifth (Tukey & McLaughlin, 1963). Its variance is of the
    winsorized values (ibid.; 0 for one value), on the number of kept values - 1 (Yuen, 1974)."""
    ordered, count = sorted(values), len(values)
    cut = int(TRIMMED * count)
    low, high, kept = ordered[cut], ordered[count - cut - 1], count - 2 * cut
    winsorized = [min(max(value, low), high) for value in ordered]
    found = variance(winsorized) * count / kept**2 if count > 1 else 0.0
    return Side(fmean(ordered[cut : count - cut]), found, kept - 1, count)


class Line(NamedTuple):
    """A straight line: its value at `middle`, its slope, and the sum of squares of the places about `middle`."""

    middle: float
    level: float
    slope: float
    squares: float


def least_squares(points: Sequence[tuple[float, float]]) -> Line:
    """Fit a line to (place, value), which are at least two places."""
    middle, level = fmean(place for place, _ in points), fmean(value for _, value in points)
    squares = sum((place - middle) ** 2 for place, _ in points)
    return Line(middle, level, sum((at - middle) * (value - level) for at, value in points) / squares, squares)


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


# ---------------------------------------------------------------- changes over time


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

    def __str__(self) -> str:
        change = "faster" if self.per_window < 0 else "slower"
        size = f"{100 * abs(self.per_window):.2f} % {change} from window to window"
        return f"{self.kind} became {size}, {100 * abs(self.whole):.1f} % in all ({self.points} points)"


# Least change worth a stamp, as a fraction; chance of a false stamp per work.
LASTING_LEAST, LASTING_ERROR = 0.01, 0.01


class Lasting(Record, frozen=True, kw_only=True):
    """Relative change of an efficiency after `after_s` more seconds; p-value of its trend, of `among` tests."""

    change: Estimate
    after_s: float
    p: float
    among: int = 1

    @property
    def is_told(self) -> bool:
        """Whether the change is significant (Bonferroni over `among`) and large enough."""
        return self.p < LASTING_ERROR / self.among and abs(self.change.mean) > LASTING_LEAST


# ---------------------------------------------------------------- paired rounds

# Column -> row -> logarithm. Columns are cells or seats, rows are rounds.
Layout = Mapping[str, Mapping[int, float]]


class Fit(NamedTuple):
    """An additive fit: columns less their mean, and levels of rows."""

    columns: Mapping[str, float]
    rows: Mapping[int, float]


def additive(layout: Layout) -> Fit:
    """Fit columns + rows by least squares; cells of the layout may be missing."""
    numbers = sorted({number for column in layout.values() for number in column})
    if all(len(column) == len(numbers) for column in layout.values()):
        rows = {number: fmean(column[number] for column in layout.values()) for number in numbers}
        level = fmean(rows.values())
        return Fit({name: fmean(column.values()) - level for name, column in layout.items()}, rows)
    # Imported here, because every rank imports this module and only rank 0 needs numpy.
    import numpy as np

    names = list(layout)
    cells = [(c, numbers.index(n), y) for c, name in enumerate(names) for n, y in sorted(layout[name].items())]
    design = np.zeros((len(cells), len(names) + len(numbers)))
    for at, (column, row, _) in enumerate(cells):
        design[at, column] = design[at, len(names) + row] = 1.0
    found = np.linalg.lstsq(design, np.array([value for _, _, value in cells]), rcond=None)[0]
    level = float(found[: len(names)].mean())
    return Fit(
        {name: float(value) - level for name, value in zip(names, found, strict=False)},
        {number: float(value) + level for number, value in zip(numbers, found[len(names) :], strict=True)},
    )


def differences(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """Return one - other for the numbers (rounds, windows) that both have."""
    return {number: one[number] - other[number] for number in sorted(one.keys() & other.keys())}


# ---------------------------------------------------------------- tests between launches
#
# Welch's test of two means, and Holm's procedure for many tests.
#
# Launches share no round, so nothing cancels between them. The variance of a difference is the sum of both sides'
# (Welch, "The generalization of 'Student's' problem when several different population variances are involved",
# Biometrika 34, 1947). Of m tests, the one with the k-th smallest p has the level 0.05 / (m - k + 1), until the
# first one fails (Holm, "A simple sequentially rejective multiple test procedure", 1979). The chance of any false
# difference is at most 5 %.
#
# With three runs per side, Welch's test has only 2 to 4 degrees of freedom. Cells with the same work and number of
# devices are about equally noisy, so their variances are pooled. `python -m tests.bench.gates` prints the results.


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
        from scipy.special import stdtr

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
    return Side(fmean(values), variance(values) / n if n > 1 else None, n - 1, n)


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


# ---------------------------------------------------------------- a quantity against its line
#
# A group sequential test, one look after each round from the sixth on. The data are the logarithms of one quantity
# by round, in the order of the rounds. The verdict is a function of them alone, so it can be computed again.
#
# * After k looks a bound is wrong with probability ERROR / (k (k + 1)). These sum up to ERROR over any number of
#   looks (Bonferroni). Several quantities share ERROR.
# * Bounds are Student's, with the variance of the mean of rounds correlated by PERSISTENCE, or by their own
#   lag-one correlation if that is larger: s^2 / R (1 + r) / (1 - r), the variance of an AR(1) mean.
# * A PASS needs rounds that are alike: no trend, no lag-one correlation beyond PERSISTENCE, no stalled round. It
#   holds also if a part of the rounds, so rare that R rounds miss it with probability UNSEEN, is slower by STALL.
# * A FAIL needs rounds without trend and correlation. It holds also if the mean drifts by twice DRIFT.
#
# `python -m tests.bench.certify` prints the error rates.

# Probability of a false FAIL at the line, and of a false PASS.
ERROR = 0.01
FIRST_ROUNDS = 6
# Correlation of a round with the one before it that every bound allows for, and the largest that is estimated.
PERSISTENCE, MOST_PERSISTENCE = 0.3, 0.9
# A stalled round takes 30 % longer. Outliers from LEAST_STALL on are named.
STALL, LEAST_STALL, UNSEEN = 0.3, 0.05, 0.02
# Half of a drift over the run that is not seen, and the least trend that is named, as fractions.
DRIFT = 0.005
# Levels of the tests of trend and of stalled rounds; normal quantile of the test of correlation.
TREND_LEVEL, STALL_LEVEL, CORRELATED = 0.05, 0.01, 1.645


def _seen(values: Sequence[float], noise: Sequence[float]) -> tuple[Side, str, str]:
    """Judge the logarithms of a quantity by round; `noise` is the variance of each that its windows imply. Return
    their mean, a trend or a correlation, and a round that took longer than the others; "" without."""
    count, mean = len(values), fmean(values)
    apart = [value - mean for value in values]
    squares = fsum(one * one for one in apart)
    lag = fsum(one * other for one, other in pairwise(apart)) / squares if squares else 0.0
    # Bias of a lag-one correlation about an estimated mean: -(1 + 4 r) / R (Marriott & Pope, Biometrika 41, 1954).
    lag = (count * lag + 1) / (count - 4)
    kept = min(max(lag, PERSISTENCE), MOST_PERSISTENCE)
    of_mean = max(squares / (count - 1), FLOOR * fmean(noise)) / count
    correlated = lag > PERSISTENCE + CORRELATED / sqrt(count)
    resembles = f"each round resembles the one before (correlation {min(lag, 1.0):.1f})" if correlated else ""
    own = Side(mean, of_mean * (1 + kept) / (1 - kept), count - 1, count)
    return own, _trend(apart, squares) or resembles, _stalled(apart, squares)


def _trend(apart: Sequence[float], squares: float) -> str:
    """Test the least-squares slope over rounds (Student's t)."""
    count = len(apart)
    places = [place - (count - 1) / 2 for place in range(count)]
    width = fsum(place * place for place in places)
    slope = fsum(place * one for place, one in zip(places, apart, strict=True)) / width
    error = sqrt(max(squares - slope * slope * width, 0.0) / (count - 2) / width)
    whole = slope * (count - 1)
    if abs(slope) <= quantile(count - 2, 1 - TREND_LEVEL) * error or abs(whole) < DRIFT:
        return ""
    return f"it {'fell' if whole < 0 else 'rose'} by {100 * abs(whole):.1f} % from the first round to the last"


def _stalled(apart: Sequence[float], squares: float) -> str:
    """Test the slowest round against the others (Student's t, Bonferroni over rounds)."""
    count = len(apart)
    slowest = min(range(count), key=apart.__getitem__)
    below = -apart[slowest] * count / (count - 1)
    rest = max(squares - apart[slowest] ** 2 * count / (count - 1), 0.0)
    error = sqrt(rest / (count - 2) * count / (count - 1))
    if below <= max(quantile(count - 2, 1 - 2 * STALL_LEVEL / count) * error, log(1 + LEAST_STALL)):
        return ""
    return f"round {slowest + 1} was {100 * (1 - exp(-below)):.0f} % below the others"


def unseen(rounds: int) -> float:
    """Return how much lower a mean logarithm is if stalls occur that so many rounds miss."""
    return (1 - exp(log(UNSEEN) / rounds)) * log(1 + STALL)


def rounds_that_show(margin: float) -> int:
    """Return the rounds after which the unseen part is below `margin`."""
    part = min(margin / log(1 + STALL), 1 - UNSEEN)
    return ceil(log(UNSEEN) / log(1 - part))


def judged(criterion: Criterion, values: Sequence[float], noise: Sequence[float], among: int) -> Criterion:
    """Return the criterion with its looks, until one decides; `among` criteria share the error.

    `values` are the logarithms by round, `noise` the variances that their windows imply.
    """
    looks: list[Look] = []
    doubt = f"{len(values)} rounds are too few; {FIRST_ROUNDS} are needed"
    for rounds in range(FIRST_ROUNDS, len(values) + 1):
        error = ERROR / ((len(looks) + 1) * (len(looks) + 2)) / among
        look, result, doubt = _looked(criterion, values[:rounds], noise[:rounds], error)
        looks.append(look)
        if result != NO_VERDICT:
            return replace(criterion, looks=tuple(looks), result=result, doubt="")
    return replace(criterion, looks=tuple(looks), result=NO_VERDICT, doubt=doubt)


def _looked(
    criterion: Criterion, values: Sequence[float], noise: Sequence[float], error: float
) -> tuple[Look, str, str]:
    """Return the look, its result and why it does not decide."""
    own, changes, stalled = _seen(values, noise)
    beyond = welch(Side(log(criterion.line), criterion.line_variance, criterion.line_df, 0), own)
    half = quantile(beyond.df, 1 - 2 * error) * (beyond.se or 0.0)
    low, high = exp(own.mean - half), exp(own.mean + half)
    look = Look(rounds=own.n, mean=exp(own.mean), low=low, high=high, error=error)
    margin = beyond.mean - half
    if beyond.mean + half < -DRIFT and not changes:
        return look, FAIL, ""
    if changes or stalled:
        return look, NO_VERDICT, changes or stalled
    if margin >= unseen(own.n):
        return look, PASS, ""
    if margin <= 0:
        return look, NO_VERDICT, ""
    needed = rounds_that_show(margin)
    return look, NO_VERDICT, f"{own.n} rounds can miss rare stalls; about {needed} rounds would show them"
