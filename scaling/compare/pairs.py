"""Which cell of the base is which cell of the new runs, and what keeps two of them from being compared. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import asdict

from scaling.analysis.audit import UNRANKED
from scaling.analysis.rows import Row

# Who is measured: what a cell is called by, whatever it is measured with.
Who = tuple[str, str, tuple[tuple[str, str], ...], int, str, int]
# The stamps of a row whose figures are not what its name says, worst first.
STATES = ("FAILED", *UNRANKED)


class Pair(NamedTuple):
    """The rows of one cell, a row of each run that has it; one side is empty where it has none at all. `apart`
    names what they were not measured alike with, `left_out` the runs that say nothing of it."""

    base: tuple[Row, ...]
    new: tuple[Row, ...]
    apart: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def shown(self) -> Row:
        """What the cell is described by."""
        return (self.new or self.base)[0]


def pairs(base: Sequence[Sequence[Row]], new: Sequence[Sequence[Row]]) -> list[Pair]:
    """Cells that are alike in everything, then those of the same name that were measured differently, then those
    of one side alone; in the order of the base's table."""
    before, after = _by_cell(base), _by_cell(new)
    found = [Pair(rows, after.pop(key)) if key in after else Pair(rows, ()) for key, rows in before.items()]
    return [*(_renamed(pair, after) for pair in found), *(Pair((), rows) for rows in after.values())]


def _renamed(pair: Pair, left: dict[tuple[object, ...], tuple[Row, ...]]) -> Pair:
    """A cell without its like, beside what has its name, of what is left."""
    if pair.new:
        return pair
    for key, rows in left.items():
        if who(rows[0]) == who(pair.base[0]):
            del left[key]
            return Pair(pair.base, rows, tuple(_apart(pair.base[0], rows[0])))
    return pair


def who(row: Row) -> Who:
    """What a cell is called by."""
    options = tuple(sorted(row.options.items()))
    return row.strategy, row.interconnect, options, row.servers, row.server_hosts, row.world_size


def _by_cell(sides: Sequence[Sequence[Row]]) -> dict[tuple[object, ...], tuple[Row, ...]]:
    found: dict[tuple[object, ...], tuple[Row, ...]] = {}
    for rows in sides:
        for row in rows:
            key = (who(row), row.workload, row.hardware, row.placement)
            found[key] = (*found.get(key, ()), row)
    return found


def _apart(one: Row, other: Row) -> Iterator[str]:
    """`batch_size 32 | 64`."""
    for before, after in ((one.workload, other.workload), (one.hardware, other.hardware)):
        told = asdict(after)
        yield from (
            f"{name} {value} | {told[name]}" for name, value in asdict(before).items() if told[name] != value
        )
    if one.placement != other.placement:
        yield f"placement {one.placement} | {other.placement}"


def told(pair: Pair) -> Pair:
    """Of a cell that failed, say, in some runs of the base, those in which it did not, and the new ones that did
    not fail in the same way either: what one launch lost hides no loss of all the others."""
    had = states(pair.base)
    base = tuple(row for row in pair.base if not states([row]))
    if not had or not base:
        return pair
    new = tuple(row for row in pair.new if not any(state in had for state in states([row]))) or pair.new
    sides = (("base", pair.base, base), ("new", pair.new, new))
    left_out = tuple(
        f"{' '.join(states(rows))} in {len(rows) - len(kept)} of {len(rows)} {name} runs, which are left out"
        for name, rows, kept in sides
        if len(kept) < len(rows)
    )
    return pair._replace(base=base, new=new, left_out=left_out)


def states(rows: Sequence[Row]) -> list[str]:
    """The stamps that any of them has, worst first."""
    return [state for state in STATES if any(state in row.flags for row in rows)]
