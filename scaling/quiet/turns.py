"""Repetition of disturbed turns, on rank 0: which, when, within which budget, and which try counts.

The sweep calls `before` and `after` each turn (sweep/epoch.py). A turn is disturbed if a canary on its cores was
slow just before it. It is repeated once a probe is fast; other turns go on meanwhile. If another program shared
the core, the turns just before on these cores are repeated too. Without canaries nothing is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Generic, NamedTuple, Protocol, TypeVar

from scaling.quiet.canary import Canaries, Canary
from scaling.records.events import Window
from scaling.records.messages import Paused
from scaling.records.task import Task

# Wait before another try on a disturbed core. After 0.25 s a slow core was slow again in 37 to 64 % of cases.
PATIENCE_S = 0.25
# Retry budget over the planned time of all rounds; most that one group may spend, over its own planned time.
# A burner that has a core for 10 s of every 40 costs a third to two thirds.
BUDGET, MOST_OF_GROUP = 1.0, 2.0


class Rank(Protocol):
    """A rank as rank 0 sees it (`RankState`): counted windows, and disturbed tries."""

    @property
    def task(self) -> Task: ...
    @property
    def windows(self) -> tuple[Window, ...]: ...
    @property
    def disturbed(self) -> tuple[Window, ...]: ...


class State(Protocol):
    @property
    def ranks(self) -> Sequence[Rank]: ...
    @property
    def oversubscribed(self) -> bool: ...
    @property
    def started_s(self) -> float: ...


class Attempt(Protocol):
    """An attempt at a point (sweep/attempt.py); `stood` has the answers to the last probe by launch rank."""

    @property
    def state(self) -> State: ...
    @property
    def fails(self) -> bool: ...
    @property
    def stood(self) -> Mapping[int, Paused]: ...
    def keep(self, number: int, windows: tuple[Window, ...], disturbed: tuple[Window, ...]) -> None: ...


class Turn(Protocol):
    """The ranks of a turn and its `first` window (sweep/epoch.py). Equal turns are tries of one turn."""

    @property
    def attempt(self) -> Attempt: ...
    @property
    def first(self) -> int: ...
    @property
    def ranks(self) -> Sequence[int]: ...
    @property
    def launch_ranks(self) -> frozenset[int]: ...


T = TypeVar("T", bound=Turn)


class Quiet:
    """The canaries and the retry budget of a whole sweep."""

    def __init__(self) -> None:
        self.canaries = Canaries()
        self.spare_s = 0.0

    def allow(self, planned_s: float) -> None:
        """Add the retry budget of points with this planned time."""
        self.spare_s += BUDGET * planned_s


@dataclass(frozen=True)
class _Try(Generic[T]):
    """`took_s` is the duration of the try before; `began_s` includes waiting."""

    turn: T
    is_again: bool = False
    not_before_s: float = 0.0
    took_s: float = 0.0
    began_s: float = 0.0
    started_s: float = 0.0


class Turns(Generic[T]):
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
        probe: Callable[[T], Iterator[None]],
    ) -> None:
        self._quiet = quiet
        self._windows = windows
        self._deadline_s = deadline_s
        self._clock = clock
        self._probe = probe
        self._left_s = max(0.0, min(quiet.spare_s, MOST_OF_GROUP * planned_s))
        self._again: deque[_Try[T]] = deque()
        self._tries: dict[T, _Try[T]] = {}
        self._newest: dict[int, T] = {}  # by launch rank: last turn not known as disturbed

    def before(self, turns: Iterable[T]) -> Iterator[T | None]:
        """Yield the turns to measure, new and disturbed ones; None while it waits."""
        for turn in turns:
            while self._again and self._again[0].not_before_s <= self._clock():
                yield from self._repeat(self._again.popleft())
            now_s = self._clock()
            yield self._started(_Try(turn, began_s=now_s, started_s=now_s))
        while self._again:
            yield from self._repeat(self._again.popleft())

    def after(self, turn: T) -> None:
        """Judge a measured turn and plan another try of the disturbed turns."""
        tried = self._tries.pop(turn)
        found, took_s = self._disturbed(tried), self._clock() - tried.started_s
        self._plan(tried, found, took_s)

    def _repeat(self, again: _Try[T]) -> Iterator[T | None]:
        """Probe first: that is faster than measuring a turn on a disturbed core."""
        began_s, turn = self._clock(), again.turn
        while self._clock() < again.not_before_s:
            yield None
        if not turn.attempt.fails:
            yield from self._probe(turn)
            if self._is_slow(turn, _probed(turn), again=True):
                self._plan(_Try(turn, is_again=True, began_s=began_s), [turn], again.took_s)
                return
        yield self._started(_Try(turn, is_again=True, began_s=began_s, started_s=self._clock()))

    def _started(self, tried: _Try[T]) -> T:
        self._tries[tried.turn] = tried
        return tried.turn

    def _disturbed(self, tried: _Try[T]) -> list[T]:
        """None, the turn itself, or also the turns before it."""
        turn, canaries = tried.turn, list(_canaries(tried.turn))
        if self._is_slow(turn, canaries, again=tried.is_again):
            before = self._taken_before(turn)
            return [turn, *before] if any(one.is_shared for _, one in canaries) else [turn]
        if not turn.attempt.state.oversubscribed:  # such a point claims nothing
            self._newest.update(dict.fromkeys(turn.launch_ranks, turn))
        return []

    def _is_slow(self, turn: T, canaries: Iterable[tuple[int, Canary]], *, again: bool) -> bool:
        company = "alone" if len(turn.ranks) == 1 else "together"
        return self._quiet.canaries.disturbed(((rank, company, one) for rank, one in canaries), again=again)

    def _taken_before(self, turn: T) -> list[T]:
        """Remove them, so that they are repeated once and not for each turn."""
        ranks = turn.launch_ranks
        found = list(dict.fromkeys(one for rank, one in self._newest.items() if rank in ranks))
        self._newest = {rank: one for rank, one in self._newest.items() if one not in found}
        return [one for one in found if not one.attempt.fails]

    def _plan(self, tried: _Try[T], disturbed: Iterable[T], took_s: float) -> None:
        if tried.is_again:
            spent_s = self._clock() - tried.began_s
            self._left_s -= spent_s
            self._quiet.spare_s -= spent_s
        for turn in () if tried.turn.attempt.fails else disturbed:
            indices = range(turn.first, turn.first + self._windows)
            if self._has_time(turn, took_s):
                _keep(turn, [set_aside(rank, indices) for rank in _ranks(turn)])
                self._again.append(_Try(turn, not_before_s=self._clock() + PATIENCE_S, took_s=took_s))
            else:
                _keep(turn, quietest(_ranks(turn), indices))

    def _has_time(self, turn: T, took_s: float) -> bool:
        """A point measured alone repeats all its windows and must end before its deadline."""
        ends_s = turn.attempt.state.started_s + self._deadline_s
        return self._left_s > 0 and self._clock() + 2 * took_s < ends_s


# ---------------------------------------------------------------- canaries of a turn


def _canaries(turn: Turn) -> Iterator[tuple[int, Canary]]:
    for rank in _ranks(turn):
        for window in rank.windows:
            if window.index == turn.first and window.canary_s is not None:
                yield rank.task.launch_rank, _canary(turn, window.canary_s, window.canary_queued_s)


def _probed(turn: Turn) -> Iterator[tuple[int, Canary]]:
    for rank, said in turn.attempt.stood.items():
        if said.canary_s is not None:
            yield rank, _canary(turn, said.canary_s, said.canary_queued_s)


def _canary(turn: Turn, seconds: float, queued_s: float) -> Canary:
    """With oversubscription ranks queue behind each other, so queueing is ignored."""
    return Canary(seconds, 0.0 if turn.attempt.state.oversubscribed else queued_s)


# ---------------------------------------------------------------- tries
#
# Use the last try. If the retry budget is spent, use the try whose canary was fastest, whatever its windows took.


class Tries(NamedTuple):
    """Counted windows of a rank, and its other tries."""

    windows: tuple[Window, ...]
    disturbed: tuple[Window, ...]


# Windows of one rank in one turn.
Try = tuple[Window, ...]


def _ranks(turn: Turn) -> list[Rank]:
    return [turn.attempt.state.ranks[number] for number in turn.ranks]


def _keep(turn: Turn, tries: Iterable[Tries]) -> None:
    for number, one in zip(turn.ranks, tries, strict=True):
        turn.attempt.keep(number, one.windows, one.disturbed)


def set_aside(rank: Rank, indices: Collection[int]) -> Tries:
    """Return the tries of a rank without these windows, which will be repeated."""
    aside = (window for window in rank.windows if window.index in indices)
    return Tries(tuple(_others(rank.windows, indices)), (*rank.disturbed, *aside))


def quietest(ranks: Sequence[Rank], indices: Collection[int]) -> list[Tries]:
    """Return all ranks' tries if the one counts whose slowest canary was fastest (of equal ones the last)."""
    tries = [_tries(rank, indices) for rank in ranks]
    place = _quietest([[_canary_s(one) for one in of_rank] for of_rank in tries])
    found = []
    for rank, of_rank in zip(ranks, tries, strict=True):
        kept = of_rank.pop(place)
        disturbed = (*_others(rank.disturbed, indices), *chain.from_iterable(of_rank))
        found.append(Tries((*_others(rank.windows, indices), *kept), disturbed))
    return found


def _others(windows: Iterable[Window], indices: Collection[int]) -> Iterator[Window]:
    return (window for window in windows if window.index not in indices)


def _tries(rank: Rank, indices: Collection[int]) -> list[Try]:
    by_index: dict[int, list[Window]] = {}
    for window in (*rank.disturbed, *rank.windows):
        if window.index in indices:
            by_index.setdefault(window.index, []).append(window)
    return list(zip(*by_index.values(), strict=True))


def _canary_s(one: Try) -> float:
    """Windows that ran in one go have it at the first."""
    return next((window.canary_s for window in one if window.canary_s is not None), inf)


def _quietest(by_rank: Sequence[Sequence[float]]) -> int:
    """Index of the try with the fastest slowest canary, each relative to its rank's fastest."""
    told = [canaries_s for canaries_s in by_rank if min(canaries_s) < inf]
    slowness = [max(by_try) for by_try in zip(*([one / min(of) for one in of] for of in told), strict=True)]
    return min(range(len(by_rank[0])), key=lambda place: (slowness[place] if slowness else 1.0, -place))
