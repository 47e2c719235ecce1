"""The row that all costs of a report are relative to, and each row's rate beside it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from scaling.analysis.cell import Cell
from scaling.analysis.cost import UNPRICED, Base, Place
from scaling.analysis.pooling import contrast
from scaling.analysis.rows import Row
from scaling.analysis.stats import Estimate


def why_not(row: Row) -> str:
    """Why costs cannot be relative to this row; "" where they can."""
    less = "its samples taught less" if row.learnt_less else ""
    return next((why for flag, why in UNPRICED.items() if flag in row.flags), less)


def base(name: str, row: Row, rows: Sequence[Row], cells: Sequence[Cell]) -> Base:
    """Return `row` as the base of all `rows`, whose records stand in `cells` in the same order."""
    logs = _log_rates(cells[rows.index(row)])
    found: dict[Place, Estimate] = {}
    for other, cell in zip(rows, cells, strict=True):
        if other is row:
            found[other.curve, other.world_size] = Estimate(mean=1.0, low=None, high=None, n=row.rounds)
        elif _has_same_work(other, row) and (shared := _differences(logs, _log_rates(cell))):
            found[other.curve, other.world_size] = contrast(shared, None).exp()
    return Base(name, row, found)


def _has_same_work(one: Row, other: Row) -> bool:
    """Whether a sample of the one is worth a sample of the other: batch, precision and devices may differ."""
    return (one.workload.model, one.workload.data, one.workload.pass_) == (
        other.workload.model, other.workload.data, other.workload.pass_
    )  # fmt: skip


def _log_rates(cell: Cell) -> dict[int, float]:
    return {number: log(rate) for number, rate in zip(cell.times, cell.rates, strict=True)}


def _differences(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """The one's less the other's, over the rounds that both have."""
    return [one[number] - other[number] for number in sorted(one.keys() & other.keys())]
