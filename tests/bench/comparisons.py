"""Comparisons of equals and of a true difference of 5 %, simulated with a seed (statistics/contrasts.py).

A/A: tables of 8 strategies x 5 world sizes, all equal: the share with a "slower" (so also a "best") anywhere must
be at most 5 %. Power: the share that finds 5 % at 1.5 % noise must be at least 80 %. Rounds are process starts.
Then the smallest difference that the report names, and in how many tables of 100 it is found: 80 are meant.
"""

from __future__ import annotations

import sys
from itertools import product
from math import log
from statistics import median

import numpy as np

from scaling.analysis.statistics.contrasts import Layout, Table
from tests.bench.simulated_contests import NOISES, SD, drawn, told_apart, told_best, told_pair, told_slower

SEED = 9
TABLES = 1_000
ROUNDS = (3, 4, 5, 6, 10)
SIZES = 5
SITUATIONS = {"one slower than all": told_slower, "one the best": told_best, "a pair": told_pair}


def main() -> None:
    dice = np.random.default_rng(SEED)
    out = sys.stdout.write
    out(f"comparisons: {TABLES:,} tables each, standard error of a share 0.7 points\n\n")
    for rivals in (8, 2):
        out(f"A/A, {rivals} strategies x {SIZES} world sizes: tables with a false 'slower' or 'best', %\n")
        out(f"  {'rounds':12}{''.join(f'{rounds:8}' for rounds in ROUNDS)}\n")
        for noise in NOISES:
            out(f"  {noise:12}{''.join(f'{_false(dice, noise, rivals, rounds):8.1f}' for rounds in ROUNDS)}\n")
        out("\n")
    out(f"a true 5 % in one world size, {100 * SD:g} % noise (equal): found, %\n")
    out(f"  {'rounds':44}{''.join(f'{rounds:8}' for rounds in ROUNDS)}\n")
    for (rivals, sizes), (said, told) in product(product((2, 8), (1, SIZES)), SITUATIONS.items()):
        logs = (drawn(dice, "equal", (TABLES, sizes, rounds, rivals)) for rounds in ROUNDS)
        found = "".join(f"{100 * told(one, log(1.05)):8.1f}" for one in logs)
        out(f"  {f'{rivals} strategies x {sizes} sizes, {said}':44}{found}\n")
    out("\ntwo at 1.5 % beside a third at 45 %: a true 5 % is found, %\n")
    for sizes in (1, 2, SIZES):
        shares = []
        for rounds in ROUNDS:
            noisy = SD * dice.standard_normal((TABLES, sizes, rounds, 3))
            noisy[..., 1] *= 30
            shares.append(f"{100 * told_pair(noisy, log(1.05)):8.1f}")
        out(f"  {f'3 strategies x {sizes} sizes':44}{''.join(shares)}\n")
    out("\nthe smallest difference that the report names at that noise, %: found, %\n")
    for rivals, sizes in product((2, 3, 8), (1, SIZES)):
        named = (_named(dice, (rivals, sizes, rounds)) for rounds in ROUNDS)
        said = "".join(f"{100 * by:8.1f}:{100 * share:3.0f}" for by, share in named)
        out(f"  {f'{rivals} strategies x {sizes} sizes':24}{said}\n")


def _false(dice: np.random.Generator, noise: str, rivals: int, rounds: int) -> float:
    told = told_apart(drawn(dice, noise, (TABLES, SIZES, rounds, rivals)))
    return 100 * float(told.any((1, 2)).mean())


def _named(dice: np.random.Generator, shape: tuple[int, int, int]) -> tuple[float, float]:
    """The smallest difference that tables of this noise name (median), and the share of tables that find it."""
    rivals, sizes, rounds = shape
    named = []
    for logs in drawn(dice, "equal", (100, sizes, rounds, rivals)):
        layouts = [Layout([dict(enumerate(one)) for one in size.T], [""] * rivals) for size in logs]
        named.append(Table(layouts).smallest(layouts[0], rounds) or 0.0)
    return median(named), told_pair(drawn(dice, "equal", (TABLES, sizes, rounds, rivals)), log(1 + median(named)))


if __name__ == "__main__":
    main()
