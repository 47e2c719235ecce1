"""One emulated device in its worker, independent of the framework."""

from __future__ import annotations

import time
from collections.abc import Callable

from scaling.emulated import layers, profiles
from scaling.records.point import Point

# ---------------------------------------------------------------- timeline
# Sleeping for durations drifts: every sleep ends late, 9 % in a step of a hundred layers. So each sleep aims at
# the absolute end of all work so far. Only waiting for other ranks moves that end.


# a shorter sleep is skipped; the next one ends on time
SHORTEST_S = 0.2e-3
# taking parameters that are ready takes less
BLOCKED_S = 1e-3


class Timeline:
    """The time of one device, stretched by `dilate`. Tests replace `clock` and `sleep`."""

    def __init__(
        self,
        dilate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._dilate = dilate
        self._clock = clock
        self._sleep = sleep
        self._end_s = clock()
        self._asked_s = self._end_s

    def begin(self, step_s: float) -> None:
        """Begin a step of `step_s`. Lateness is made up for, except a pause of more than half a step."""
        now_s = self._clock()
        if now_s - self._end_s > 0.5 * step_s * self._dilate:
            self._end_s = now_s

    def spend(self, seconds: float) -> None:
        self._end_s += seconds * self._dilate
        left_s = self._end_s - self._clock()
        if left_s >= SHORTEST_S:
            self._sleep(left_s)

    def finish(self) -> None:
        left_s = self._end_s - self._clock()
        if left_s > 0:
            self._sleep(left_s)

    def ask(self) -> None:
        self._asked_s = self._clock()

    def granted(self) -> None:
        """Note that the request is answered. If the device waited for it, it was idle until now."""
        now_s = self._clock()
        if now_s - self._asked_s > BLOCKED_S:
            self._end_s = max(self._end_s, now_s)

    def meet(self) -> None:
        """Note that all ranks have met: later work begins now at the earliest."""
        self._end_s = max(self._end_s, self._clock())


class EmulatedDevice:
    """A device with its model's rate, spans and timeline. Raises UsageError if the profile lacks the model or the
    batch."""

    def __init__(self, point: Point) -> None:
        work = point.workload
        self.rate = profiles.rate(point.hardware.profile, work.model, work.batch_size, work.image_size)
        found = layers.of(work.model, work.image_size)
        self.spans = layers.spans(found, self.rate.step_s, point.hardware.shrink)
        self.timeline = Timeline(point.hardware.dilate)
        self.name = f"emulated {profiles.find(point.hardware.profile).device}"


def value(rank: int, step: int) -> float:
    """Return the value of all gradient elements of a rank in a step: an integer, so sums are exact; it changes
    every step."""
    return 1.0 + (7 * rank + 3 * step) % 31
