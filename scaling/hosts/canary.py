"""A fixed piece of work, timed on all cores of a rank while nothing is measured: how fast the machine itself is.

It always does the same and touches little memory, so that it is slower only where its core is: other processes,
another hyperthread's work, the hypervisor, the clock. It takes longer than two of the kernel's slices of time
(4 ms where the clock ticks 250 times a second), since a process that has slept gets its first one at once, whoever
else wants the core, and may be asked to leave at its second only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

from scaling.hosts import proc
from scaling.records.canary import is_shared, slow_above_s

NS = 1e9
PIECE = bytes(1 << 20)
PIECES = 14
LEAST = 4  # canaries of a core, before any of them is judged
NEWEST = 64
YOUNG = 16
TOGETHER_S = 1.0  # until the canaries of several cores are all there, before which none begins


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
    """A part of it: 0.7 to 1.5 ms."""
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


class Canary(NamedTuple):
    """What one took, and how much of that its core was somebody else's, by the kernel."""

    seconds: float
    queued_s: float = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether others had the core for part of it: so it is told of those, too, who have it all the time."""
        return is_shared(self.seconds, self.queued_s)


def tried(cpus: Collection[int]) -> Canary:
    """A canary on a hardware thread of each core that these CPUs are of, all at the same time: the slowest one."""
    firsts = [core[0] for core in proc.physical_cores(cpus)] if len(cpus) > 1 else []
    if len(firsts) > 1:
        with contextlib.suppress(RuntimeError):  # no more threads: any core will do
            if found := _side_by_side(firsts):
                return max(found)
    return _tried(cpus)


def _tried(cpus: Collection[int]) -> Canary:
    """A canary here. A CPU quota that holds it up makes no core slow: only what it ran then counts."""
    throttled, before_s, ran_before_s = _throttled(), queued_s(), time.thread_time()
    seconds = measure(cpus)
    ran_s, waited_s = time.thread_time() - ran_before_s, queued_s() - before_s
    return Canary(seconds, waited_s) if _throttled() == throttled else Canary(ran_s)


def _throttled() -> int:
    """In how many periods so far a CPU quota has held this process up."""
    return sum(one.throttled for one in proc.throttling().values())


def _side_by_side(cpus: Sequence[int]) -> list[Canary]:
    """A canary on each of these CPUs in a thread of its own, none where that is forbidden: two on one CPU would
    wait for each other. RuntimeError where so many threads cannot be had."""
    together = Barrier(len(cpus), timeout=TOGETHER_S)

    def one(cpu: int) -> Canary | None:
        is_there = False
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, [cpu])  # this thread's alone
            is_there = True
        together.wait()  # no thread's start is any part of what is timed
        return _tried([cpu]) if is_there else None

    with ThreadPoolExecutor(len(cpus)) as threads:
        return [found for found in threads.map(one, cpus) if found is not None]


class Canaries:
    """The canaries of a sweep, by launch rank and by whether other ranks had theirs at the same time (which share
    caches, power and hyperthreads)."""

    def __init__(self) -> None:
        self._seen: defaultdict[tuple[int, str], list[float]] = defaultdict(list)

    def disturbed(self, canaries: Iterable[tuple[int, str, Canary]], *, again: bool = False) -> bool:
        """Take the newest canaries, (launch rank, company, canary); whether any of their cores was disturbed.
        `again`: it was before, and this is another try."""
        found = [self._is_disturbed((rank, company), one, again) for rank, company, one in canaries]
        return any(found)

    def _is_disturbed(self, key: tuple[int, str], one: Canary, again: bool) -> bool:
        """Slower than it mostly is. Among the first of all that is not known yet, and who began beside a burner
        would take its slowness for usual: there it is disturbed if others had its core."""
        seen = self._seen[key]
        seen.append(one.seconds)
        found = self._stands_out(seen, one)
        if found and again:
            seen.pop()  # or whoever waits for a burner's end would make its slowness usual
        del seen[:-NEWEST]
        return found

    def _stands_out(self, seen: Sequence[float], one: Canary) -> bool:
        if len(seen) <= YOUNG and one.is_shared:
            return True
        return len(seen) > LEAST and one.seconds > slow_above_s(seen)
