"""What another revision of this package changes, in a launch that measured both (`--against REV`). Pure.

Cells of both revisions are rivals of one contest (contests.py): they shared the rounds, so that the difference is
paired by round, and its interval holds for all differences of the report at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.analyse import kept
from scaling.analysis.contests import Contest, contests, difference, groups
from scaling.analysis.contrasts import Table
from scaling.analysis.curves import exchanges
from scaling.analysis.stats import Estimate
from scaling.records import other_code
from scaling.records.point import Point
from scaling.records.run import PointRecord

# The loss that counts, as scaling compare has it where nobody says another.
LOSS = 0.02


class Change(NamedTuple):
    """A cell of the launch's own revision, and its samples/s over those of the other one, - 1; None where no round
    has both."""

    point: Point
    revision: str
    gain: Estimate | None

    @property
    def verdict(self) -> str:
        """`slower`, `faster`, `same`, or `cannot tell`: as scaling compare says it."""
        if self.gain is None or self.gain.low is None or self.gain.high is None:
            return "cannot tell"
        most = 1 / (1 - LOSS) - 1
        if self.gain.high < 0 and self.gain.mean < -LOSS:
            return "slower"
        if self.gain.low > 0 and self.gain.mean > most:
            return "faster"
        return "same" if self.gain.low >= -LOSS and self.gain.high <= most else "cannot tell"


def changes(records: Iterable[PointRecord]) -> tuple[Change, ...]:
    """What each cell changed that was measured with both revisions; nothing of a launch with one alone."""
    latest = kept(records)
    if not any(other_code.revision(record.point.strategy) for record in latest):
        return ()
    measured = exchanges(latest)
    found = [contest for group in groups(measured) for contest in contests(group)]
    table = Table([contest.layout for contest in found])
    told = [change for contest in found for change in _of(contest, table)]
    compared = {(change.point.cell, change.revision) for change in told}
    others = (_uncompared(cell.point) for cell in measured if other_code.revision(cell.point.strategy))
    return (*told, *(one for one in others if (one.point.cell, one.revision) not in compared))


def _uncompared(point: Point) -> Change:
    """Of a cell that competes with none: it failed, its ranks share cores, or its bytes took another network."""
    own = replace(point, strategy=other_code.own(point.strategy))
    return Change(own, other_code.revision(point.strategy), None)


def _of(contest: Contest, table: Table) -> Iterator[Change]:
    place = {rival.point.cell: at for at, rival in enumerate(contest.rivals)}
    for at, rival in enumerate(contest.rivals):
        revision = other_code.revision(rival.point.strategy)
        own = replace(rival.point, strategy=other_code.own(rival.point.strategy))
        if revision and own.cell in place:
            yield Change(own, revision, difference(table, contest, at, place[own.cell]))
