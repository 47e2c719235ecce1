"""Which exchanges of a world size are compared, and what comes out: best, differences, equal losses. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from scaling.analysis.cell import Cell
from scaling.analysis.controls import Key
from scaling.analysis.curves import comparable
from scaling.analysis.rows import Comparison, Contender, Standing
from scaling.analysis.stats import paired
from scaling.records.point import Point


def groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The measured cells of equal work at equal world size, which may be compared."""
    found: dict[Key, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.times:
            found[(*comparable(cell.point), cell.point.world_size)].append(cell)
    return [group for _, group in sorted(found.items(), key=lambda item: item[0])]


def comparisons(cells: Iterable[Cell]) -> Iterator[Comparison]:
    """At each world size, the best against each of the others; asynchronous modes among themselves."""
    for group in groups(cells):
        for best, others in _rankings(group):
            yield from (_compare(best, other) for other in others)


def standings(cells: Iterable[Cell]) -> Mapping[str, Standing]:
    """By cell, where it stands among its rivals; a cell without any is left out."""
    found = {}
    for group in groups(cells):
        for best, others in _rankings(group):
            found[best.name] = Standing(best=True)
            for other in others:
                found[other.name] = Standing(best=False, difference=_compare(best, other).difference)
    return found


def _rankings(group: Sequence[Cell]) -> Iterator[tuple[Cell, list[Cell]]]:
    """The best by mean samples/s and its rivals, synchronous first; none where there is no rival."""
    for synchronous in (True, False):
        rivals = [cell for cell in group if cell.synchronous == synchronous]
        if len(rivals) > 1:
            best = max(rivals, key=lambda cell: fmean(cell.rates))
            yield best, [cell for cell in rivals if cell is not best]


def _compare(best: Cell, other: Cell) -> Comparison:
    shared = sorted(best.times.keys() & other.times.keys())
    fast = [1 / best.times[number].step_s for number in shared]
    slow = [1 / other.times[number].step_s for number in shared]
    point, enough = best.point, len(shared) >= 2
    return Comparison(
        workload=point.workload,
        hardware=point.hardware,
        world_size=point.world_size,
        placement=point.placement,
        synchronous=best.synchronous,
        best=_contender(point),
        other=_contender(other.point),
        advantage=paired(slow, fast) if enough else None,
        difference=paired(fast, slow) if enough else None,
    )


def _contender(point: Point) -> Contender:
    return Contender(**{field: getattr(point, field) for field in Contender.__struct_fields__})


def equal_losses(cells: Iterable[Cell]) -> Mapping[str, tuple[float | None, int]]:
    """By cell, the training loss after as many samples as all measured cells of its group have reached, and that
    number; groups without any loss are left out."""
    found = {}
    for group in groups(cells):
        counts = [cell.fewest_samples for cell in group if cell.fewest_samples is not None]
        for cell in group if counts else ():
            found[cell.name] = cell.loss_after(min(counts)), min(counts)
    return found
