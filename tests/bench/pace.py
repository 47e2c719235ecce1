"""How many windows a start, and how long ones, tell most on this machine in the same time.

Two processes, pinned to a core each, note how fast these are for a while; nothing else is measured. What was noted
is then replayed: starts of points that take turns, with windows of so many steps and so many blocks. A line per
design: the seconds of a run of six starts, half of the 95 % interval of the efficiency of two devices, of which
nothing is lost, and what that would be after 100 s of the same.

[WATCH_S=300] [STEP_S=0.05] python -m tests.bench.pace
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from math import log, sqrt
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.statistics import intervals
from scaling.quiet import agent

WATCH_S = float(os.environ.get("WATCH_S", "300"))
STEP_S = float(os.environ.get("STEP_S", "0.05"))
# Between two turns, the canary included; a start with its warm-up, beside its turns.
GAP_S, START_S = 0.025, 4.0
STARTS, RUNS = 6, 60
# Steps of a window, blocks of a start.
DESIGNS = ((6, 5), (6, 7), (3, 8), (3, 10), (2, 12), (1, 12), (1, 20))
SEATS = {"first": (0,), "last": (1,), "single": (0,), "both": (0, 1), "exchange": (0, 1)}


class Core:
    """How far a core comes in a time: when it was done with each of many pieces of the same work, after the last
    of which it goes on as from the first."""

    def __init__(self, ends_s: NDArray[np.float64]) -> None:
        self._ends_s = ends_s - ends_s[0]
        self.watched_s = float(self._ends_s[-1])
        self._done_s = np.linspace(0.0, self.watched_s, len(ends_s))

    def ends_at_s(self, start_s: float, work_s: float) -> float:
        """When work ends that takes so long at the core's mean speed."""
        laps, at_s = divmod(start_s, self.watched_s)
        more, done_s = divmod(float(np.interp(at_s, self._ends_s, self._done_s)) + work_s, self.watched_s)
        return (laps + more) * self.watched_s + float(np.interp(done_s, self._done_s, self._ends_s))


def main() -> None:
    if len(cpus := sorted(os.sched_getaffinity(0))) < 2:
        sys.exit("two cores are needed")
    with multiprocessing.Pool(2) as pool:
        cores = [Core(np.array(ends_s)) for ends_s in pool.map(watch, cpus[:2])]
    print(f"{STARTS} starts, steps of {1e3 * STEP_S:.0f} ms; half-width in points")
    dice = random.Random(1)
    for steps, blocks in DESIGNS:
        told = list(_runs(cores, steps, blocks, dice))
        seconds, error = fmean(run_s for run_s, _ in told), sqrt(fmean(error**2 for _, error in told))
        half_width = 100 * intervals.quantile(STARTS - 1) * error
        print(
            f"  {blocks:3} windows of {steps} steps  {seconds:4.0f} s  ± {half_width:4.1f}  "
            f"(± {half_width * sqrt(seconds / 100):.1f} in 100 s)",
            flush=True,
        )


def watch(cpu: int) -> list[float]:
    """When each of the pieces of work that it did on this core was done."""
    os.sched_setaffinity(0, {cpu})
    ends_s = [time.monotonic()]
    while ends_s[-1] - ends_s[0] < WATCH_S:
        agent.piece()
        ends_s.append(time.monotonic())
    return ends_s


def _runs(cores: Sequence[Core], steps: int, blocks: int, dice: random.Random) -> Iterator[tuple[float, float]]:
    """Of each run its seconds, and the standard error of the logarithm of its efficiency."""
    for _ in range(RUNS):
        begun_s = now_s = dice.uniform(0.0, cores[0].watched_s)
        found = []
        for _ in range(STARTS):
            ratios, now_s = _start(cores, steps, blocks, now_s + START_S, dice)
            found.append(intervals.trimmed(ratios).mean)
        yield now_s - begun_s, stdev(found) / sqrt(STARTS)


def _start(
    cores: Sequence[Core], steps: int, blocks: int, now_s: float, dice: random.Random
) -> tuple[list[float], float]:
    """Of each block the logarithm of its efficiency; and when the last one ends."""
    ratios = []
    for _ in range(blocks):
        took_s: dict[str, float] = {}
        for kind in dice.sample(list(SEATS), len(SEATS)):
            took_s[kind], now_s = _turn([cores[seat] for seat in SEATS[kind]], kind, steps, now_s + GAP_S)
        ratios.append(log(2 / (1 / took_s["first"] + 1 / took_s["last"]) / took_s["exchange"]))
    return ratios, now_s


def _turn(cores: Sequence[Core], kind: str, steps: int, now_s: float) -> tuple[float, float]:
    """Seconds of a step, after one that is not counted; and when all are done."""
    begun_s = max(core.ends_at_s(now_s, STEP_S) for core in cores)
    if kind != "exchange":
        ends_s = [core.ends_at_s(begun_s, steps * STEP_S) for core in cores]
        return (fmean(ends_s) - begun_s) / steps, max(ends_s)
    end_s = begun_s
    for _ in range(steps):
        end_s = max(core.ends_at_s(end_s, STEP_S) for core in cores)
    return (end_s - begun_s) / steps, end_s


if __name__ == "__main__":
    main()
