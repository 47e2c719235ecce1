"""How many steps make a window, when the warm-up is over, when the point is done. Pure.

Rank 0 decides for all ranks, so that collective steps stay equal in number: two single steps; then
windows of K steps, K from the slowest rank, until they are steady or the ceiling is reached; then
the measured windows in one go; then the end.
"""

from __future__ import annotations

import math

from scaling.analysis import stats
from scaling.records.point import Record
from scaling.records.task import Command, Finish, Run
from scaling.sweep.state import PointState

SINGLE_STEPS = 2
FLOOR_WINDOWS = 4
CEILING_WINDOWS = 16
MAX_STEPS = 100_000


class Pace(Record, frozen=True, kw_only=True):
    """What a window should last and how many are measured."""

    windows: int
    window_s: float


class Decision(Record, frozen=True, kw_only=True):
    """What all ranks are told next; `settled` is False where measuring begins though windows still drift."""

    command: Command
    settled: bool = True


def decide(state: PointState, pace: Pace) -> Decision:
    """Return the next command once every rank is ready, or has done all windows of the last one."""
    if state.phase == "measuring":
        return Decision(command=Finish())
    slowest_s, steps = _warmup(state)
    if len(steps) < SINGLE_STEPS:
        return Decision(command=Run(windows=1, steps=1, measured=False))
    fitting = steps_per_window(slowest_s[-1] / steps[-1], pace.window_s)
    if len(steps) == SINGLE_STEPS:
        return Decision(command=Run(windows=FLOOR_WINDOWS, steps=fitting, measured=False))
    current = steps[-1]
    alike_s = [seconds for seconds, count in zip(slowest_s, steps, strict=True) if count == current]
    exhausted = len(steps) >= SINGLE_STEPS + CEILING_WINDOWS
    if not exhausted and not 0.5 <= fitting / current <= 2.0:
        # The single step misled: a lazy start made it slow, or the clock could not tell it.
        return Decision(command=Run(windows=FLOOR_WINDOWS, steps=fitting, measured=False))
    settled = stats.steady(alike_s[-FLOOR_WINDOWS:])
    if not settled and not exhausted:
        return Decision(command=Run(windows=2, steps=current, measured=False))
    # Whoever is done first goes on, or the last ranks would run on an emptier machine than the first.
    linger = state.point.kind == "together" or not state.synchronous
    run = Run(windows=pace.windows, steps=current, measured=True, linger=linger)
    return Decision(command=run, settled=settled)


def steps_per_window(step_s: float, window_s: float) -> int:
    """How many steps last at least `window_s`."""
    return max(1, min(MAX_STEPS, math.ceil(window_s / step_s))) if step_s > 0 else MAX_STEPS


def _warmup(state: PointState) -> tuple[list[float], list[int]]:
    """Return for each warm-up window the slowest rank's seconds, and its steps."""
    by_window = list(zip(*(rank.warmup for rank in state.ranks), strict=True))
    slowest_s = [max(window.seconds for window in windows) for windows in by_window]
    return slowest_s, [windows[0].steps for windows in by_window]
