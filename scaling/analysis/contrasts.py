"""Pairwise tests of rivals over shared rounds, at 95 % for a whole table.

The data are logarithms of step times by round and rival. The mean difference of a pair over its R shared rounds
has two half-widths, and the wider one counts ("Comparisons" in scaling/analysis/README.md):

    own      t(R-1) sqrt(D / R)  D: variance of the pair's own differences
    Tukey's  q sqrt(s2 F / R)    q: studentized range of the contest's K rivals (Tukey-Kramer)
    s2       variance of one logarithm: half the mean D of all pairs, in a complete layout the residual mean square
             on (K-1)(R-1) degrees of freedom; with fewer than `ENOUGH` at least the table's
    F        mean of the two rivals' shares in s2 (Shukla, "Some statistical aspects of partitioning
             genotype-environmental components of variability", Heredity 29, 1972), at least 1
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from math import expm1, pi, prod, sqrt
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.intervals import Estimate, quantile, satterthwaite

# ---------------------------------------------------------------- studentized range

# Nodes of each integral: an error of 2e-6 of the quantile for up to 30 means and from 2 degrees of freedom.
NODES = 64
# Integration limit in standard deviations.
REACH = 7.0


@lru_cache(maxsize=1024)
def range_quantile(confidence: float, count: int, df: int) -> float:
    """Return the quantile of the studentized range of `count` means. SciPy's takes 0.1 s, and 1 s to import."""
    # Imported here, because every rank imports this module and only rank 0 compares.
    from scipy.optimize import brentq  # type: ignore[import-untyped]

    of_two = sqrt(2) * quantile(df, confidence)
    if count == 2:
        return of_two
    upper = sqrt(2) * quantile(df, 1 - 2 * (1 - confidence) / (count * (count - 1)))  # Bonferroni's
    below = _distribution(count, df)
    return float(brentq(lambda value: below(value) - confidence, of_two, 1.001 * upper, rtol=1e-10))


def _distribution(count: int, df: int) -> Callable[[float], float]:
    """Return P(range <= q s) as a function of q: the integral of count phi(z) (Phi(z) - Phi(z - q s))^(count - 1).

    It is over z and s, a chi of `df` over its root. Lund & Lund, "Algorithm AS 190", Applied Statistics 32 (1983).
    """
    import numpy as np
    from scipy.special import gammaln, ndtr  # type: ignore[import-untyped]

    nodes, weights = np.polynomial.legendre.leggauss(NODES)  # type: ignore[no-untyped-call]
    z = REACH * nodes
    of_z = REACH * weights * count * np.exp(-z * z / 2) / sqrt(2 * pi)
    low, high = max(0.0, 1 - REACH / sqrt(2 * df)), 1 + REACH / sqrt(2 * df)
    s = (low + high) / 2 + (high - low) / 2 * nodes
    log_density = df / 2 * np.log(df / 2) + np.log(2) - gammaln(df / 2) + (df - 1) * np.log(s) - df * s * s / 2
    of_s = (high - low) / 2 * weights * np.exp(log_density)
    below_z = ndtr(z)
    return lambda q: float(of_s @ (below_z - ndtr(z - q * s[:, None])) ** (count - 1) @ of_z)


# ---------------------------------------------------------------- contrasts

CONFIDENCE = 0.95
# Fewest degrees of freedom at which a contest uses its own variance: t is 3.1 there, 5.8 on 3 (99 %).
ENOUGH = 12
POWER = 0.8
# Added before degrees of freedom are rounded down: a rounding error must not cost a whole one.
SLACK = 1e-9


class Difference(NamedTuple):
    """Mean difference of two rivals' logarithms over shared rounds, and its variance in one round."""

    mean: float
    variance: float | None
    rounds: int


class Layout:
    """One contest: logarithms of step times by rival and round. `series` identifies a rival across contests."""

    def __init__(self, logs: Sequence[Mapping[int, float]], series: Sequence[Hashable]) -> None:
        self.series = series
        pairs = {(i, j): _difference(logs[i], logs[j]) for i, j in combinations(range(len(logs)), 2)}
        self._pairs = pairs
        tested = [one for one in pairs.values() if one is not None and one.variance is not None]
        self.rivals = sorted({n for at, one in pairs.items() if one and one.variance is not None for n in at})
        self._freedom = sum(one.rounds - 1 for one in tested)
        self._variances = [((one.rounds - 1) * (one.variance or 0.0)) for one in tested]

    def difference(self, one: int, other: int) -> Difference | None:
        """Return the second's logarithm minus the first's; None without a shared round."""
        if one > other:
            found = self._pairs[other, one]
            return found and found._replace(mean=-found.mean)
        return self._pairs[one, other]

    @property
    def count(self) -> int:
        """Number of rivals that share two rounds with another one; nothing is tested below 2."""
        return len(self.rivals)

    @cached_property
    def df(self) -> int:
        """Degrees of freedom of `variance`: (K-1)(R-1), fewer if rounds are missing."""
        return max(1, 2 * self._freedom // self.count) if self.rivals else 0

    @cached_property
    def variance(self) -> float:
        """Variance of one logarithm beyond its round and its rival."""
        return sum(self._variances) / self._freedom / 2 if self._freedom else 0.0

    @cached_property
    def rounds(self) -> int:
        """Largest number of rounds that two rivals share."""
        return max((one.rounds for one in self._pairs.values() if one), default=0)

    @cached_property
    def shares(self) -> Mapping[Hashable, float]:
        """Each series' variance over the mean of all, at least 0; empty with two rivals, which have no shares."""
        if self.count < 3 or not self.variance:
            return {}
        of = {n: [self._variance(n, other) for other in self.rivals if other != n] for n in self.rivals}
        whole = sum(map(sum, of.values())) / 2 / (self.count - 1)
        return {
            self.series[n]: max(0.0, (sum(found) - whole) / (self.count - 2) / self.variance)
            for n, found in of.items()
        }

    def _variance(self, one: int, other: int) -> float:
        found = self.difference(one, other)
        return 2 * self.variance if found is None or found.variance is None else found.variance


def _difference(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    values = [other[number] - one[number] for number in sorted(one.keys() & other.keys())]
    if not values:
        return None
    mean, n = fmean(values), len(values)
    variance = sum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else None
    return Difference(mean, variance, n)


class _Variance(NamedTuple):
    value: float
    df: float


def pooled(found: Sequence[_Variance]) -> _Variance:
    """Return the mean variance, weighted by df, on Satterthwaite's degrees of freedom.

    Each squared variance is estimated without bias, by df / (df + 2) s^4.
    """
    whole = sum(one.df for one in found)
    parts = [(one.df * one.value, one.df + 2) for one in found]
    total = sum(part for part, _ in parts)
    return _Variance(total / max(1.0, whole), min(whole, satterthwaite(parts)))


def _shares(layouts: Iterable[Layout]) -> Mapping[Hashable, _Variance]:
    found: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for layout in layouts:
        for series, share in layout.shares.items():
            found[series].append((share, layout.df / layout.count))
    return {
        series: _Variance(sum(share * df for share, df in of) / sum(df for _, df in of), sum(df for _, df in of))
        for series, of in found.items()
    }


class Table:
    """All contests of a table, tested as one family: 95 of 100 tables of equal rivals report no difference."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        tested = [layout for layout in layouts if layout.rivals]
        self._confidence = CONFIDENCE ** (1 / max(1, len(tested)))
        self._shares = _shares(tested)
        whole = pooled([_Variance(layout.variance, layout.df) for layout in tested])
        self._pooled = {layout: self._of_contest(layout, whole) for layout in tested}

    def _of_contest(self, layout: Layout, whole: _Variance) -> _Variance:
        own = _Variance(layout.variance, layout.df)
        variance, df = own if own.df >= ENOUGH else _Variance(max(own.value, whole.value), whole.df)
        shares = [self._shares[name] for n in layout.rivals if (name := layout.series[n]) in self._shares]
        kept = pooled(shares).df / sum(share.df for share in shares) if shares else 1.0
        return _Variance(variance, max(2.0 if layout.count > 2 else 1.0, df * kept))

    def estimate(self, layout: Layout, one: int, other: int) -> Estimate | None:
        """Return the second's step time over the first's, minus 1; None without a shared round."""
        found = layout.difference(one, other)
        if found is None:
            return None
        if found.variance is None:
            return Estimate(mean=expm1(found.mean), low=None, high=None, n=1)
        half, df = max(self._own(found), self._tukey(layout, one, other, found.rounds))
        low, high = expm1(found.mean - half), expm1(found.mean + half)
        return Estimate(mean=expm1(found.mean), low=low, high=high, n=found.rounds, df=df)

    def _own(self, found: Difference) -> tuple[float, int]:
        df = found.rounds - 1
        return quantile(df) * sqrt((found.variance or 0.0) / found.rounds), df

    def _tukey(self, layout: Layout, one: int, other: int, rounds: int) -> tuple[float, int]:
        variance, known = self._pooled[layout]
        df = int(known + SLACK)
        names = layout.series[one], layout.series[other]
        noisier = max(1.0, fmean(self._shares[name].value if name in self._shares else 1.0 for name in names))
        return range_quantile(self._confidence, layout.count, df) * sqrt(variance * noisier / rounds), df

    def smallest(self, layout: Layout, rounds: int) -> float | None:
        """Return the smallest true difference, as a fraction, that `rounds` rounds detect in 80 of 100 tables.

        None if nothing is tested. The difference must exceed both half-widths, each by the noncentral t (Cohen,
        "Statistical Power Analysis", 1988). `tests.bench.comparisons` simulates it.
        """
        if not layout.rivals or rounds < 2:
            return None
        variance, known = self._pooled[layout]
        df = int(known * (rounds - 1) / (layout.rounds - 1) + SLACK)
        limits = [(df, range_quantile(self._confidence, layout.count, df) / sqrt(2))]
        if (layout.count, df) != (2, rounds - 1):  # else the two variances are the same
            limits.append((rounds - 1, quantile(rounds - 1)))
        return expm1(_shift(limits) * sqrt(2 * variance / rounds))


def _shift(limits: Sequence[tuple[int, float]]) -> float:
    """In standard errors: the difference that exceeds all (df, limit) in 80 of 100 cases."""
    from scipy.optimize import brentq
    from scipy.special import nctdtr, nctdtrinc

    def found(shift: float) -> float:
        return float(prod(1 - nctdtr(df, shift, limit) for df, limit in limits))

    # Brackets: the hardest limit alone, and each limit as if all were equally hard.
    low, high = (
        max(float(nctdtrinc(df, 1 - power, limit)) for df, limit in limits)
        for power in (POWER, POWER ** (1 / len(limits)))
    )
    if len(limits) == 1:
        return low
    return float(brentq(lambda shift: found(shift) - POWER, 0.99 * low, 1.01 * high))
