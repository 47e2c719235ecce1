"""Turns: which windows a turn has, and how many turns each point has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from scaling.plan import defaults
from scaling.records.point import Record
from scaling.sweep.attempt import Attempt
from scaling.sweep.gpu_sharing import Sharing
from scaling.sweep.state import PointState

# seconds between two turns
ORDERS_S = 0.03


class Course(Record, frozen=True, kw_only=True):
    """How an epoch is measured.

    `number`: of the epoch in its round; None for a point alone.
    `blocks`: None if the time of a step decides.
    `windows`: of each point in a block.
    `at_once`: points share no rank and no server, and are measured at the same time.
    `planned_s`: planned duration, which limits the repetition of disturbed windows (quiet/turns.py).
    `soak_s`: duration of the soak, 0 for none.
    `traced`: keys of points that end with profiled steps.
    `warm_up_s`: the least seconds of warm-up if given.
    `gpus`: how the points share GPUs, which are warmed up once for all; None elsewhere.
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
    warm_up_s: float | None = None
    gpus: Sharing | None = None


class Turn(NamedTuple):
    """A turn: windows of all ranks of a point, or of one rank, numbered from `first`."""

    attempt: Attempt
    rank: int | None
    first: int

    @property
    def ranks(self) -> Sequence[int]:
        return range(len(self.attempt.state.ranks)) if self.rank is None else (self.rank,)

    @property
    def launch_ranks(self) -> frozenset[int]:
        """Launch ranks of the ranks that run; each has its own cores."""
        return frozenset(self.attempt.state.ranks[number].task.launch_rank for number in self.ranks)


def blocks_that_fit(states: Iterable[PointState]) -> int:
    """Return the number of windows of each of these warm points. Measured windows have no say in it."""
    return defaults.turns_in_round(fmean(map(_turn_s, states)))


def _turn_s(state: PointState) -> float:
    """Seconds of a turn: a window like the last of the warm-up, an uncounted step, and orders."""
    slowest = max((rank.warmup[-1] for rank in state.ranks), key=lambda window: window.seconds)
    return slowest.seconds * (slowest.steps + 1) / slowest.steps + ORDERS_S
