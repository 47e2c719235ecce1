"""Curves, contests and comparisons: standings, differences, resolution of a contest, equal losses.

Rivals do equal work at equal world size, and either all are synchronous or none is. One contest (contrasts.py)
covers two comparisons:

* exchanges of one framework: step times and efficiencies have one ratio, because the baseline is the same
* frameworks, by samples/s, each by its fastest exchange

Rows with a mark of `catalogue.unranked_marks` do not compete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil, log
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.measured.cell import Cell, cells
from scaling.analysis.measured.controls import Key
from scaling.analysis.statistics.contrasts import Layout, Table
from scaling.analysis.statistics.intervals import Estimate, differences, interval
from scaling.analysis.table.catalogue import competes
from scaling.analysis.table.rows import Comparison, Contender, Resolution, Row, Standing
from scaling.records.point import Point
from scaling.records.run import PointRecord

# ---------------------------------------------------------------- curves


def comparable(point: Point) -> Key:
    """Return the key of exchanges whose rates may be compared at one world size."""
    return (point.reference, point.hardware, point.placement)


def series(point: Point) -> Key:
    """Return the key of a scaling curve, without the number of parameter servers."""
    return (*comparable(point), point.interconnect, point.strategy, point.sorted_options, point.server_hosts)


def curve_keys(points: Iterable[Point]) -> dict[str, Key]:
    """Return the key of the scaling curve of each cell.

    Numbers of parameter servers separate curves only if some world size was measured with several of them.
    """
    return keys_of_series({point.cell: (series(point), point) for point in points})


def keys_of_series(by_cell: Mapping[str, tuple[Key, Point]]) -> dict[str, Key]:
    """Return the key of each cell's curve from the key of its series."""
    counts: dict[tuple[Key, int], set[int]] = defaultdict(set)
    for key, point in by_cell.values():
        counts[key, point.world_size].add(point.servers)
    several = {key for (key, _), servers in counts.items() if len(servers) > 1}
    return {cell: (*key, point.servers if key in several else 0) for cell, (key, point) in by_cell.items()}


def numbered(keys: Iterable[Key]) -> dict[Key, int]:
    """Number the different keys in order."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def exchanges(records: Iterable[PointRecord]) -> list[Cell]:
    """Return the exchanges by curve and world size, without points on some nodes only (bisect)."""
    found = cells(record for record in records if record.point.kind == "exchange" and not record.point.hosts)
    keys = curve_keys([cell.point for cell in found])
    return sorted(found, key=lambda cell: (keys[cell.name], cell.point.world_size))


# ---------------------------------------------------------------- contests

# Strategy -> its plain loop.
PlainOf = Callable[[str], str]


class Contest(NamedTuple):
    """At least two rivals, and the layout of their rounds."""

    rivals: tuple[Cell, ...]
    layout: Layout

    @property
    def synchronous(self) -> bool:
        return self.rivals[0].synchronous


# Places in a contest: the fastest by samples/s (geometric mean), and the others.
Ranking = tuple[int, tuple[int, ...]]


def groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Group the measured cells that may be compared: equal work at equal world size."""
    found: dict[Key, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.times:
            found[(*comparable(cell.point), cell.point.world_size)].append(cell)
    return [group for _, group in sorted(found.items(), key=lambda item: item[0])]


def contests(group: Sequence[Cell], plain_of: PlainOf) -> list[Contest]:
    """Return the contests of a group, synchronous first; none without rivals."""
    able, found = [cell for cell in group if competes(cell)], []
    for synchronous in (True, False):
        rivals = tuple(cell for cell in able if cell.synchronous == synchronous)
        if len(rivals) > 1:
            logs = [{number: log(time.step_s) for number, time in cell.times.items()} for cell in rivals]
            found.append(Contest(rivals, Layout(logs, [framework(cell, plain_of) for cell in rivals])))
    return found


def framework(cell: Cell, plain_of: PlainOf) -> str:
    """Return the framework of a strategy; of an external one that of its baseline."""
    return plain_of(cell.point.strategy).partition(":")[0]


def rankings(contest: Contest, plain_of: PlainOf) -> Iterator[tuple[str, Ranking]]:
    """Yield each framework with the ranking of its exchanges, if it has several. Then, if there are several
    frameworks, "" with the ranking of their fastest exchanges."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, cell in enumerate(contest.rivals):
        places[framework(cell, plain_of)].append(place)
    found = {name: _ranking(contest, of) for name, of in places.items()}
    yield from ((name, one) for name, one in found.items() if one[1])
    if len(found) > 1:
        yield "", _ranking(contest, [first for first, _ in found.values()])


def _ranking(contest: Contest, places: Sequence[int]) -> Ranking:
    first = max(places, key=lambda place: fmean(map(log, contest.rivals[place].rates)))
    return first, tuple(place for place in places if place != first)


# ---------------------------------------------------------------- standings


def difference(table: Table, contest: Contest, one: int, other: int) -> Estimate | None:
    """Return the second's samples/s over the first's, - 1."""
    return table.estimate(contest.layout, other, one)


def standings(table: Table, contest: Contest, ranking: Ranking) -> Mapping[str, Standing]:
    """Return the standing of each cell of a ranking."""
    fastest, slower = ranking
    others = {one: Standing(best=False, difference=difference(table, contest, fastest, one)) for one in slower}
    verdicts = {one.verdict for one in others.values()}
    is_best, is_tested = verdicts == {"slower"}, bool(verdicts & {"tied", "not separated", "slower"})
    first = Standing(best=is_best, leads=is_tested and not is_best and "faster" not in verdicts)
    return {contest.rivals[place].name: one for place, one in {fastest: first, **others}.items()}


# ---------------------------------------------------------------- comparisons

# Factor of the rounds for a forecast: it about halves the smallest detectable difference.
FORESEEN = 2.5


# The training loss at the samples that all of a group reached; these; whether it is above all synchronous ones.
Loss = tuple[float | None, int, bool]


class Beside(NamedTuple):
    """The fields of a row that compare it with others."""

    framework: str
    standing: Standing | None = None
    framework_standing: Standing | None = None
    loss_at: float | None = None
    loss_at_samples: int | None = None
    learnt_less: bool = False


def beside(
    cells: Iterable[Cell], table: Table, found: Sequence[Contest], losses: Mapping[str, Loss], plain_of: PlainOf
) -> Mapping[str, Beside]:
    """Return each cell's comparison; `found` are all contests of the table, `losses` from `equal_losses`."""
    inside: dict[str, Standing] = {}
    among: dict[str, Standing] = {}
    for contest in found:
        for name, ranking in rankings(contest, plain_of):
            of = inside if name else among
            of |= standings(table, contest, ranking)
    return {
        cell.name: Beside(
            framework(cell, plain_of), inside.get(cell.name), among.get(cell.name), *losses.get(cell.name, ())
        )
        for cell in cells
    }


# ---------------------------------------------------------------- pairs and resolutions


def comparisons(table: Table, found: Sequence[Contest], plain_of: PlainOf) -> Iterator[Comparison]:
    """Yield by contest the fastest exchange against the others of each framework, then frameworks."""
    ranked = ((contest, *one) for contest in found for one in rankings(contest, plain_of))
    for contest, name, (first, others) in ranked:
        point = contest.rivals[first].point
        for other in others:
            yield Comparison(
                workload=point.workload,
                hardware=point.hardware,
                world_size=point.world_size,
                placement=point.placement,
                synchronous=contest.synchronous,
                best=contender(point),
                other=contender(contest.rivals[other].point),
                advantage=difference(table, contest, other, first),
                difference=difference(table, contest, first, other),
                detects=table.detects(contest.layout, first, other),
                framework=name,
            )


def contender(of: Row | Point) -> Contender:
    return Contender(**{field: getattr(of, field) for field in Contender.__struct_fields__})


def resolutions(table: Table, found: Sequence[Contest], group_of: Mapping[Key, int]) -> Iterator[Resolution]:
    """Yield the smallest detectable difference of each contest, now and with more rounds."""
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


def equal_losses(group: Sequence[Cell]) -> Mapping[str, Loss]:
    """Return each cell's training loss after the samples that all cells reached; empty without a loss."""
    counts = [cell.fewest_samples for cell in group if cell.fewest_samples is not None]
    if not counts:
        return {}
    count = min(counts)
    at = {cell.name: cell.loss_after(count) for cell in group}
    known = [(loss, cell) for cell in group if cell.synchronous and (loss := at[cell.name]) is not None]
    worst = max(known, key=lambda one: one[0])[1] if known else None
    return {cell.name: (at[cell.name], count, _learnt_less(cell, worst, count)) for cell in group}


def _learnt_less(cell: Cell, worst: Cell | None, count: int) -> bool:
    if cell.synchronous or worst is None:
        return False
    shared = differences(cell.losses_after(count), worst.losses_after(count))
    low = interval(list(shared.values())).low if shared else None
    return low is not None and low > 0
