"""Noise of step times as logarithms, by table, world size, round and rival: what comparisons are shown with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Logs = NDArray[np.float64]
SD = 0.015
# equal: 1.5 % for all. graded: 0.5 to 4 % from the first rival to the last. one loud: 4 % beside 1 %. by size: 0.5
# to 4 % from the smallest world size to the largest. AR: 1.5 %, a point resembles the one before it in time.
NOISES = ("equal", "graded", "one loud", "by size", "AR 0.8")


def drawn(dice: np.random.Generator, noise: str, shape: tuple[int, int, int, int]) -> Logs:
    _, sizes, _, rivals = shape
    if noise == "AR 0.8":
        return SD * _autoregressive(dice, 0.8, shape)
    by_rival, by_size = np.linspace(0.005, 0.04, rivals), np.linspace(0.005, 0.04, sizes)
    sd: Mapping[str, float | Logs] = {
        "equal": SD,
        "graded": by_rival,
        "one loud": np.where(np.arange(rivals) == 0, 0.04, 0.01),
        "by size": by_size[:, None, None],
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
