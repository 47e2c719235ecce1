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
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from scaling.hosts import proc
from scaling.quiet.canary import Canary

NS = 1e9
PIECE = bytes(1 << 20)
PIECES = 14
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
