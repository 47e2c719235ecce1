"""Heat maps of ranks by windows: who was slow, and when. Pure.

In an exchange all ranks wait for the slowest, so that only `together`, the plain loops of all devices at once,
shows which rank that is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median

from scaling.records.run import PointRecord, RankRecord
from scaling.report.figures.parts import Figure, Heat, Table, stamps
from scaling.report.headline import headline
from scaling.report.material import Material

# Above these there are lines of hosts, and of the ranks that are slowest.
MOST_RANKS = 64
MOST_HOSTS = 48
SLOWEST = 16
MOST_COLUMNS = 240
_SAYS = {
    "together": "plain loops at once, no exchange: nobody waits, so a line that is dark is a slow rank",
    "exchange": "the exchange: all ranks wait for the slowest, so columns are dark and not lines",
}

# Step times by rank and column, over the median of the round.
Grid = dict[tuple[int, str], list[float | None]]


def ranks(material: Material) -> Iterator[Figure]:
    """Of the headline row: `together`, then the exchange."""
    row = headline(material.rows)
    if row is None or not row.rounds or row.world_size == 1:
        return
    of = {"together": material.together(row), "exchange": tuple(material.cell(row).records)}
    for kind, records in of.items():
        grid, breaks = _grid(records)
        if len(grid) > 1:
            heat, left_out = _heat(grid, breaks)
            yield Figure(
                name="ranks",
                title=f"Ranks by windows, {kind}, N={row.world_size}",
                says=f"{_SAYS[kind]}. {_worst(grid)}",
                body=heat,
                table=Table(("rank", "mean over the median of its rounds"), tuple(_lines(grid))),
                stamps=stamps(set(row.flags)),
                left_out=left_out,
            )


def _grid(records: Iterable[PointRecord]) -> tuple[Grid, tuple[int, ...]]:
    """Rounds side by side; a rank that has no window where others have one stays empty there."""
    grid: Grid = defaultdict(list)
    breaks: list[int] = []
    width = 0
    for record in sorted(records, key=lambda one: one.point.round):
        steps = {(rank.rank, rank.host): _steps(rank) for rank in record.ranks if rank.windows}
        if not steps:
            continue
        middle = median(step for found in steps.values() for step in found)
        columns = max(map(len, steps.values()))
        for who, found in steps.items():
            grid[who] += [None] * (width - len(grid[who]))
            grid[who] += [step / middle for step in found]
        breaks.append(width)
        width += columns
    padded = {who: [*line, *[None] * (width - len(line))] for who, line in sorted(grid.items())}
    return padded, tuple(breaks[1:])


def _steps(rank: RankRecord) -> list[float]:
    return [window.seconds / window.steps for window in rank.windows if window.steps and window.seconds > 0]


def _mean(line: Sequence[float | None]) -> float:
    return fmean([cell for cell in line if cell is not None] or [1.0])


def _heat(grid: Grid, breaks: tuple[int, ...]) -> tuple[Heat, str]:
    lines, left_out = {f"rank {rank}": line for (rank, _), line in grid.items()}, ""
    if len(grid) > MOST_RANKS:
        lines = _by_host(grid)
        left_out = f"of {len(grid)} ranks the worst of each host, and the {SLOWEST} slowest ranks"
    every = -(-max(map(len, lines.values())) // MOST_COLUMNS)
    heat = Heat(
        lines=tuple(lines),
        cells=tuple(tuple(_thinned(line, every)) for line in lines.values()),
        breaks=tuple(at // every for at in breaks),
    )
    return heat, left_out + (f"{'; ' if left_out else ''}{every} windows to a cell" if every > 1 else "")


def _thinned(line: Sequence[float | None], every: int) -> Iterator[float | None]:
    """The slowest of `every` windows."""
    for start in range(0, len(line), every):
        yield max((cell for cell in line[start : start + every] if cell is not None), default=None)


def _by_host(grid: Grid) -> dict[str, list[float | None]]:
    """The worst rank of each host, as far as there is room the slowest hosts, and the slowest ranks."""
    slowest = sorted(grid, key=lambda who: -_mean(grid[who]))
    hosts: dict[str, tuple[int, str]] = {}
    for who in slowest:
        hosts.setdefault(who[1], who)
    kept = sorted(list(hosts)[:MOST_HOSTS])
    lines = {host: grid[hosts[host]] for host in kept}
    return {**lines, **{f"rank {who[0]}": grid[who] for who in slowest[:SLOWEST]}}


def _lines(grid: Grid) -> Iterator[tuple[str, str]]:
    """The slowest first."""
    ordered = sorted(grid, key=lambda who: -_mean(grid[who]))
    for rank, host in ordered[:MOST_RANKS]:
        yield f"rank {rank} on {host}", f"{_mean(grid[rank, host]):.3f}"


def _worst(grid: Grid) -> str:
    rank, host = max(grid, key=lambda who: _mean(grid[who]))
    return f"Slowest on the whole: rank {rank} on {host}, {_mean(grid[rank, host]):.3f} times the median"
