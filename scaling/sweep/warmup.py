"""The number of steps of a window, and the end of the warm-up.

Two single steps come first. Then come windows of K steps, K by the slowest rank, until they are steady or the
ceiling is reached. Floor and ceiling are each a time and a number of windows; both must be reached.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from scaling.analysis import intervals
from scaling.plan import defaults
from scaling.records.point import Point, Record
from scaling.records.task import Run
from scaling.sweep.state import PointState

SINGLE_STEPS = 2
FLOOR_WINDOWS = defaults.WARM_UP_WINDOWS
CEILING_WINDOWS = 16
MAX_STEPS = 100_000


class Pace(Record, frozen=True, kw_only=True):
    """The length of a window, and the floor and ceiling of the warm-up. `judged`: windows must be steady."""

    window_s: float
    floor_windows: int = FLOOR_WINDOWS
    floor_s: float = 0.0
    ceiling_s: float = 0.0
    judged: bool = True


# Points that take turns are not judged: analysis checks their many short windows for drift.
SHORT = Pace(window_s=0.0, floor_windows=1, judged=False)
# `comm` is in no efficiency: a part of a window is enough. Exchanges of several ranks are the noisiest points,
# because their steps stall now and then: longer windows average that.
COMM_PART, EXCHANGE_PART = 0.25, 2.0


def pace_of(point: Point, window_s: float, *, takes_turns: bool) -> Pace:
    """Return the pace of a point whose windows should last `window_s` seconds."""
    if not takes_turns:
        floor_s, ceiling_s = defaults.warm_up_s(point.hardware.device)
        return Pace(window_s=window_s, floor_s=floor_s, ceiling_s=ceiling_s)
    of_exchange = EXCHANGE_PART if point.world_size > 1 else 1.0
    part = {"exchange": of_exchange, "comm": COMM_PART}.get(point.kind, 1.0)
    return replace(SHORT, window_s=part * window_s)


class Warm(Record, frozen=True, kw_only=True):
    """The end of the warm-up: the steps of a window. `settled` is False if windows still drift."""

    steps: int
    settled: bool = True


def decide(state: PointState, pace: Pace) -> Run | Warm:
    """Return the command after the one that every rank has done, or `Warm` if the warm-up is over."""
    slowest_s, steps = _warmup(state)
    if len(steps) < SINGLE_STEPS:
        return Run(windows=1, steps=1, measured=False)
    step_s = slowest_s[-1] / steps[-1]
    fitting = steps_per_window(step_s, pace.window_s)
    floor = Run(windows=_floor_windows(pace, fitting * step_s), steps=fitting, measured=False)
    if len(steps) == SINGLE_STEPS:
        return floor
    current = steps[-1]
    after_s, counts = slowest_s[SINGLE_STEPS:], steps[SINGLE_STEPS:]
    alike_s = [seconds for seconds, count in zip(after_s, counts, strict=True) if count == current]
    exhausted = len(after_s) >= CEILING_WINDOWS and sum(after_s) >= pace.ceiling_s
    if not exhausted and not 0.5 <= fitting / current <= 2.0:
        # The single step was slow because of a lazy start, or too short for the clock.
        return floor
    if not pace.judged:
        return Warm(steps=current)
    settled = intervals.steady(alike_s[-FLOOR_WINDOWS:])
    if not exhausted and not (settled and sum(alike_s) >= pace.floor_s):
        return Run(windows=2, steps=current, measured=False)
    return Warm(steps=current, settled=settled)


def _floor_windows(pace: Pace, seconds: float) -> int:
    return max(pace.floor_windows, math.ceil(pace.floor_s / seconds) if seconds else 0)


def steps_per_window(step_s: float, window_s: float) -> int:
    """Return how many steps last at least `window_s`."""
    return max(1, min(MAX_STEPS, math.ceil(window_s / step_s))) if step_s > 0 else MAX_STEPS


def _warmup(state: PointState) -> tuple[list[float], list[int]]:
    """For each warm-up window, the seconds of the slowest rank, and the steps."""
    by_window = list(zip(*(rank.warmup for rank in state.ranks), strict=True))
    slowest_s = [max(window.seconds for window in windows) for windows in by_window]
    return slowest_s, [windows[0].steps for windows in by_window]
