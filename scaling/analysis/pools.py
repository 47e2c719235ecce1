"""Which cells share a work, so that one variance is made of all of them. Pure.

They are the exchanges of one framework's work on one kind of device at all world sizes, and the plain loops that
these rest on; not `comm`, which does another work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from typing import NamedTuple

from scaling.analysis.cell import Cell
from scaling.analysis.controls import Controls, Key
from scaling.analysis.drift import Drift, drifts
from scaling.analysis.pooling import Residual, residual
from scaling.analysis.step_time import Blocks
from scaling.records.point import Kind, Point


def pool_of(point: Point, controls: Controls) -> Key:
    """What exchanges share whose variance is one."""
    return (controls.plain(point.strategy), point.reference, point.hardware)


class Shared(NamedTuple):
    """What the cells of one pool tell together: the variance of a cell's logarithm that rounds do not explain,
    which kinds of points drifted, and how many exchanges went on after their windows."""

    residual: Residual | None
    drifts: tuple[Drift, ...]
    soaked: int


def shared(cells: Iterable[Cell], controls: Controls) -> dict[Key, Shared]:
    """By pool."""
    by_pool: dict[Key, list[Cell]] = {}
    for cell in cells:
        by_pool.setdefault(pool_of(cell.point, controls), []).append(cell)
    return {key: of_pool(found, controls) for key, found in by_pool.items()}


def of_pool(cells: Iterable[Cell], controls: Controls) -> Shared:
    """Of the exchanges of one pool and the plain loops behind them; rows that claim nothing are left out."""
    layout: dict[str, Mapping[int, float]] = {}
    kinds: dict[Kind, dict[str, Cell]] = {}
    soaked = 0
    for cell in cells:
        if cell.times and cell.claims_efficiency:
            soaked += bool(cell.soaked)
            layout[cell.name] = _logs(cell)
            layout.update(_plain_loops(cell, controls))
            for one in (cell, *controls.cells_behind(cell.point)):
                kinds.setdefault(one.point.kind, {})[one.name] = one
    by_kind = {kind: _side_by_side(one for _, one in sorted(found.items())) for kind, found in kinds.items()}
    return Shared(residual(dict(sorted(layout.items()))), drifts(by_kind), soaked)


def _side_by_side(cells: Iterable[Cell]) -> list[list[Blocks]]:
    """Their points' windows: those of one epoch of a round together, others by themselves. All as they were at
    first: what is disturbed comes again until the time for that is spent, so that the first blocks of a round
    would look quicker than the last."""
    found: dict[tuple[int, int | str], list[Blocks]] = {}
    for cell in cells:
        for number, time in cell.at_first:
            found.setdefault((number, cell.name if time.epoch is None else time.epoch), []).append(time.blocks)
    return list(found.values())


def _plain_loops(cell: Cell, controls: Controls) -> dict[str, Mapping[int, float]]:
    """The loops on the first and the last device of a row alone, since all of them would outnumber the exchanges,
    and on all at once."""
    point = cell.point
    found: dict[str, Mapping[int, float]] = {}
    for batch_size in {point.workload.batch_size, point.reference.batch_size}:
        alone = controls.by_seat(cell, batch_size)
        seats = sorted(alone, key=int)[:: max(1, len(alone) - 1)]
        # One after the other in one stretch of the run, seats resemble each other more than cells do, whose rest
        # would come out too small.
        for seat in seats if _took_turns(cell, controls, batch_size) else seats[:1]:
            found[f"alone/{batch_size}/{seat}"] = alone[seat]
    together = controls.together(point)
    if together is not None and together.times:
        found[together.name] = _logs(together)
    return found


def _took_turns(cell: Cell, controls: Controls, batch_size: int) -> bool:
    """Whether the plain loops alone took turns with other points in every round."""
    return all(time.epoch is not None for time in controls.times_alone(cell, batch_size).values())


def _logs(cell: Cell) -> dict[int, float]:
    return {number: log(time.step_s) for number, time in cell.times.items()}
