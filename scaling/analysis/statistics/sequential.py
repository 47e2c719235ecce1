"""A group sequential test of a quantity against its line, one look after each round from the sixth on.

The data are the logarithms of one quantity by round, in the order of the rounds. The verdict is a function of them
alone, so it can be computed again from the records.

* After k looks a bound is wrong with probability ERROR / (k (k + 1)). These sum up to ERROR over any number of
  looks (Bonferroni). Several quantities share ERROR.
* Bounds are Student's, with the variance of the mean of rounds correlated by PERSISTENCE, or by their own lag-one
  correlation if that is larger: s^2 / R (1 + r) / (1 - r), the variance of an AR(1) mean.
* A PASS needs rounds that are alike: no trend, no lag-one correlation beyond PERSISTENCE, no stalled round. It
  holds also if a part of the rounds, so rare that R rounds miss it with probability UNSEEN, is slower by STALL.
* A FAIL needs rounds without trend and correlation. It holds also if the mean drifts by twice DRIFT.

`python -m tests.bench.certify` prints the error rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, exp, fsum, log, sqrt
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import FLOOR, Side, quantile, welch
from scaling.records.run import FAIL, NO_VERDICT, PASS, Criterion, Look

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


class Seen(NamedTuple):
    """What some rounds show: mean, variance of the mean, and why they are not alike ("" if they are).

    `changes` names a trend or a correlation, `stalled` a round that took longer than the others.
    """

    mean: float
    variance: float
    changes: str
    stalled: str


def seen(values: Sequence[float], noise: Sequence[float]) -> Seen:
    """Judge the logarithms of a quantity by round; `noise` is the variance of each that its windows imply."""
    count, mean = len(values), fmean(values)
    apart = [value - mean for value in values]
    squares = fsum(one * one for one in apart)
    lag = fsum(one * other for one, other in pairwise(apart)) / squares if squares else 0.0
    # Bias of a lag-one correlation about an estimated mean: -(1 + 4 r) / R (Marriott & Pope, Biometrika 41, 1954).
    lag = (count * lag + 1) / (count - 4)
    kept = min(max(lag, PERSISTENCE), MOST_PERSISTENCE)
    variance = max(squares / (count - 1), FLOOR * fmean(noise)) / count
    correlated = lag > PERSISTENCE + CORRELATED / sqrt(count)
    resembles = f"each round resembles the one before (correlation {min(lag, 1.0):.1f})" if correlated else ""
    return Seen(
        mean, variance * (1 + kept) / (1 - kept), _trend(apart, squares) or resembles, _stalled(apart, squares)
    )


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
    rounds = len(values)
    found = seen(values, noise)
    line = Side(log(criterion.line), criterion.line_variance, criterion.line_df, 0)
    beyond = welch(line, Side(found.mean, found.variance, rounds - 1, rounds))
    half = quantile(beyond.df, 1 - 2 * error) * (beyond.se or 0.0)
    low, high = exp(found.mean - half), exp(found.mean + half)
    look = Look(rounds=rounds, mean=exp(found.mean), low=low, high=high, error=error)
    margin = beyond.mean - half
    if beyond.mean + half < -DRIFT and not found.changes:
        return look, FAIL, ""
    if margin >= unseen(rounds) and not found.changes and not found.stalled:
        return look, PASS, ""
    if found.changes or found.stalled:
        return look, NO_VERDICT, found.changes or found.stalled
    if margin > 0:
        needed = rounds_that_show(margin)
        return look, NO_VERDICT, f"{rounds} rounds can miss rare stalls; about {needed} rounds would show them"
    return look, NO_VERDICT, ""
