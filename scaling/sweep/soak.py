"""Whether what was measured lasts: who trains on when the windows of an epoch are over, and how. Pure.

Where points take turns, a process is measured within its first seconds, which do not tell what it will do ten
seconds later. In the first round one exchange of each strategy and the plain loop behind it go on taking turns for
a while, as in a soak test. No figure counts these windows: `analysis/lasting.py` asks whether they become quicker
or slower.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median
from typing import NamedTuple

from scaling import frameworks
from scaling.plan import defaults
from scaling.records.events import Window
from scaling.records.point import Point
from scaling.records.run import LATER_WINDOWS
from scaling.records.task import Run
from scaling.sweep.attempt import Attempt
from scaling.sweep.state import PointState
from scaling.sweep.turns import Course

ROUND = 0


class Soaked(NamedTuple):
    """A point that goes on: all its ranks, or one of them alone."""

    attempt: Attempt
    rank: int | None

    @property
    def windows(self) -> Sequence[Window]:
        """Those that were measured of it, or of the first of its ranks."""
        return self.attempt.state.ranks[self.rank or 0].windows


def commands(attempts: Sequence[Attempt], course: Course) -> Iterator[tuple[Soaked, Run]]:
    """What is told to whom, one after the other."""
    found = chosen(attempts) if course.soak_s else []
    for block in range(turns([one.windows for one in found], course.soak_s) if found else 0):
        random.Random(f"{course.seed}/later {block}").shuffle(found)
        for one in found:
            yield one, _turn(one, block, canary=course.canary)


def turns(measured: Sequence[Sequence[Window]], soak_s: float) -> int:
    """How many each has, by the measured windows of all: for about so many seconds, and some at least."""
    return max(defaults.FEWEST_TURNS, round(soak_s / fmean(map(_turn_s, measured))))


def _turn_s(windows: Sequence[Window]) -> float:
    """Seconds of training in a turn: one step that gives ranks a common start, and windows like these."""
    return median(window.seconds * (LATER_WINDOWS + 1 / window.steps) for window in windows)


def chosen(attempts: Sequence[Attempt]) -> list[Soaked]:
    """Of each strategy the exchange of most devices beside its plain loop, and that loop on its first device."""
    found: dict[int, Soaked] = {}
    for exchange in _widest(attempt for attempt in attempts if _is_exchange(attempt.state)):
        if plain := next((one for one in attempts if _is_behind(one.state.point, exchange.state.point)), None):
            found[exchange.attempt] = Soaked(exchange, None)
            found[plain.attempt] = Soaked(plain, 0 if plain.state.point.kind == "each" else None)
    return list(found.values())


def _is_exchange(state: PointState) -> bool:
    """Whether its efficiency is claimed, of real devices that wait for each other."""
    point = state.point
    is_first = point.kind == "exchange" and point.round == ROUND and point.workload.trains
    return is_first and state.synchronous and not state.oversubscribed and point.hardware.device != "emulated"


def _widest(exchanges: Iterable[Attempt]) -> Iterator[Attempt]:
    by_strategy: dict[str, Attempt] = {}
    for one in exchanges:
        name = one.state.point.strategy
        if name not in by_strategy or one.state.point.world_size > by_strategy[name].state.point.world_size:
            by_strategy[name] = one
    return iter(by_strategy.values())


def _is_behind(plain: Point, exchange: Point) -> bool:
    """Whether the efficiency of the exchange is against this point."""
    if plain.kind not in ("solo", "each") or plain.strategy != frameworks.load(exchange.strategy).baseline:
        return False
    work = exchange.workload.alone(exchange.reference.batch_size)
    return plain.workload.alone(plain.workload.batch_size) == work and plain.hardware == exchange.hardware


def _turn(one: Soaked, block: int, *, canary: bool) -> Run:
    """Windows like the measured ones."""
    first = LATER_WINDOWS * (block + 1)
    return Run(windows=LATER_WINDOWS, steps=one.windows[-1].steps, measured=False, first=first, canary=canary)
