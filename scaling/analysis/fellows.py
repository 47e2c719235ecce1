"""Ranks that are slower or faster than their fellows, alone or beside them: who, where, by how much. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp, log, sqrt
from statistics import median

from scaling.analysis.cell import Cell
from scaling.analysis.controls import Controls
from scaling.analysis.pooling import Layout, additive
from scaling.analysis.stats import quantile
from scaling.records.point import Record

# Below this a difference is not worth a note.
LEAST = 0.015
# With few rounds three standard errors happen by chance, Student's quantile does not: in a layout of equal seats
# none is told with at least this confidence, however many they are (Bonferroni).
CONFIDENCE = 0.99


class Odd(Record, frozen=True, kw_only=True):
    """A seat that is apart from the median of the others by this part of their time."""

    seat: int
    apart: float


def slow_ranks(cell: Cell, controls: Controls) -> Iterator[str]:
    """Name the ranks of a row that are slower (or faster) than their fellows alone, or lose more beside them."""
    size = cell.point.world_size
    control = controls.together(cell.point)
    beside = _by_seat(control) if control else {}
    alone = controls.alone(cell.point, cell.point.workload.batch_size)
    each = alone.by_seat(cell.seats, size) if alone and len(cell.seats) > 1 else {}
    known = len(each) > 1
    where = {**cell.where, **(control.where if control else {})}
    for one in odd(each if known else beside):
        yield _said(one, where, "alone" if known else "beside the others", waits=cell.synchronous)
    if known:
        shared = {seat: _difference(beside[seat], column) for seat, column in each.items() if seat in beside}
        for one in odd({seat: column for seat, column in shared.items() if column}):
            if one.apart > 0:
                name = where.get(one.seat, f"rank {one.seat}")
                yield f"contention: {name} loses {100 * one.apart:.1f} % more beside the others than they do"


def odd(layout: Layout) -> list[Odd]:
    """The columns that differ from the median of the others by more than noise does; of two seats the slow one."""
    repeated = {seat: column for seat, column in layout.items() if len(column) > 1}
    if len(repeated) < 2:
        return []
    fit = additive(repeated)
    if fit.df < 1:
        return []
    # The difference of two seats is one and the same for both.
    tests = len(repeated) if len(repeated) > 2 else 1
    beyond = quantile(fit.df, 1 - (1 - CONFIDENCE) / tests)
    found = []
    for seat, effect in fit.columns.items():
        others = [other for name, other in fit.columns.items() if name != seat]
        apart = effect - median(others)
        error = sqrt(fit.variance / len(repeated[seat]) * (1 + 1 / len(others)))
        is_told = abs(apart) > max(log(1 + LEAST), beyond * error)
        if is_told and (apart > 0 or len(others) > 1):
            found.append(Odd(seat=int(seat), apart=exp(apart) - 1))
    return sorted(found, key=lambda one: one.seat)


def _by_seat(control: Cell) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for number, time in sorted(control.times.items()):
        for seat, one in sorted(time.seats.items()):
            found.setdefault(str(seat), {})[number] = log(one.step_s)
    return found


def _difference(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    return {number: one[number] - other[number] for number in sorted(one.keys() & other.keys())}


def _said(one: Odd, where: Mapping[int, str], how: str, *, waits: bool) -> str:
    """`slow rank: rank 3 on node2 (CPU 3) takes 20.0 % longer alone than its fellows`."""
    name = where.get(one.seat, f"rank {one.seat}")
    if one.apart > 0:
        return f"slow rank: {name} takes {100 * one.apart:.1f} % longer {how} than its fellows"
    waiting = ", and waits for them" if waits else ""
    return f"fast rank: {name} takes {-100 * one.apart:.1f} % less {how} than its fellows{waiting}"
