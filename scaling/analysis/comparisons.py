"""What is said of cells beside their rivals: standings, differences, what rounds can tell, equal losses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from scaling.analysis import contests
from scaling.analysis.cell import Cell
from scaling.analysis.contests import Contest, PlainOf, Ranking
from scaling.analysis.contrasts import Table
from scaling.analysis.controls import Key
from scaling.analysis.curves import comparable
from scaling.analysis.rows import Comparison, Contender, Resolution, Standing
from scaling.analysis.stats import interval
from scaling.records.point import Point

# How many times the rounds a resolution foresees: enough to halve what can be told.
FORESEEN = 2.5


class Loss(NamedTuple):
    """The training loss `at` so many `samples` as all of a group have reached; whether it is above that of all
    synchronous ones."""

    at: float | None
    samples: int
    learnt_less: bool


class Beside(NamedTuple):
    """What a row says in comparison with others, by the names of its fields."""

    framework: str
    standing: Standing | None = None
    framework_standing: Standing | None = None
    loss_at: float | None = None
    loss_at_samples: int | None = None
    learnt_less: bool = False


def beside(
    cells: Iterable[Cell], table: Table, found: Sequence[Contest], losses: Mapping[str, Loss], plain_of: PlainOf
) -> Mapping[str, Beside]:
    """By cell; `found` are all contests of the table, `losses` those that `equal_losses` made."""
    inside: dict[str, Standing] = {}
    among: dict[str, Standing] = {}
    for contest in found:
        for ranking in contests.exchanges(contest, plain_of).values():
            inside |= contests.standings(table, contest, ranking)
        if leaders := contests.frameworks(contest, plain_of):
            among |= contests.standings(table, contest, leaders)
    return {cell.name: _beside(cell, inside, among, losses, plain_of) for cell in cells}


def _beside(
    cell: Cell,
    inside: Mapping[str, Standing],
    among: Mapping[str, Standing],
    losses: Mapping[str, Loss],
    plain_of: PlainOf,
) -> Beside:
    name = cell.name
    said = Beside(contests.framework(cell, plain_of), inside.get(name), among.get(name))
    if name not in losses:
        return said
    loss = losses[name]
    return said._replace(loss_at=loss.at, loss_at_samples=loss.samples, learnt_less=loss.learnt_less)


# ---------------------------------------------------------------- pairs, and what could be told


def comparisons(table: Table, found: Sequence[Contest], plain_of: PlainOf) -> Iterator[Comparison]:
    """At each world size, of each framework the fastest exchange against each of the others, then frameworks."""
    for contest in found:
        for framework, ranking in contests.exchanges(contest, plain_of).items():
            yield from _comparisons(table, contest, ranking, framework)
        if leaders := contests.frameworks(contest, plain_of):
            yield from _comparisons(table, contest, leaders, "")


def _comparisons(table: Table, contest: Contest, ranking: Ranking, framework: str) -> Iterator[Comparison]:
    point = contest.rivals[ranking.first].point
    for other in ranking.others:
        yield Comparison(
            workload=point.workload,
            hardware=point.hardware,
            world_size=point.world_size,
            placement=point.placement,
            synchronous=contest.synchronous,
            best=_contender(point),
            other=_contender(contest.rivals[other].point),
            advantage=contests.difference(table, contest, other, ranking.first),
            difference=contests.difference(table, contest, ranking.first, other),
            framework=framework,
        )


def _contender(point: Point) -> Contender:
    return Contender(**{field: getattr(point, field) for field in Contender.__struct_fields__})


def resolutions(table: Table, found: Sequence[Contest], group_of: Mapping[Key, int]) -> Iterator[Resolution]:
    """What each contest can tell, now and with more rounds; nothing where rivals share fewer than two."""
    for contest in found:
        rounds = contest.layout.rounds
        smallest = table.smallest(contest.layout, rounds)
        then = table.smallest(contest.layout, more := ceil(FORESEEN * rounds))
        if smallest is not None and then is not None:
            point = contest.rivals[0].point
            yield Resolution(
                group=group_of[comparable(point)],
                world_size=point.world_size,
                synchronous=contest.synchronous,
                rivals=contest.layout.count,
                rounds=rounds,
                smallest_difference=smallest,
                more_rounds=more,
                smallest_difference_then=then,
            )


# ---------------------------------------------------------------- losses


def equal_losses(group: Sequence[Cell]) -> Mapping[str, Loss]:
    """By cell, the training loss after as many samples as all cells of the group have reached; nothing where none
    has a loss."""
    counts = [cell.fewest_samples for cell in group if cell.fewest_samples is not None]
    if not counts:
        return {}
    count = min(counts)
    at = {cell.name: cell.loss_after(count) for cell in group}
    known = [(loss, cell) for cell in group if cell.synchronous and (loss := at[cell.name]) is not None]
    worst = max(known, key=lambda one: one[0])[1] if known else None
    return {cell.name: Loss(at[cell.name], count, _learnt_less(cell, worst, count)) for cell in group}


def _learnt_less(cell: Cell, worst: Cell | None, count: int) -> bool:
    """Whether the loss of a cell that does not wait is above the `worst` of those that do, by the 95 % interval of
    the difference over the rounds that have both."""
    if cell.synchronous or worst is None:
        return False
    own, others = cell.losses_after(count), worst.losses_after(count)
    shared = sorted(own.keys() & others.keys())
    low = interval([own[number] - others[number] for number in shared]).low if shared else None
    return low is not None and low > 0
