"""Many comparisons of launches, judged as `scaling compare` does: how often a cell is called slower.

Launches with noise between process starts alone are analysed once. How launches differ, and a loss, move a cell's
efficiency and its interval by a factor, so each comparison draws its launches from these and moves their cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random
from statistics import median
from typing import Any, NamedTuple

from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.analysis.table.rows import Row
from scaling.tools.compare import verdicts
from scaling.tools.compare.found import ENOUGH_RUNS, METRICS, Cell
from scaling.tools.compare.verdicts import Rule
from tests.support.compared_runs import Rows, launch

# six cells and forty
CELLS = {6: (2, (1, 2, 4)), 40: (8, (1, 2, 4, 8, 16))}


def pool(cells: int, launches: int, **noise: Any) -> list[Rows]:
    """Launches of so many cells that differ by nothing but their process starts."""
    strategies, sizes = CELLS[cells]
    names = [f"fake:{letter}" for letter in "abcdefgh"[:strategies]]
    dice = Random(cells)
    return [rows(launch(dice, strategies=names, sizes=sizes, **noise)[1]) for _ in range(launches)]


class Gate(NamedTuple):
    """Comparisons of `runs` launches a side, which differ by `launch_sd`, every other strategy's by `uneven` times
    that. `older`: further runs of the base's code."""

    launches: Sequence[Rows]
    launch_sd: float
    runs: int = 1
    uneven: float = 1.0
    older: int = 0

    def cells(self, seed: int, fail_above: float, lost: float = 0.0) -> tuple[Cell, ...]:
        """The verdicts of one comparison. `lost` is the loss of the last cell."""
        dice = Random(seed)
        drawn = [self._moved(one, dice) for one in dice.sample(self.launches, 2 * self.runs + self.older)]
        base, new, older = drawn[: self.runs], drawn[self.runs : 2 * self.runs], drawn[2 * self.runs :]
        rule = Rule(METRICS["efficiency"], fail_above, "runs" if self.runs >= ENOUGH_RUNS else "rounds")
        if older:
            rule = rule._replace(older=((*base, *older),))
        if lost:
            new = [(*others, moved(last, 1 - lost)) for *others, last in new]
        return verdicts.cells(base, new, rule)

    def _moved(self, run: Rows, dice: Random) -> Rows:
        names = list(dict.fromkeys(row.strategy for row in run))
        sds = {name: self.launch_sd * (self.uneven if at % 2 else 1.0) for at, name in enumerate(names)}
        return tuple(moved(row, exp(dice.gauss(0, sds[row.strategy]))) for row in run)

    def share_red(self, comparisons: int, fail_above: float) -> float:
        """Percent of the comparisons without a change in which a cell is called slower."""
        found = (self.cells(seed, fail_above) for seed in range(comparisons))
        return 100 * sum(any(cell.is_lost for cell in one) for one in found) / comparisons

    def power(self, comparisons: int, fail_above: float) -> tuple[float, float]:
        """The loss of one cell that comparisons say they find (median), and the percent in which they do."""
        said = [self.cells(seed, fail_above)[-1].detects or 0.0 for seed in range(comparisons)]
        lost = median(said)
        found = (self.cells(comparisons + seed, fail_above, lost)[-1] for seed in range(comparisons))
        return 100 * lost, 100 * sum(cell.is_lost for cell in found) / comparisons


def moved(row: Row, factor: float) -> Row:
    """A row with so many times the efficiency."""
    assert row.efficiency is not None
    return replace(row, efficiency=row.efficiency.times(factor))
