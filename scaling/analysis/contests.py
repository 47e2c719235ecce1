"""Which exchanges compete, and what comes out: who is the best, who cannot be told from the fastest. Pure.

Rivals do equal work at equal world size, and either all wait for each other or none does. They are compared twice,
and one contest (contrasts.py) covers both, since all its pairs are tested at once:

    exchanges     inside a framework, where step times and efficiencies have one ratio: their baseline is the same
    frameworks    by samples/s, each by its fastest exchange; which one that is may be chosen by the data

Rows with a mark of audit.UNRANKED take no part: they are not what their names say, or share cores.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.cell import Cell
from scaling.analysis.contrasts import Layout, Table
from scaling.analysis.controls import Key
from scaling.analysis.curves import comparable, series
from scaling.analysis.rows import Standing
from scaling.analysis.stats import Estimate

# The plain loop behind a strategy.
PlainOf = Callable[[str], str]


class Contest(NamedTuple):
    """Rivals, at least two, and the layout of their rounds."""

    rivals: tuple[Cell, ...]
    layout: Layout

    @property
    def synchronous(self) -> bool:
        """Whether these ranks wait for each other."""
        return self.rivals[0].synchronous


class Ranking(NamedTuple):
    """Those who are compared, by their place in the contest: the fastest by samples/s, whose mean is the geometric
    one as in a row, and the others."""

    first: int
    others: tuple[int, ...]


def log_step(cell: Cell, number: int) -> float:
    """The logarithm of the step time of a round."""
    return log(cell.times[number].step_s)


def groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The measured cells of equal work at equal world size, which may be compared."""
    found: dict[Key, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.times:
            found[(*comparable(cell.point), cell.point.world_size)].append(cell)
    return [group for _, group in sorted(found.items(), key=lambda item: item[0])]


def contests(group: Sequence[Cell]) -> Iterator[Contest]:
    """Of a group of rivals, synchronous first; none where there is no rival."""
    able = [cell for cell in group if cell.competes]
    for synchronous in (True, False):
        rivals = tuple(cell for cell in able if cell.synchronous == synchronous)
        if len(rivals) > 1:
            logs = [{number: log_step(cell, number) for number in cell.times} for cell in rivals]
            yield Contest(rivals, Layout(logs, _series(rivals)))


def _series(rivals: Sequence[Cell]) -> list[Key]:
    """Who is the same at another world size; the number of servers tells those apart that are rivals by it."""
    keys = [series(cell.point) for cell in rivals]
    times = Counter(keys)
    both = zip(keys, rivals, strict=True)
    return [(*key, cell.point.servers) if times[key] > 1 else key for key, cell in both]


def framework(cell: Cell, plain_of: PlainOf) -> str:
    """Its strategy's prefix; of a strategy from outside that of its baseline."""
    return plain_of(cell.point.strategy).partition(":")[0]


def exchanges(contest: Contest, plain_of: PlainOf) -> Mapping[str, Ranking]:
    """By framework, its exchanges; frameworks that have only one are left out."""
    return {name: _ranking(contest, of) for name, of in _by_framework(contest, plain_of).items() if len(of) > 1}


def frameworks(contest: Contest, plain_of: PlainOf) -> Ranking | None:
    """The fastest exchange of each framework; None where there is only one framework."""
    found = _by_framework(contest, plain_of)
    return _ranking(contest, [_ranking(contest, of).first for of in found.values()]) if len(found) > 1 else None


def _by_framework(contest: Contest, plain_of: PlainOf) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for place, cell in enumerate(contest.rivals):
        found[framework(cell, plain_of)].append(place)
    return found


def _ranking(contest: Contest, places: Sequence[int]) -> Ranking:
    first = max(places, key=lambda place: fmean(map(log, contest.rivals[place].rates)))
    return Ranking(first, tuple(place for place in places if place != first))


# ---------------------------------------------------------------- what comes out


def difference(table: Table, contest: Contest, one: int, other: int) -> Estimate | None:
    """Samples/s of the second / those of the first - 1: step times the other way round."""
    return table.estimate(contest.layout, other, one)


def standings(table: Table, contest: Contest, ranking: Ranking) -> Mapping[str, Standing]:
    """By cell, where each of a ranking stands."""
    found = {place: difference(table, contest, ranking.first, place) for place in ranking.others}
    others = {place: Standing(best=False, difference=one) for place, one in found.items()}
    verdicts = {one.verdict for one in others.values()}
    is_best, is_tested = verdicts == {"slower"}, bool(verdicts & {"leading", "slower"})
    first = Standing(best=is_best, leads=is_tested and not is_best and "faster" not in verdicts)
    return {contest.rivals[place].name: one for place, one in {ranking.first: first, **others}.items()}
