"""What this machine's processors and memory use while measured windows run: read at both ends and every 10 s.

A package's counter begins anew after minutes to hours: more than one turn between two readings would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from scaling.hosts import rapl
from scaling.records.telemetry import MachineEnergy

EVERY_S = 10.0


class EnergyMeter:
    """Adds up over stretches: `start`, `sample` now and then, `pause`, and again; `total` in the end.

    What cannot be read is told and costs nothing else. `root` is /sys/class/powercap.
    """

    def __init__(self, root: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counters = rapl.counters(root)
        self._last: list[int] | None = None
        self._last_s = 0.0
        self._joules = self._seconds = 0.0
        self._unreadable = ""

    def start(self) -> None:
        """A stretch begins."""
        self._last = self._read()
        self._last_s = self._clock()

    def sample(self) -> None:
        """Read, if that is due."""
        if self._last is not None and self._clock() - self._last_s >= EVERY_S:
            self._add()

    def pause(self) -> None:
        """The stretch ends, if one has begun."""
        if self._last is not None:
            self._add()
        self._last = None

    def total(self) -> MachineEnergy | None:
        """All stretches; None without counters, or before any stretch."""
        if self._unreadable:
            return MachineEnergy(unreadable=self._unreadable)
        return MachineEnergy(joules=self._joules, seconds=self._seconds) if self._seconds else None

    def _add(self) -> None:
        before, before_s = self._last, self._last_s
        self.start()
        if before is not None and self._last is not None:
            self._joules += rapl.joules(self._counters, before, self._last)
            self._seconds += self._last_s - before_s

    def _read(self) -> list[int] | None:
        if not self._counters or self._unreadable:
            return None
        try:
            return rapl.read(self._counters)
        except OSError as error:
            self._unreadable = f"{error.filename}: {error.strerror}"
            return None
