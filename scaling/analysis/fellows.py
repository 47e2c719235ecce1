"""Ranks that are slower or faster than their fellows, alone or beside them: who, where, by how much. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log, sqrt
from statistics import median

from scaling.analysis.cell import Cell
from scaling.analysis.controls import Controls
from scaling.analysis.pooling import Layout, additive
from scaling.analysis.stats import quantile
from scaling.records.point import Record
from scaling.text import counted

# Below this a difference is not worth a note.
LEAST = 0.015
# With few rounds three standard errors happen by chance, Student's quantile does not: in a layout of equal seats
# none is told with at least this confidence, however many they are (Bonferroni).
CONFIDENCE = 0.99
# Of hundreds of ranks a name each would hide all other notes of a row.
NAMED = 4


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
    how = "alone" if known else "beside the others"
    yield from _apart(odd(each if known else beside), where, how, waits=cell.synchronous)
    if known:
        shared = {seat: _difference(beside[seat], column) for seat, column in each.items() if seat in beside}
        more = odd({seat: column for seat, column in shared.items() if column})
        yield from _contention([one for one in more if one.apart > 0], where)


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


# ---------------------------------------------------------------- in words


def _apart(found: Sequence[Odd], where: Mapping[int, str], how: str, *, waits: bool) -> Iterator[str]:
    """`slow rank: rank 3 on node2 (CPU 3) takes 20.0 % longer alone than its fellows`; one note of several."""
    if not found:
        return
    kinds = [kind for kind, sign in (("slow", 1), ("fast", -1)) if any(sign * one.apart > 0 for one in found)]
    ranks = "rank" if len(found) == 1 else "ranks"
    waiting = ""
    if waits and "fast" in kinds:
        waiting = ", and waits for them" if len(found) == 1 else "; the fast ones wait"
    listed = _worst(found, where, lambda one: f"takes {_size(one)} {how} than its fellows", _size)
    yield f"{' and '.join(kinds)} {ranks}: {listed}{waiting}"


def _contention(found: Sequence[Odd], where: Mapping[int, str]) -> Iterator[str]:
    """`contention: rank 3 on node2 (CPU 3) loses 15.0 % more beside the others than they do`; one note too."""
    if found:
        listed = _worst(found, where, lambda one: f"loses {_lost(one)} more beside the others than they do", _lost)
        yield f"contention: {listed}"


def _lost(one: Odd) -> str:
    return f"{100 * one.apart:.1f} %"


def _size(one: Odd) -> str:
    return f"{100 * abs(one.apart):.1f} % {'longer' if one.apart > 0 else 'less'}"


def _worst(
    found: Sequence[Odd], where: Mapping[int, str], first: Callable[[Odd], str], further: Callable[[Odd], str]
) -> str:
    """The farthest apart by name, each with what is said of it; how many others, and by how much."""
    ranked = sorted(found, key=lambda one: -abs(one.apart))
    said = (first, *[further] * (NAMED - 1))
    names = [
        f"{where.get(one.seat, f'rank {one.seat}')} {text(one)}" for one, text in zip(ranked, said, strict=False)
    ]
    return f"{', '.join(names)}{_others(ranked[NAMED:])}"


def _others(left: Sequence[Odd]) -> str:
    """`, and 5 others, by 2 to 6 %`."""
    if not left:
        return ""
    sizes = [f"{100 * abs(one.apart):.0f}" for one in left]
    low, high = min(sizes, key=int), max(sizes, key=int)
    return f", and {counted(len(left), 'other')}, by {low if low == high else f'{low} to {high}'} %"
