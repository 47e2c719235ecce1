"""How many of a point's first windows still belong to its warm-up. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean

from scaling.analysis.stats import quantile, variance

# Chosen: of three windows and less nothing can be said.
LEAST_WINDOWS = 4
# At which the first windows must differ from the others: these are chosen to be alike.
CONFIDENCE = 0.999
# Equal times differ by less.
ROUNDING = 1e-9


def settled(ranks: Sequence[Mapping[int, float]]) -> int:
    """The index of the first window that counts for the number; windows before it are left out on all ranks.

    `ranks` are logarithms of step times by window: the mean over ranks counts, each about its own level, since not
    every rank has every window where they take turns.
    """
    if len(ranks) == 1 or len(set(map(frozenset, ranks))) == 1:
        values = [sum(same) / len(ranks) for same in zip(*(rank.values() for rank in ranks), strict=True)]
        indices = list(ranks[0])
    else:
        by_index: dict[int, list[float]] = {}
        for rank in ranks:
            level = fmean(rank.values()) if rank else 0.0
            for index, value in rank.items():
                by_index.setdefault(index, []).append(value - level)
        indices = sorted(by_index)
        values = [fmean(by_index[index]) for index in indices]
    return indices[truncation(values)] if indices else 0


def truncation(values: Sequence[float]) -> int:
    """How many leading values to leave out: where the standard error of the mean of the rest is least (White's
    MSER, 1997), at most half of them, if those left out differ from the rest by more than noise (Student's t).

    Without the second condition MSER takes the quietest part of pure noise, and the number wanders more.
    """
    count = len(values)
    if count < LEAST_WINDOWS:
        return 0
    best = _least_error(values)
    if best == 0:
        return 0
    head, rest = values[:best], values[best:]
    if len(rest) < 3:
        return 0
    error = sqrt(variance(rest) * (1 / len(head) + 1 / len(rest)))
    apart = max(ROUNDING, quantile(len(rest) - 1, CONFIDENCE) * error)
    return best if abs(fmean(head) - fmean(rest)) > apart else 0


def _least_error(values: Sequence[float]) -> int:
    """How many of the first to leave out, for the least squared standard error of the mean of the rest."""
    count, level = len(values), fmean(values)
    total = squares = 0.0
    errors: list[float] = []  # from the last value backwards
    for kept, value in enumerate(reversed(values), start=1):
        total += value - level
        squares += (value - level) ** 2
        errors.append((squares - total * total / kept) / kept**2)
    return min(range(count // 2 + 1), key=lambda first: errors[count - first - 1])
