"""`analysis.contrasts` for thousands of simulated tables at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.statistics.contrasts import tested

Logs = NDArray[np.float64]
SD = 0.015
# equal: 1.5 % for all. graded: 0.5 to 4 % from the first rival to the last. one loud: 4 % beside 1 %. by size: 0.5
# to 4 % from the smallest world size to the largest. last size: 3 % beside 1 %. AR: 1.5 %, a point resembles the
# one before it in time. 1:30: 0.5 to 15 % by rival.
NOISES = ("equal", "graded", "one loud", "1:30", "by size", "last size", "AR 0.8")


def drawn(dice: np.random.Generator, noise: str, shape: tuple[int, int, int, int]) -> Logs:
    _, sizes, _, rivals = shape
    if noise == "AR 0.8":
        return SD * _autoregressive(dice, 0.8, shape)
    by_rival, by_size = np.linspace(0.005, 0.04, rivals), np.linspace(0.005, 0.04, sizes)
    sd: Mapping[str, float | Logs] = {
        "equal": SD,
        "graded": by_rival,
        "one loud": np.where(np.arange(rivals) == 0, 0.04, 0.01),
        "1:30": np.geomspace(0.005, 0.15, rivals),
        "by size": by_size[:, None, None],
        "last size": np.where(np.arange(sizes) == sizes - 1, 0.03, 0.01)[:, None, None],
    }
    made: Logs = dice.standard_normal(shape) * sd[noise]
    return made


def _autoregressive(dice: np.random.Generator, rho: float, shape: tuple[int, int, int, int]) -> Logs:
    """Points follow each other in time, those of each round in a random order."""
    tables, sizes, rounds, rivals = shape
    steps = dice.standard_normal((tables, rounds * sizes * rivals))
    for at in range(1, steps.shape[1]):
        steps[:, at] = rho * steps[:, at - 1] + np.sqrt(1 - rho**2) * steps[:, at]
    by_round: Logs = steps.reshape(tables, rounds, sizes * rivals)
    order = np.argsort(dice.random(by_round.shape), axis=-1)
    shuffled = np.take_along_axis(by_round, order, axis=-1).reshape(tables, rounds, sizes, rivals)
    return np.ascontiguousarray(shuffled.transpose(0, 2, 1, 3))


def told_apart(logs: Logs) -> NDArray[np.bool_]:
    """By table, world size and rival, whether it is told from the fastest of its contest."""
    tables, sizes, rounds, rivals = logs.shape
    one, other = np.array([*combinations(range(rivals), 2)]).T
    differences = logs[..., other] - logs[..., one]
    variances = differences.var(axis=2, ddof=1).reshape(tables, -1)
    pairs = variances.shape[1]
    half = np.array([tested(one, np.full(pairs, float(rounds)), [""] * pairs).half for one in variances])
    apart = np.abs(differences.mean(2)) > half.reshape(tables, sizes, -1)
    told = np.zeros((tables, sizes, rivals, rivals), bool)
    told[..., one, other] = told[..., other, one] = apart
    first = logs.mean(2).argmin(2)
    return np.take_along_axis(told, first[..., None, None], axis=2)[..., 0, :]


def told_slower(logs: Logs, by: float) -> float:
    """The share of tables that tell the last rival of the first world size, which is `by` (a logarithm) slower
    than all others, from the fastest of these."""
    shifted = logs.copy()
    shifted[:, 0, :, -1] += by
    return float(told_apart(shifted)[:, 0, -1].mean())


def told_best(logs: Logs, by: float) -> float:
    """The share that tells the first rival, which is `by` faster than all others, from each of them."""
    shifted = logs.copy()
    shifted[:, 0, :, 1:] += by
    return float(told_apart(shifted)[:, 0, 1:].all(1).mean())


def told_pair(logs: Logs, by: float) -> float:
    """The share that tells two rivals apart which differ by `by`, while all others are far behind."""
    shifted = logs.copy()
    shifted[:, 0, :, 1:] += 1 + by
    shifted[:, 0, :, -1] -= 1
    return float(told_apart(shifted)[:, 0, (0, -1)].any(1).mean())
