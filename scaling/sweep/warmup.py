"""The number of steps of a window, and the end of the warm-up.

Two single steps come first. Then come windows of K steps, K by the slowest rank, until windows and GPUs are steady
or the ceiling is reached. Floor and ceiling are each a time and a number of windows; both must be reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean, linear_regression

from scaling.analysis.statistics import intervals
from scaling.plan import defaults
from scaling.records.point import Point, Record
from scaling.records.task import Run
from scaling.records.telemetry import Sample
from scaling.sweep.state import ChildState, PointState

SINGLE_STEPS = 2
FLOOR_WINDOWS = defaults.WARM_UP_WINDOWS
CEILING_WINDOWS = 16
MAX_STEPS = 100_000
# Most changes of a steady GPU from two windows to the next two: fractions of clock and power, degrees Celsius.
CLOCK_CHANGE, POWER_CHANGE, WARMING_C = 0.01, 0.1, 2.0


class Pace(Record, frozen=True, kw_only=True):
    """The length of a window, and the floor and ceiling of the warm-up. `judged`: windows must be steady."""

    window_s: float
    floor_windows: int = FLOOR_WINDOWS
    floor_s: float = 0.0
    ceiling_s: float = 0.0
    judged: bool = True


def pace_of(
    point: Point, window_s: float, *, takes_turns: bool, warm_up_s: float | None = None, warms_gpus: bool = False
) -> Pace:
    """Return the pace of a point whose windows should last `window_s` seconds.

    `warm_up_s`: the least seconds of warm-up if given. `warms_gpus`: this point warms up the GPUs for all points
    that take turns with it.
    """
    if point.hardware.device == "emulated" and not takes_turns:  # sleeping devices do not warm up
        return Pace(window_s=window_s, floor_windows=1, floor_s=warm_up_s or 0.0, judged=False)
    if not takes_turns or warms_gpus:
        floor_s, ceiling_s = defaults.warm_up_s(point.hardware.device, warm_up_s)
        return Pace(window_s=window_s, floor_s=floor_s, ceiling_s=ceiling_s)
    # Points that take turns are not judged: analysis checks their many short windows for drift.
    floor_s = 0.0 if point.hardware.device == "cuda" else warm_up_s or 0.0
    return Pace(window_s=defaults.part_of_window(point) * window_s, floor_windows=1, floor_s=floor_s, judged=False)


def lead_of(point: Point) -> int:
    """Return how many uncounted steps begin a turn: on GPUs a second one fills the device's queue."""
    return 2 if point.hardware.device == "cuda" else 1


class Warm(Record, frozen=True, kw_only=True):
    """The end of the warm-up: the steps of a window. `settled` is False if windows still drift."""

    steps: int
    settled: bool = True


def decide(state: PointState, pace: Pace) -> Run | Warm:
    """Return the command after the one that every rank has done, or `Warm` if the warm-up is over."""
    slowest_s, steps = _warmup(state)
    if len(steps) < SINGLE_STEPS:
        return Run(windows=1, steps=1, measured=False)
    current, step_s = steps[-1], slowest_s[-1] / steps[-1]
    fitting = steps_per_window(step_s, pace.window_s)
    window_s, after_s = fitting * step_s, slowest_s[SINGLE_STEPS:]
    alike_s = [seconds for seconds, count in zip(after_s, steps[SINGLE_STEPS:], strict=True) if count == current]
    exhausted = len(after_s) >= CEILING_WINDOWS and sum(after_s) >= pace.ceiling_s
    # Begin anew if the single step was slow because of a lazy start, or too short for the clock.
    if not after_s or (not exhausted and not 0.5 <= fitting / current <= 2.0):
        floor = max(pace.floor_windows, math.ceil(pace.floor_s / window_s) if window_s else 0)
        return Run(windows=floor, steps=fitting, measured=False)
    if not pace.judged:
        return Warm(steps=current)
    settled = intervals.steady(alike_s[-FLOOR_WINDOWS:]) and all(map(_has_steady_gpus, state.ranks))
    if not exhausted and not (settled and sum(alike_s) >= pace.floor_s):
        return Run(windows=2, steps=current, measured=False)
    return Warm(steps=current, settled=settled)


def _has_steady_gpus(rank: ChildState) -> bool:
    """Compare the last two readings with the two before. The last one of each run finds the GPU idle, so single
    readings of power differ. A power limit lowers the clock within 10 to 30 s."""
    by_gpu: dict[int | None, list[Sample]] = {}
    for window in rank.warmup[-FLOOR_WINDOWS:]:
        for one in window.gpus:
            by_gpu.setdefault(one.device_index, []).append(one)
    return all(
        _change([one.sm_clock_mhz for one in readings]) <= CLOCK_CHANGE
        and _change([one.power_w for one in readings]) <= POWER_CHANGE
        and _change([one.temperature_c for one in readings], relative=False) <= WARMING_C
        for readings in by_gpu.values()
    )


def _change(values: Sequence[float | None], *, relative: bool = True) -> float:
    """Return the change of the mean between the last two values and the two before; 0 if any is unknown."""
    known = [value for value in values[-FLOOR_WINDOWS:] if value]
    if len(known) < FLOOR_WINDOWS:
        return 0.0
    before, last = fmean(known[:2]), fmean(known[2:])
    return abs(last - before) / (before if relative else 1.0)


def drift_per_s(state: PointState) -> float:
    """Return by which fraction a step became slower per second at the end of the warm-up; 0 if unknown.
    The least-squares slope of the last windows, over their mean."""
    slowest_s, steps = _warmup(state)
    ends_s = list(accumulate(slowest_s))[SINGLE_STEPS:][-2 * FLOOR_WINDOWS :]
    step_s = [seconds / count for seconds, count in zip(slowest_s, steps, strict=True)][-len(ends_s) :]
    if len(ends_s) < FLOOR_WINDOWS:
        return 0.0
    return linear_regression(ends_s, step_s).slope / fmean(step_s)


def steps_per_window(step_s: float, window_s: float) -> int:
    """Return how many steps last at least `window_s`."""
    return max(1, min(MAX_STEPS, math.ceil(window_s / step_s))) if step_s > 0 else MAX_STEPS


def _warmup(state: PointState) -> tuple[list[float], list[int]]:
    """For each warm-up window, the seconds of the slowest rank, and the steps."""
    by_window = list(zip(*(rank.warmup for rank in state.ranks), strict=True))
    slowest_s = [max(window.seconds for window in windows) for windows in by_window]
    return slowest_s, [windows[0].steps for windows in by_window]
