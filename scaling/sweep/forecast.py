"""How much of a sweep is done, and how long the rest takes: pure functions of points, windows and seconds.

Every point of a plan counts the same. The plan's estimate holds until measured times outweigh it.
"""

from __future__ import annotations

from typing import NamedTuple

from scaling.sweep.state import PointState

# Before a point's windows: its start, its warm-up. Each counts like a window.
STEPS_BEFORE = 2
# The estimate weighs like so many measured seconds, and like one point at least.
ESTIMATE_WEIGHS_S = 10.0


class Ahead(NamedTuple):
    """`share` of the work is done, 0 to 1. The rest takes `left_s` seconds; None if nothing tells."""

    share: float
    left_s: float | None


class Work(NamedTuple):
    """Points of a sweep, with parts of running ones.

    `done`: all that are measured, also by earlier runs (--resume). `total`: all that are planned.
    `measured`: those of this run, in `measured_s` seconds without soak.
    """

    done: float
    total: int
    measured: float
    measured_s: float


def ahead(work: Work, *, planned_s: float, soaked_s: float = 0.0, soak_s: float = 0.0) -> Ahead:
    """Return what is ahead. `planned_s`: estimated seconds of a point, 0 if unknown. `soaked_s`: seconds of soak
    so far, of the `soak_s` seconds up to the end of this epoch."""
    weight = max(1.0, ESTIMATE_WEIGHS_S / planned_s) if planned_s else 0.0
    if not work.measured + weight:
        return Ahead(work.done / work.total, None)
    each_s = (work.measured_s + weight * planned_s) / (work.measured + weight)
    done_s, all_s = work.done * each_s + soaked_s, work.total * each_s + max(soak_s, soaked_s)
    return Ahead(done_s / all_s if all_s else 1.0, max(all_s - done_s, 0.0))


def part(state: PointState) -> float:
    """Return how much of a point is measured, 0 to 1, by the windows of its first rank."""
    if state.failure is not None or state.phase in ("soaking", "inspecting", "finishing", "ended"):
        return 1.0
    windows = len(state.ranks[0].windows)
    steps_before = STEPS_BEFORE if windows else {"starting": 0, "warming": 1}.get(state.phase, STEPS_BEFORE)
    return min(1.0, (steps_before + windows) / (STEPS_BEFORE + state.expected))
