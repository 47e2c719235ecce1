"""Runs to compare, with a chosen true efficiency and chosen noise, as two launches of a small sweep leave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.analysis.table.rows import Row
from scaling.records.run import Header, PointRecord
from scaling.tools.compare import verdicts
from scaling.tools.compare.found import METRICS
from scaling.tools.compare.verdicts import Rule
from tests.support.scripted_records import header, point, record, written

STRATEGIES = ("fake:a", "fake:b")
SIZES = (1, 2, 4)
SOLO_S = 0.1
Run = tuple[Header, list[PointRecord]]


def launch(
    dice: Random,
    *,
    rounds: int = 5,
    sd: float = 0.01,
    launch_sd: float = 0.0,
    uneven: float = 1.0,
    lost: float = 0.0,
    strategies: Sequence[str] = STRATEGIES,
    sizes: Sequence[int] = SIZES,
    **changes: Any,
) -> Run:
    """Strategies on several numbers of devices. Each process start is off by `sd`, and each cell of the launch by
    `launch_sd`, those of every other strategy by `uneven` times as much. `lost` is the part of the efficiency
    that a change costs the cells of several devices."""
    factors = {name: uneven if at % 2 else 1.0 for at, name in enumerate(strategies)}
    per_cell = {(name, n): dice.gauss(0, factors[name] * launch_sd) for name in strategies for n in sizes}
    records = []
    for number in range(rounds):
        records.append(record(point("solo", 1, number, **changes), SOLO_S * exp(dice.gauss(0, sd))))
        for (strategy, n), shift in per_cell.items():
            true_s = SOLO_S * (1 + 0.03 * (n - 1)) / (1 - (lost if n > 1 else 0.0))
            step_s = true_s * exp(shift + dice.gauss(0, sd))
            records.append(record(point("exchange", n, number, strategy=strategy, **changes), step_s))
    return header(), records


def on_disk(folder: Path, run: Run) -> str:
    """The path of a written run."""
    return str(written(folder, run))


def without_noise(rounds: int = 3, *, lost: float = 0.0, **changes: Any) -> Run:
    return launch(Random(0), rounds=rounds, sd=0.0, lost=lost, **changes)


def changed(run: Run, of: Callable[[PointRecord], PointRecord], **changes: Any) -> Run:
    """Another run with some records, or its header, changed."""
    return replace(run[0], **changes), [of(one) for one in run[1]]


FINE, SLOW = without_noise(), without_noise(lost=0.05)


def run(folder: Path, name: str, made: Run = FINE) -> str:
    """The path of a run written below a folder."""
    return on_disk(folder / name, made)


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
