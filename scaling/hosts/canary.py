"""A fixed piece of work, timed on a rank's own core while nothing is measured: how fast the machine itself is.

It always does the same and touches little memory, so that it is slower only where its core is: other processes,
another hyperthread's work, the hypervisor, the clock. It takes longer than the kernel's slices of time, since a
process that has slept gets its first one at once, whoever else wants the core.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from scaling.records.canary import SLOWER, slow_above_s

NS = 1e9
PIECE = bytes(1 << 20)
PIECES = 6
LEAST = 4  # canaries of a core, before any of them is judged
NEWEST = 64


def measure(cpus: Collection[int]) -> float:
    """Seconds that the piece of work takes on the first of these CPUs; where none are given, on any."""
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # a cgroup that forbids it: any CPU will do
        os.sched_setaffinity(0, list(cpus)[:1] or before)
    try:
        return _once()
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def piece() -> None:
    """A part of it, about a millisecond."""
    hashlib.blake2b(PIECE)


def _once() -> float:
    start_s = time.perf_counter()
    for _ in range(PIECES):
        piece()
    return time.perf_counter() - start_s


def queued_s() -> float:
    """How long this thread has waited so far for CPUs that others had; 0 where the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / NS
    return 0.0


def tried(cpus: Collection[int]) -> tuple[float, bool]:
    """Seconds of one canary, and whether others had its core for part of them."""
    before_s = queued_s()
    seconds = measure(cpus)
    return seconds, is_shared(queued_s() - before_s, seconds)


def is_shared(waited_s: float, canary_s: float) -> bool:
    """Whether others had the core for part of a canary: so it is told of those, too, who have it all the time."""
    return canary_s > SLOWER * (canary_s - waited_s)


class Canaries:
    """The canaries of a sweep, by seat and by whether other seats had theirs at the same time (which share caches,
    power and hyperthreads)."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[int, str], list[float]] = defaultdict(list)

    def disturbed(self, canaries: Iterable[tuple[int, str, float]]) -> bool:
        """Take the newest canaries, (launch rank, company, seconds); whether any of their cores was disturbed."""
        found = [self._is_slow((rank, company), seconds) for rank, company, seconds in canaries]
        return any(found)

    def _is_slow(self, key: tuple[int, str], seconds: float) -> bool:
        seen = self._seen[key]
        seen.append(seconds)
        del seen[:-NEWEST]
        return len(seen) > LEAST and seconds > slow_above_s(seen)
