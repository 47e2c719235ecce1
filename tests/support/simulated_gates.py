"""A gate over simulated launches: how often it is red."""

from __future__ import annotations

from random import Random
from typing import Any

from scaling.analysis.table.analyse import rows
from scaling.analysis.table.rows import Row
from scaling.tools.compare import verdicts
from scaling.tools.compare.found import METRICS
from scaling.tools.compare.verdicts import Rule
from tests.support.compared_runs import launch

Rows = tuple[Row, ...]


def side(seed: int, *, runs: int = 1, **noise: Any) -> list[Rows]:
    """The rows of a side's launches, or of its single one."""
    dice = Random(seed)
    return [rows(launch(dice, **noise)[1]) for _ in range(runs)]


def is_red(base: list[Rows], new: list[Rows], fail_above: float = 0.0) -> bool:
    """Whether anything is called slower; without a loss that does not count the tests alone decide."""
    rule = Rule(METRICS["efficiency"], fail_above, "runs" if len(base) > 1 else "rounds")
    return any(cell.is_lost for cell in verdicts.cells(base, new, rule))


def share_red(pairs: int, fail_above: float, *, lost: float = 0.0, **noise: Any) -> float:
    made = ((side(seed, **noise), side(pairs + seed, lost=lost, **noise)) for seed in range(pairs))
    return 100 * sum(is_red(base, new, fail_above) for base, new in made) / pairs
