"""Points that take turns: whose windows a turn has, and how many windows each point has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from scaling.plan import defaults
from scaling.records.point import Record
from scaling.sweep.attempt import Attempt
from scaling.sweep.state import PointState

# Between two turns.
ORDERS_S = 0.03


class Course(Record, frozen=True, kw_only=True):
    """How an epoch is measured: so many blocks of windows of each point; `number` is None for a point by itself.

    `blocks` is None where the time of a step says how many there are. `at_once`: the points share no rank and no
    server, and all are measured at the same time. `planned_s`: how long it was planned to take, which bounds how
    long disturbed windows are measured again (quiet/turns.py). `soak_s`: how long some of them go on after their
    windows, 0 for none. `traced` are the keys of the points that end with profiled steps.
    """

    number: int | None
    blocks: int | None
    windows: int
    window_s: float
    seed: str
    canary: bool
    at_once: bool = False
    planned_s: float = 0.0
    soak_s: float = 0.0
    traced: frozenset[str] = frozenset()


class Turn(NamedTuple):
    """Whose windows are measured, from the `first` on: all ranks' of a point, or one's."""

    attempt: Attempt
    rank: int | None
    first: int

    @property
    def ranks(self) -> Sequence[int]:
        """The numbers of those that run."""
        return range(len(self.attempt.state.ranks)) if self.rank is None else (self.rank,)

    @property
    def launch_ranks(self) -> frozenset[int]:
        """The same, by rank of the launch: each has its cores."""
        return frozenset(self.attempt.state.ranks[number].task.launch_rank for number in self.ranks)


def blocks_that_fit(states: Iterable[PointState]) -> int:
    """How many windows each of these points has, which are warm, where the configuration leaves it open.

    They have been told no window that counts, so that what is measured has no say in it.
    """
    return defaults.turns_in_round(fmean(map(_turn_s, states)))


def _turn_s(state: PointState) -> float:
    """Seconds of a turn: a window like the last one that warmed up, an uncounted step before it, and orders."""
    slowest = max((rank.warmup[-1] for rank in state.ranks), key=lambda window: window.seconds)
    return slowest.seconds * (slowest.steps + 1) / slowest.steps + ORDERS_S
