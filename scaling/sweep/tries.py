"""Windows that something else disturbed have several tries: which of them counts. Pure.

The last one does, which was undisturbed. Where the time for that was spent before, that one does which began on
the quickest cores: canaries choose it, and not what its windows took.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from math import inf

from msgspec.structs import replace

from scaling.records.events import Window
from scaling.sweep.state import PointState, RankState, with_rank

# The windows of one rank that came in one turn.
Try = tuple[Window, ...]


def set_aside(state: PointState, indices: Collection[int], ranks: Collection[int]) -> PointState:
    """The state without these measured windows of these ranks, which will be tried again."""
    for number in ranks:
        rank = state.ranks[number]
        aside = (window for window in rank.windows if window.index in indices)
        kept = tuple(_others(rank.windows, indices))
        state = with_rank(state, number, replace(rank, windows=kept, disturbed=(*rank.disturbed, *aside)))
    return state


def keep_quietest(state: PointState, indices: Collection[int], ranks: Collection[int]) -> PointState:
    """The state in which that try of these windows counts before which the slowest core of these ranks was
    quickest; of several such, the last one."""
    tries = {number: _tries(state.ranks[number], indices) for number in ranks}
    place = _quietest([[_canary_s(one) for one in of_rank] for of_rank in tries.values()])
    for number, of_rank in tries.items():
        rank, kept = state.ranks[number], of_rank.pop(place)
        windows = (*_others(rank.windows, indices), *kept)
        disturbed = (*_others(rank.disturbed, indices), *chain.from_iterable(of_rank))
        state = with_rank(state, number, replace(rank, windows=windows, disturbed=disturbed))
    return state


def _others(windows: Iterable[Window], indices: Collection[int]) -> Iterator[Window]:
    return (window for window in windows if window.index not in indices)


def _tries(rank: RankState, indices: Collection[int]) -> list[Try]:
    """All that there were of these windows, the oldest first."""
    by_index: dict[int, list[Window]] = {}
    for window in (*rank.disturbed, *rank.windows):
        if window.index in indices:
            by_index.setdefault(window.index, []).append(window)
    return list(zip(*by_index.values(), strict=True))


def _canary_s(one: Try) -> float:
    """Before the first of its windows; those that run in one go have no other."""
    return next((window.canary_s for window in one if window.canary_s is not None), inf)


def _quietest(by_rank: Sequence[Sequence[float]]) -> int:
    """The place of the try whose slowest canary is quickest, each against the quickest one of its rank."""
    told = [canaries_s for canaries_s in by_rank if min(canaries_s) < inf]
    slowness = [max(by_try) for by_try in zip(*([one / min(of) for one in of] for of in told), strict=True)]
    return min(range(len(by_rank[0])), key=lambda place: (slowness[place] if slowness else 1.0, -place))
