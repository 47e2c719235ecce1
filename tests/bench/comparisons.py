"""Comparisons of equals and of a true difference of 5 %, simulated with a seed (analysis/contrasts.py).

A/A: tables of 8 strategies x 5 world sizes, all equal: the share with a "slower" (so also a "best") anywhere must
be at most 5 %. Power: the share that finds 5 % at 1.5 % noise must be at least 80 %. Rounds are process starts.
Then the smallest difference that the report names, and in how many tables of 100 it is found: 80 are meant.
"""

from __future__ import annotations

import sys
from itertools import product
from math import log

import numpy as np

from scaling.analysis.contrasts import Layout, Table
from tests.support.noise import NOISES, SD, drawn
from tests.support.vectorised_contests import told_apart, told_best, told_pair, told_slower

SEED = 9
TABLES = 10_000
ROUNDS = (3, 4, 5, 6, 10)
SIZES = 5
SITUATIONS = {"one slower than all": told_slower, "one the best": told_best, "a pair": told_pair}


def main() -> None:
    dice = np.random.default_rng(SEED)
    out = sys.stdout.write
    out(f"comparisons: {TABLES:,} tables each, standard error of a share 0.2 points\n\n")
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
    out("\nthe smallest difference that the report names at that noise, %: found, %\n")
    for rivals, sizes in product((2, 3, 8), (1, SIZES)):
        named = (_named(dice, (rivals, sizes, rounds)) for rounds in ROUNDS)
        said = "".join(f"{100 * by:8.1f}:{100 * share:3.0f}" for by, share in named)
        out(f"  {f'{rivals} strategies x {sizes} sizes':24}{said}\n")


def _false(dice: np.random.Generator, noise: str, rivals: int, rounds: int) -> float:
    told = told_apart(drawn(dice, noise, (TABLES, SIZES, rounds, rivals)))
    return 100 * float(told.any((1, 2)).mean())


def _named(dice: np.random.Generator, shape: tuple[int, int, int]) -> tuple[float, float]:
    """The smallest difference that a table with just that noise names, and the share of tables that find it."""
    rivals, sizes, rounds = shape
    made = drawn(dice, "equal", (1, sizes, rounds, rivals))[0]
    rest = made - made.mean(1, keepdims=True) - made.mean(2, keepdims=True) + made.mean((1, 2), keepdims=True)
    made *= SD / np.sqrt((rest**2).sum((1, 2), keepdims=True) / (rivals - 1) / (rounds - 1))
    layouts = [Layout([dict(enumerate(one)) for one in size.T], range(rivals)) for size in made]
    smallest = Table(layouts).smallest(layouts[0], rounds)
    assert smallest is not None
    return smallest, told_pair(drawn(dice, "equal", (TABLES, sizes, rounds, rivals)), log(1 + smallest))


if __name__ == "__main__":
    main()
