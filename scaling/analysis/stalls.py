"""Windows far longer than the others of their rank: which, how long, and whether all stood still. Pure.

No window is left out for being slow: a note tells what the numbers do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from scaling.records.run import PointRecord, RankRecord
from scaling.text import counted, several

# A window is named if it takes so many times as long as the median of the others of its rank and round: a program
# that has half of a rank's core makes its windows twice as long.
FAR = 3.0
# Windows of a rank, of which the others' median tells something.
LEAST = 3


class Stall(NamedTuple):
    """A window of a record that was far too long for some of its ranks; `usual_s` is what their others took."""

    record: PointRecord
    ranks: tuple[RankRecord, ...]
    seconds: float
    usual_s: float


def notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """The longest such window, with how many others there are; and machines that were suspended."""
    found = sorted(_found(records), key=lambda one: one.usual_s - one.seconds)
    if found:
        others = f"; {counted(len(found) - 1, 'other')} like it" if len(found) > 1 else ""
        yield f"slow window: {_told(found[0])}{others}"
    asleep: dict[str, float] = {}
    for rank in (rank for record in records for rank in record.ranks):
        asleep[rank.host] = max(rank.telemetry.suspended_s, asleep.get(rank.host, 0.0))
    for host, seconds in asleep.items():
        if seconds:
            yield f"{host} was suspended for {seconds:.1f} s while windows were measured, which no window counts"


def _found(records: Iterable[PointRecord]) -> Iterator[Stall]:
    for record in records:
        by_window: dict[int, list[tuple[float, float, RankRecord]]] = {}
        for rank in record.ranks:
            for index, seconds, usual_s in _far(rank):
                by_window.setdefault(index, []).append((seconds, usual_s, rank))
        for same in by_window.values():
            seconds, usual_s, _ = max(same, key=lambda one: one[0])
            yield Stall(record, tuple(rank for _, _, rank in same), seconds, usual_s)


def _far(rank: RankRecord) -> Iterator[tuple[int, float, float]]:
    """Of a rank, the index of each such window, its seconds, and those of as many steps of the others."""
    step_s = [one.seconds / one.steps for one in rank.windows if one.steps]
    if len(step_s) < LEAST or len(step_s) < len(rank.windows):
        return
    for place, window in enumerate(rank.windows):
        usual_s = window.steps * median(step_s[:place] + step_s[place + 1 :])
        if window.seconds > FAR * usual_s:
            yield window.index, window.seconds, usual_s


# ---------------------------------------------------------------- in words


def _told(stall: Stall) -> str:
    record, ranks, seconds, usual_s = stall
    whose = f"all {len(ranks)} ranks" if len(ranks) == len(record.ranks) > 1 else several(list(map(_name, ranks)))
    verb = "took" if len(ranks) == 1 else "each took"
    return (
        f"{whose} {verb} {seconds:.2g} s for one of round {record.point.round + 1}, {usual_s:.2g} s is the median "
        f"of its others{_stood_still(stall)}"
    )


def _name(rank: RankRecord) -> str:
    return f"rank {rank.rank} on {rank.host}"


def _stood_still(stall: Stall) -> str:
    """Whose agents stood still too for most of what was too long: of all ranks of some hosts, or of all."""
    hosts = dict.fromkeys(rank.host for rank in stall.record.ranks)
    still_s = {
        host: min(rank.telemetry.still_s for rank in stall.record.ranks if rank.host == host) for host in hosts
    }
    stopped = [host for host in hosts if still_s[host] > (stall.seconds - stall.usual_s) / 2]
    if not stopped:
        return ""
    whose = "the whole job" if len(stopped) == len(hosts) else several(stopped)
    seconds = max(still_s[host] for host in stopped)
    return f"; {whose} stood still for {seconds:.1f} s: it was stopped, or its machine was (a checkpoint)"
