"""What is said of cells beside their rivals: standings, differences, what rounds can tell, equal losses. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil, log
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.measured.cell import Cell, cells
from scaling.analysis.measured.controls import Key
from scaling.analysis.statistics.contrasts import Layout, Table
from scaling.analysis.statistics.intervals import Estimate, interval
from scaling.analysis.table.catalogue import competes
from scaling.analysis.table.rows import Comparison, Contender, Resolution, Standing
from scaling.records.point import Point
from scaling.records.run import PointRecord

# ---------------------------------------------------------------- contests
#
# Which exchanges compete, and what comes out: who is the best, who cannot be told from the fastest. Pure.
#
# Rivals do equal work at equal world size, and either all wait for each other or none does. They are compared
# twice, and one contest (contrasts.py) covers both, since all its pairs are tested at once:
#
# exchanges inside a framework, where step times and efficiencies have one ratio: their baseline is the same
# frameworks by samples/s, each by its fastest exchange; which one that is may be chosen by the data
#
# Rows with a mark of catalogue.unranked_marks take no part: they are not what their names say, or share cores.


# ---------------------------------------------------------------- curves
#
# Which exchanges belong together: on one scaling curve, and side by side at one world size. Pure.


def comparable(point: Point) -> Key:
    """What two exchanges of one world size share if their rates may be compared, and all of one scaling curve."""
    return (point.reference, point.hardware, point.placement)


def series(point: Point) -> Key:
    """What the world sizes of one scaling curve share, the number of parameter servers apart."""
    return (*comparable(point), point.interconnect, point.strategy, point.sorted_options, point.server_hosts)


def curve_keys(points: Iterable[Point]) -> dict[str, Key]:
    """By cell, what the world sizes of one scaling curve share.

    The number of parameter servers may grow along a curve (one per node). It tells curves apart only where
    some world size was measured with several: then each number is a curve of its own. Servers on nodes of
    their own are always another curve than servers on the training nodes.
    """
    return keys_of_series({point.cell: (series(point), point) for point in points})


def keys_of_series(by_cell: Mapping[str, tuple[Key, Point]]) -> dict[str, Key]:
    """By cell, the key of its curve, given that of its series."""
    counts: dict[tuple[Key, int], set[int]] = defaultdict(set)
    for key, point in by_cell.values():
        counts[key, point.world_size].add(point.servers)
    several = {key for (key, _), servers in counts.items() if len(servers) > 1}
    return {cell: (*key, point.servers if key in several else 0) for cell, (key, point) in by_cell.items()}


def numbered(keys: Iterable[Key]) -> dict[Key, int]:
    """Each key's place among the different ones."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def exchanges(records: Iterable[PointRecord]) -> list[Cell]:
    """The measured exchanges, sorted: curve by curve, and inside each by world size; none of those on some nodes
    alone."""
    found = cells(record for record in records if record.point.kind == "exchange" and not record.point.hosts)
    keys = curve_keys([cell.point for cell in found])
    return sorted(found, key=lambda cell: (keys[cell.name], cell.point.world_size))


# ---------------------------------------------------------------- contests

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
    able = [cell for cell in group if competes(cell)]
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


def exchanges_by_framework(contest: Contest, plain_of: PlainOf) -> Mapping[str, Ranking]:
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


# ---------------------------------------------------------------- comparisons

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
        for ranking in exchanges_by_framework(contest, plain_of).values():
            inside |= standings(table, contest, ranking)
        if leaders := frameworks(contest, plain_of):
            among |= standings(table, contest, leaders)
    return {cell.name: _beside(cell, inside, among, losses, plain_of) for cell in cells}


def _beside(
    cell: Cell,
    inside: Mapping[str, Standing],
    among: Mapping[str, Standing],
    losses: Mapping[str, Loss],
    plain_of: PlainOf,
) -> Beside:
    name = cell.name
    said = Beside(framework(cell, plain_of), inside.get(name), among.get(name))
    if name not in losses:
        return said
    loss = losses[name]
    return said._replace(loss_at=loss.at, loss_at_samples=loss.samples, learnt_less=loss.learnt_less)


# ---------------------------------------------------------------- pairs, and what could be told


def comparisons(table: Table, found: Sequence[Contest], plain_of: PlainOf) -> Iterator[Comparison]:
    """At each world size, of each framework the fastest exchange against each of the others, then frameworks."""
    for contest in found:
        for framework, ranking in exchanges_by_framework(contest, plain_of).items():
            yield from _comparisons(table, contest, ranking, framework)
        if leaders := frameworks(contest, plain_of):
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
            advantage=difference(table, contest, other, ranking.first),
            difference=difference(table, contest, ranking.first, other),
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
