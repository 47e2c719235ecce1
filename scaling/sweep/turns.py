"""Repetition of disturbed turns: which, when, within which budget, and which try counts.

An epoch calls `before` and `after` each turn. A turn is disturbed if a canary on its cores was slow just before it
(quiet/canary.py). It is repeated once a probe is fast; other turns go on meanwhile. If another program shared the
core, the turns just before on these cores are repeated too. Without canaries nothing is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import NamedTuple

from scaling.quiet.canary import Canaries, Canary
from scaling.records.events import Window
from scaling.records.messages import Paused
from scaling.sweep.attempt import Attempt
from scaling.sweep.state import ChildState

# Wait before another try on a disturbed core. After 0.25 s a slow core was slow again in 37 to 64 % of cases.
PATIENCE_S = 0.25
# Retry budget over the planned time of all rounds; most that one group may spend, over its own planned time.
# A burner that has a core for 10 s of every 40 costs a third to two thirds.
BUDGET, MOST_OF_GROUP = 1.0, 2.0


class Turn(NamedTuple):
    """A turn: windows of all ranks of a point, or of one rank, numbered from `first`. Equal turns are tries of one
    turn."""

    attempt: Attempt
    rank: int | None
    first: int

    @property
    def numbers(self) -> Sequence[int]:
        return range(len(self.attempt.state.ranks)) if self.rank is None else (self.rank,)

    @property
    def ranks(self) -> list[ChildState]:
        return [self.attempt.state.ranks[number] for number in self.numbers]

    @property
    def launch_ranks(self) -> frozenset[int]:
        """Launch ranks of the ranks that run; each has its own cores."""
        return frozenset(rank.task.launch_rank for rank in self.ranks)


class Quiet:
    """The canaries and the retry budget of a whole sweep."""

    def __init__(self) -> None:
        self.canaries = Canaries()
        self.spare_s = 0.0

    def allow(self, planned_s: float) -> None:
        """Add the retry budget of points with this planned time."""
        self.spare_s += BUDGET * planned_s


@dataclass(frozen=True)
class _Try:
    """`took_s` is the duration of the try before; `began_s` includes waiting."""

    turn: Turn
    is_again: bool = False
    not_before_s: float = 0.0
    took_s: float = 0.0
    began_s: float = 0.0
    started_s: float = 0.0


class Turns:
    """The turns of one epoch; each has `windows` windows. `probe` tries a canary on the cores of a paused turn.

    A point is not repeated past `deadline_s` after its start.
    """

    def __init__(
        self,
        quiet: Quiet,
        *,
        windows: int,
        planned_s: float,
        deadline_s: float,
        clock: Callable[[], float],
        probe: Callable[[Turn], Iterator[None]],
    ) -> None:
        self._quiet, self._windows, self._deadline_s = quiet, windows, deadline_s
        self._clock, self._probe = clock, probe
        self._left_s = max(0.0, min(quiet.spare_s, MOST_OF_GROUP * planned_s))
        self._again: deque[_Try] = deque()
        self._tries: dict[Turn, _Try] = {}
        self._newest: dict[int, Turn] = {}  # by launch rank: last turn not known as disturbed

    def before(self, turns: Iterable[Turn]) -> Iterator[Turn | None]:
        """Yield the turns to measure, new and disturbed ones; None while it waits."""
        for turn in turns:
            while self._again and self._again[0].not_before_s <= self._clock():
                yield from self._repeat(self._again.popleft())
            now_s = self._clock()
            self._tries[turn] = _Try(turn, began_s=now_s, started_s=now_s)
            yield turn
        while self._again:
            yield from self._repeat(self._again.popleft())

    def _repeat(self, again: _Try) -> Iterator[Turn | None]:
        """Probe first: that is faster than measuring a turn on a disturbed core."""
        began_s, turn = self._clock(), again.turn
        while self._clock() < again.not_before_s:
            yield None
        if not turn.attempt.fails:
            yield from self._probe(turn)
            stood = turn.attempt.stood.items()
            if self._is_slow(turn, list(_canaries(turn, stood)), again=True):
                self._plan(_Try(turn, is_again=True, began_s=began_s), [turn], again.took_s)
                return
        self._tries[turn] = _Try(turn, is_again=True, began_s=began_s, started_s=self._clock())
        yield turn

    def after(self, turn: Turn) -> None:
        """Judge a measured turn and plan another try of the disturbed turns."""
        tried = self._tries.pop(turn)
        windows = [
            (rank.task.launch_rank, one) for rank in turn.ranks for one in rank.windows if one.index == turn.first
        ]
        canaries, disturbed = list(_canaries(turn, windows)), list[Turn]()
        if self._is_slow(turn, canaries, again=tried.is_again):
            is_shared = any(one.is_shared for _, one in canaries)
            disturbed = [turn, *(self._taken_before(turn) if is_shared else ())]
        elif not turn.attempt.state.crowding:  # such a point claims nothing
            self._newest.update(dict.fromkeys(turn.launch_ranks, turn))
        self._plan(tried, disturbed, self._clock() - tried.started_s)

    def _is_slow(self, turn: Turn, canaries: Iterable[tuple[int, Canary]], *, again: bool) -> bool:
        company = "alone" if len(turn.numbers) == 1 else "together"
        return self._quiet.canaries.disturbed(((rank, company, one) for rank, one in canaries), again=again)

    def _taken_before(self, turn: Turn) -> list[Turn]:
        """Remove them, so that they are repeated once and not for each turn."""
        ranks = turn.launch_ranks
        found = list(dict.fromkeys(one for rank, one in self._newest.items() if rank in ranks))
        self._newest = {rank: one for rank, one in self._newest.items() if one not in found}
        return [one for one in found if not one.attempt.fails]

    def _plan(self, tried: _Try, disturbed: Iterable[Turn], took_s: float) -> None:
        if tried.is_again:
            spent_s = self._clock() - tried.began_s
            self._left_s -= spent_s
            self._quiet.spare_s -= spent_s
        for turn in () if tried.turn.attempt.fails else disturbed:
            indices = range(turn.first, turn.first + self._windows)
            # A point measured alone repeats all its windows and must end before its deadline.
            ends_s = turn.attempt.state.started_s + self._deadline_s
            if self._left_s > 0 and self._clock() + 2 * took_s < ends_s:
                tries = [set_aside(rank, indices) for rank in turn.ranks]
                self._again.append(_Try(turn, not_before_s=self._clock() + PATIENCE_S, took_s=took_s))
            else:
                tries = quietest(turn.ranks, indices)
            for number, one in zip(turn.numbers, tries, strict=True):
                turn.attempt.keep(number, *one)


def _canaries(turn: Turn, told: Iterable[tuple[int, Window | Paused]]) -> Iterator[tuple[int, Canary]]:
    """The canaries by launch rank. With oversubscription ranks queue behind each other, so queueing is ignored."""
    for rank, one in told:
        if one.canary_s is not None:
            yield rank, Canary(one.canary_s, 0.0 if turn.attempt.state.crowding else one.canary_queued_s)


# ---------------------------------------------------------------- tries
#
# Use the last try. If the retry budget is spent, use the try whose canary was fastest, whatever its windows took.


class Tries(NamedTuple):
    """Counted windows of a rank, and its other tries."""

    windows: tuple[Window, ...]
    disturbed: tuple[Window, ...]


def set_aside(rank: ChildState, indices: Collection[int]) -> Tries:
    """Return the tries of a rank without these windows, which will be repeated."""
    aside = (window for window in rank.windows if window.index in indices)
    return Tries(_others(rank.windows, indices), (*rank.disturbed, *aside))


def quietest(ranks: Sequence[ChildState], indices: Collection[int]) -> list[Tries]:
    """Return all ranks' tries if the one counts whose slowest canary was fastest (of equal ones the last), each
    canary relative to its rank's fastest. Windows that ran in one go have the canary of the first."""
    tries = [_tries(rank, indices) for rank in ranks]
    by_rank = [
        [next((one.canary_s for one in windows if one.canary_s is not None), inf) for windows in of_rank]
        for of_rank in tries
    ]
    relative = [[one / min(of_rank) for one in of_rank] for of_rank in by_rank if min(of_rank) < inf]
    slowness = [max(by_try) for by_try in zip(*relative, strict=True)] or [1.0] * len(tries[0])
    place = min(range(len(tries[0])), key=lambda number: (slowness[number], -number))
    found = []
    for rank, of_rank in zip(ranks, tries, strict=True):
        kept = of_rank.pop(place)
        disturbed = (*_others(rank.disturbed, indices), *chain.from_iterable(of_rank))
        found.append(Tries((*_others(rank.windows, indices), *kept), disturbed))
    return found


def _others(windows: Iterable[Window], indices: Collection[int]) -> tuple[Window, ...]:
    return tuple(window for window in windows if window.index not in indices)


def _tries(rank: ChildState, indices: Collection[int]) -> list[tuple[Window, ...]]:
    by_index: dict[int, list[Window]] = {}
    for window in (*rank.disturbed, *rank.windows):
        if window.index in indices:
            by_index.setdefault(window.index, []).append(window)
    return list(zip(*by_index.values(), strict=True))
