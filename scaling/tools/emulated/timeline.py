"""When an emulated device is busy: one kernel after the other, each ending at an absolute time.

Sleeping by durations drifts: each sleep ends late, and a step of a hundred layers takes 9 % too long. So each
sleep aims at the end of all that the device was given; what one sleep is late, the next is shorter. Only waiting
for others moves those ends: a device that waited for parameters or gradients begins when they are there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# A shorter sleep is left to the next one, which ends at its own time all the same.
SHORTEST_S = 0.2e-3
# Taking parameters that are there already takes less than this.
BLOCKED_S = 1e-3


class Timeline:
    """The time of one device, stretched by `dilate`. `clock` and `sleep` are replaced in tests."""

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
        """A step of `step_s` begins. Lateness is made up for, a pause of more than half a step is not."""
        now_s = self._clock()
        if now_s - self._end_s > 0.5 * step_s * self._dilate:
            self._end_s = now_s

    def spend(self, seconds: float) -> None:
        """The device works for `seconds` of its own time; returns when it has done so."""
        self._end_s += seconds * self._dilate
        left_s = self._end_s - self._clock()
        if left_s >= SHORTEST_S:
            self._sleep(left_s)

    def finish(self) -> None:
        """Return when the device has done all that it was given."""
        left_s = self._end_s - self._clock()
        if left_s > 0:
            self._sleep(left_s)

    def ask(self) -> None:
        """Note the time: what comes next may wait for others."""
        self._asked_s = self._clock()

    def granted(self) -> None:
        """What was asked for is there. If it was waited for, the device was idle until now."""
        now_s = self._clock()
        if now_s - self._asked_s > BLOCKED_S:
            self._end_s = max(self._end_s, now_s)

    def meet(self) -> None:
        """All ranks have been waited for: nobody begins what follows before now."""
        self._end_s = max(self._end_s, self._clock())
