"""Pairwise tests of rivals over shared rounds, at 95 % for a whole table.

The data are logarithms of step times by round and rival. A pair's mean difference over its R shared rounds has
the variance D / R, with D of the pair's own differences on R - 1 degrees of freedom. Each of the table's n pairs
has the error 5 % / n (Bonferroni). A pair differs significantly if one of two tests says so, which share it:

    own        t(R-1) sqrt(D / R): exact for any noise of the other pairs
    moderated  the variance (d0 s0 + (R-1) D) / (d0 + R - 1), on d0 + R - 1 degrees of freedom. s0 and d0 are
               fitted to the pairs of the same two frameworks (Smyth, "Linear models and empirical Bayes methods",
               2004) whose variances have no significant gap between them. The more these differ, the smaller d0
               is: that is its test of what is exchangeable. The pair's own interval, at the level GUARD, is its
               least width

`python -m tests.bench.comparisons` has the error rates. A pretest and full pooling had up to 26 % false tables
where one world size is noisier than the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from math import expm1
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from scaling.analysis.statistics.intervals import Estimate, differences, variance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ERROR, POWER = 0.05, 0.8
# Parts of a pair's error, and the level of the pair's own interval below which a moderated one is not used. Chosen
# by simulation.
OF_OWN, OF_MODERATED, GUARD = 0.5, 0.4, 0.02
# Fewest pairs that show how much variances differ, and the level at which a gap between two variances parts them.
ENOUGH, GAP = 3, 0.001


class Difference(NamedTuple):
    """Mean difference of two rivals' logarithms over shared rounds, and its variance in one round."""

    mean: float
    variance: float | None
    rounds: int


class Layout:
    """One contest: logarithms of step times by rival and round, and the framework of each rival."""

    def __init__(self, logs: Sequence[Mapping[int, float]], frameworks: Sequence[str]) -> None:
        self._pairs: dict[tuple[int, int], Difference] = {}
        self.kinds: dict[tuple[int, int], Hashable] = {}
        for one, other in combinations(range(len(logs)), 2):
            # The variances of pairs of the same frameworks may resemble each other.
            self.kinds[one, other] = frozenset((frameworks[one], frameworks[other]))
            if values := list(differences(logs[other], logs[one]).values()):
                of_round = variance(values) if len(values) > 1 else None
                self._pairs[one, other] = Difference(fmean(values), of_round, len(values))

    def difference(self, one: int, other: int) -> Difference | None:
        """Return the second's logarithm minus the first's; None without a shared round."""
        if one > other:
            found = self._pairs.get((other, one))
            return found and found._replace(mean=-found.mean)
        return self._pairs.get((one, other))

    @cached_property
    def tested(self) -> dict[tuple[int, int], Difference]:
        """The pairs that share at least two rounds."""
        return {pair: one for pair, one in self._pairs.items() if one.variance is not None}

    @property
    def count(self) -> int:
        """Number of rivals that are tested."""
        return len({rival for pair in self.tested for rival in pair})

    @property
    def rounds(self) -> int:
        """Largest number of rounds that two rivals share."""
        return max((one.rounds for one in self._pairs.values()), default=0)


class Table:
    """All contests of a table, tested as one family: 95 of 100 tables of equal rivals report no difference."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._places = [(layout, pair) for layout in layouts for pair in layout.tested]
        self._at = {place: index for index, place in enumerate(self._places)}

    def _tested(self, more: float = 1.0) -> Tested:
        """Return the tests of all pairs, as if they had `more` times their rounds."""
        import numpy as np

        found = [layout.tested[pair] for layout, pair in self._places]
        variances, rounds = ([one.variance or 0.0 for one in found], [round(more * one.rounds) for one in found])
        kinds = [layout.kinds[pair] for layout, pair in self._places]
        return tested(np.array(variances), np.array(rounds, float), kinds)

    @cached_property
    def _now(self) -> Tested:
        return self._tested()

    def estimate(self, layout: Layout, one: int, other: int) -> Estimate | None:
        """Return the second's step time over the first's, minus 1; None without a shared round."""
        found = layout.difference(one, other)
        if found is None:
            return None
        at = self._at.get((layout, (min(one, other), max(one, other))))
        if at is None:
            return Estimate(mean=found.mean, low=None, high=None, n=1).each(expm1)
        half, df = float(self._now.half[at]), int(self._now.df[at])
        low, high = found.mean - half, found.mean + half
        return Estimate(mean=found.mean, low=low, high=high, n=found.rounds, df=df).each(expm1)

    def detects(self, layout: Layout, one: int, other: int) -> float | None:
        """Return the smallest true difference of a pair, as a fraction, that is found in 80 of 100 tables."""
        at = self._at.get((layout, (min(one, other), max(one, other))))
        return None if at is None else float(expm1(self._now.detected[at]))

    def smallest(self, layout: Layout, rounds: int) -> float | None:
        """Return what `rounds` rounds detect of the contest's median pair; None if nothing is tested."""
        if not layout.tested or rounds < 2:
            return None
        found = self._tested(rounds / layout.rounds).detected
        return expm1(median(float(found[self._at[layout, pair]]) for pair in layout.tested))


# ---------------------------------------------------------------- tests of all pairs at once


class Tested(NamedTuple):
    """Half intervals of logarithms, their degrees of freedom, and the differences that they detect.

    A difference must exceed half the interval, by the noncentral t (Cohen, "Statistical Power Analysis", 1988).
    """

    half: Floats
    df: Floats
    detected: Floats


def tested(variances: Floats, rounds: Floats, kinds: Sequence[Hashable], error: float = ERROR) -> Tested:
    """Test pairs of these `variances` (of one round), `rounds` and `kinds`, with this error over all pairs."""
    import numpy as np
    from scipy.special import nctdtrinc, stdtrit  # type: ignore[import-untyped]

    error, own_df = error / max(1, len(kinds)), rounds - 1
    own_se = np.sqrt(variances / rounds)
    half, df, se = stdtrit(own_df, 1 - error / 2) * own_se, own_df.copy(), own_se.copy()
    for at in _alike(variances, own_df, kinds):
        of_all, more_df = _fitted(variances[at], own_df[at])
        joined = more_df + own_df[at]
        joined_se = np.sqrt((more_df * of_all + own_df[at] * variances[at]) / joined / rounds[at])
        alone = stdtrit(own_df[at], 1 - OF_OWN * error / 2) * own_se[at]
        least = stdtrit(own_df[at], 1 - GUARD / 2) * own_se[at]
        wide = stdtrit(joined, 1 - OF_MODERATED * error / 2) * joined_se
        by_own = (alone <= np.maximum(wide, least)) | (wide < least)
        half[at] = np.minimum(alone, np.maximum(wide, least))
        df[at] = np.where(by_own, own_df[at], joined)
        se[at] = np.where(by_own, own_se[at], joined_se)
    limits = np.divide(half, se, out=np.zeros_like(half), where=se > 0)
    return Tested(half, df, nctdtrinc(df, 1 - POWER, limits) * se)


def _alike(variances: Floats, df: Floats, kinds: Sequence[Hashable]) -> Iterator[NDArray[np.intp]]:
    """Yield groups of at least ENOUGH pairs of one kind: sorted by variance, without a gap that is significant."""
    import numpy as np
    from scipy.special import fdtri

    for kind in dict.fromkeys(kinds):
        at = np.array([place for place, one in enumerate(kinds) if one == kind and variances[place] > 0], int)
        at = at[np.argsort(variances[at])]
        gaps = variances[at[1:]] / variances[at[:-1]] > fdtri(df[at[1:]], df[at[:-1]], 1 - GAP)
        yield from (group for group in np.split(at, np.flatnonzero(gaps) + 1) if len(group) >= ENOUGH)


def _fitted(variances: Floats, df: Floats) -> tuple[float, float]:
    """Fit a scaled inverse chi-square to variances: (variance, degrees of freedom).

    By the moments of ln s^2 (Smyth 2004, section 6.2). Degrees of freedom are at most those of all other pairs.
    """
    import numpy as np
    from scipy.special import digamma, polygamma

    logs = np.log(variances) - digamma(df / 2) + np.log(df / 2)
    most = float(df.sum() - df.mean())
    between = max(float(logs.var(ddof=1) - polygamma(1, df / 2).mean()), float(polygamma(1, most / 2)))
    # Newton's method for trigamma(d0 / 2) = between, from 1/2 + 1/between on, where it converges from one side.
    half_df = 0.5 + 1 / between
    for _ in range(20):
        value = float(polygamma(1, half_df))
        half_df += value * (1 - value / between) / float(polygamma(2, half_df))
    return float(np.exp(logs.mean() + digamma(half_df)) / half_df), 2 * half_df
