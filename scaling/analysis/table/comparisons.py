"""Curves, contests and comparisons: standings, differences, resolution of a contest, equal losses.

Rivals do equal work at equal world size, and either all are synchronous or none is. One contest (contrasts.py)
covers two comparisons:

* exchanges of one framework: step times and efficiencies have one ratio, because the baseline is the same
* frameworks, by samples/s, each by its fastest exchange

Rows with a mark of `catalogue.unranked_marks` do not compete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, log
from statistics import fmean
from typing import Any, NamedTuple

from scaling.analysis.measured.cell import Cell, cells
from scaling.analysis.measured.controls import Controls, Key
from scaling.analysis.statistics.contrasts import Layout, Table
from scaling.analysis.statistics.intervals import differences, interval
from scaling.analysis.table.catalogue import competes
from scaling.analysis.table.rows import Comparison, Contender, Resolution, Row, Standing, shared
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


class Contest(NamedTuple):
    """At least two rivals with their frameworks, and the layout of their rounds."""

    rivals: tuple[Cell, ...]
    frameworks: tuple[str, ...]
    layout: Layout


# Places in a contest: the fastest by samples/s (geometric mean), and the others.
Ranking = tuple[int, tuple[int, ...]]


def groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Group the measured cells that may be compared: equal work at equal world size."""
    found: dict[Key, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.times:
            found[(*comparable(cell.point), cell.point.world_size)].append(cell)
    return [group for _, group in sorted(found.items(), key=lambda item: item[0])]


def contests(group: Sequence[Cell], controls: Controls) -> list[Contest]:
    """Return the contests of a group, synchronous first; none without rivals."""
    able, found = [cell for cell in group if competes(cell)], []
    for synchronous in (True, False):
        rivals = tuple(cell for cell in able if cell.synchronous == synchronous)
        if len(rivals) > 1:
            logs = [{number: log(time.step_s) for number, time in cell.times.items()} for cell in rivals]
            names = tuple(framework(cell, controls) for cell in rivals)
            found.append(Contest(rivals, names, Layout(logs, names)))
    return found


def framework(cell: Cell, controls: Controls) -> str:
    """Return the framework of a strategy; of an external one that of its baseline."""
    return controls.plain(cell.point.strategy).partition(":")[0]


def rankings(contest: Contest) -> Iterator[tuple[str, Ranking]]:
    """Yield each framework with the ranking of its exchanges, if it has several. Then, if there are several
    frameworks, "" with the ranking of their fastest exchanges."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(contest.frameworks):
        places[name].append(place)
    found = {name: _ranking(contest, of) for name, of in places.items()}
    yield from ((name, one) for name, one in found.items() if one[1])
    if len(found) > 1:
        yield "", _ranking(contest, [first for first, _ in found.values()])


def _ranking(contest: Contest, places: Sequence[int]) -> Ranking:
    first = max(places, key=lambda place: fmean(map(log, contest.rivals[place].rates)))
    return first, tuple(place for place in places if place != first)


# ---------------------------------------------------------------- standings and comparisons

# Factor of the rounds for a forecast: it about halves the smallest detectable difference.
FORESEEN = 2.5


def standings(table: Table, contest: Contest, ranking: Ranking) -> Mapping[str, Standing]:
    """Return the standing of each cell of a ranking."""
    fastest, slower = ranking
    # A rate over another one is a step time over the other one's, the other way round.
    others = {one: Standing(best=False, difference=table.estimate(contest.layout, one, fastest)) for one in slower}
    verdicts = {one.verdict for one in others.values()}
    is_best, is_tested = verdicts == {"slower"}, bool(verdicts & {"tied", "not separated", "slower"})
    first = Standing(best=is_best, leads=is_tested and not is_best and "faster" not in verdicts)
    return {contest.rivals[place].name: one for place, one in {fastest: first, **others}.items()}


def comparisons(table: Table, found: Sequence[Contest]) -> Iterator[Comparison]:
    """Yield by contest the fastest exchange against the others of each framework, then frameworks."""
    for contest in found:
        for name, (first, others) in rankings(contest):
            best = contest.rivals[first]
            for other in others:
                yield Comparison(
                    **shared(Comparison, best.point),
                    synchronous=best.synchronous,
                    best=contender(best.point),
                    other=contender(contest.rivals[other].point),
                    advantage=table.estimate(contest.layout, first, other),
                    difference=table.estimate(contest.layout, other, first),
                    detects=table.detects(contest.layout, first, other),
                    framework=name,
                )


def contender(of: Row | Point) -> Contender:
    return Contender(**shared(Contender, of))


def resolutions(table: Table, found: Sequence[Contest], group_of: Mapping[Key, int]) -> Iterator[Resolution]:
    """Yield the smallest detectable difference of each contest, now and with more rounds."""
    for contest in found:
        rounds = contest.layout.rounds
        smallest = table.smallest(contest.layout, rounds)
        then = table.smallest(contest.layout, more := ceil(FORESEEN * rounds))
        if smallest is not None and then is not None:
            first = contest.rivals[0]
            yield Resolution(
                group=group_of[comparable(first.point)],
                world_size=first.point.world_size,
                synchronous=first.synchronous,
                rivals=contest.layout.count,
                rounds=rounds,
                smallest_difference=smallest,
                more_rounds=more,
                smallest_difference_then=then,
            )


def equal_losses(group: Sequence[Cell]) -> Mapping[str, Mapping[str, Any]]:
    """Return for each cell the fields of its row: the training loss after the samples that all cells reached, and
    whether it is above that of all synchronous ones; empty without a loss."""
    counts = [cell.fewest_samples for cell in group if cell.fewest_samples is not None]
    if not counts:
        return {}
    count = min(counts)
    at = {cell.name: cell.loss_after(count) for cell in group}
    known = [(loss, cell) for cell in group if cell.synchronous and (loss := at[cell.name]) is not None]
    worst = max(known, key=lambda one: one[0])[1] if known else None

    def learnt_less(cell: Cell) -> bool:
        if cell.synchronous or worst is None:
            return False
        common = differences(cell.losses_after(count), worst.losses_after(count))
        low = interval(list(common.values())).low if common else None
        return low is not None and low > 0

    return {
        cell.name: {"loss_at": at[cell.name], "loss_at_samples": count, "learnt_less": learnt_less(cell)}
        for cell in group
    }
