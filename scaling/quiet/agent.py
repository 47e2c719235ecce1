"""Canaries and a census of processes on an agent's host: whether another program uses the cores of its rank.

A canary is a fixed piece of work on all cores of a rank, timed while its point is paused. It touches little
memory, so it is slow only if its core is: by other processes, another hyperthread, the hypervisor or the clock.
The agent reads all of /proc (some 15 us per process) only if another program is suspected.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

from msgspec.structs import replace

from scaling.hosts import proc
from scaling.quiet.canary import Canaries, Canary
from scaling.records.events import Window
from scaling.records.messages import Pause, Paused
from scaling.records.task import Command, Run, Task
from scaling.records.telemetry import Foreign
from scaling.text import one_line

# ---------------------------------------------------------------- one child

# Share of a CPU in one stretch of windows: two kernel ticks in 0.1 s.
OTHERS = 0.2


class Suspicion:
    """Whether another program may use the CPUs of one rank, over all points of a launch.

    Canaries detect a program that comes and goes. A constant one is detected by its CPU time on the rank's CPUs.
    """

    def __init__(self) -> None:
        self._canaries = Canaries()
        self._others = False

    def is_raised(self, found: Canary | None, *, again: bool) -> bool:
        """Return whether to take a census in the next windows; `again`: they are repeated ones."""
        if found is not None and (self._canaries.disturbed([(0, "", found)], again=again) or found.is_shared):
            return True
        return self._others

    def ran_alone(self, others: float) -> None:
        """Store the share of a CPU that others ran in a stretch without other parts of the run."""
        self._others = others > OTHERS


class Quiet:
    """The cores of one child: call `before` each command and `after` each stretch of measured windows."""

    def __init__(self, task: Task, suspicion: Suspicion | None = None) -> None:
        self.task = task
        self._suspicion = suspicion or Suspicion()
        self._canary: Canary | None = None
        self._measured: set[int] = set()
        self._census: Census | None = None
        self._foreign: list[Foreign] = []

    def before(self, command: Command) -> None:
        """Try the canary of a command; begin a census if measured windows may be disturbed."""
        self._canary = None
        if isinstance(command, Run):
            self._canary = tried(self.task.cpus) if command.canary else None
            if command.measured:
                if self._suspicion.is_raised(self._canary, again=command.first in self._measured):
                    self.look()
                self._measured.add(command.first)

    def look(self) -> None:
        """Begin a census that ends after the next measured windows."""
        self._census = census()

    def noted(self, window: Window) -> Window:
        """Return the first window of a command with the canary before it, the others unchanged."""
        found, self._canary = self._canary, None
        return window if found is None else replace(window, canary_s=found.seconds, canary_queued_s=found.queued_s)

    def after(self, others: float) -> None:
        """End a stretch of measured windows in which others ran this share of a CPU."""
        if self.task.role == "worker" and self.task.point.has_own_cpus:
            self._suspicion.ran_alone(others)
        if self._census is not None:
            self._foreign += busiest(self._census, census())
            self._census = None

    def foreign(self) -> tuple[Foreign, ...]:
        """Return the processes seen, summed by name, busiest first."""
        by_name: dict[str, Foreign] = {}
        for one in self._foreign:
            old = by_name.get(one.name, Foreign(name=one.name, run_s=0.0, over_s=0.0))
            by_name[one.name] = replace(old, run_s=old.run_s + one.run_s, over_s=old.over_s + one.over_s)
        return tuple(sorted(by_name.values(), key=lambda one: -one.run_s))


def stood(order: Pause, launch_rank: int, cpus: Collection[int] | None) -> Paused:
    """Return the answer of a paused point, with a canary on a worker's CPUs if requested."""
    answer = Paused(attempt=order.attempt, launch_rank=launch_rank)
    if cpus is None or not order.canary:
        return answer
    found = tried(cpus)
    return replace(answer, canary_s=found.seconds, canary_queued_s=found.queued_s)


# ---------------------------------------------------------------- canary
#
# The work takes over two kernel time slices (4 ms at 250 Hz): a process that slept always gets its first slice.

PIECE = bytes(1 << 20)
PIECES = 14
TOGETHER_S = 1.0  # longest wait until the canaries of several cores begin together
queued_s = proc.queued_s  # tests replace it


def measure(cpus: Collection[int]) -> float:
    """Return the seconds of the work on the first of these CPUs; on any if none are given."""
    before = os.sched_getaffinity(0)
    with suppress(OSError):  # forbidden by a cgroup: use any CPU
        os.sched_setaffinity(0, list(cpus)[:1] or before)
    try:
        start_s = time.perf_counter()
        for _ in range(PIECES):
            piece()
        return time.perf_counter() - start_s
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


def piece() -> None:
    """Do a part of the work: 0.7 to 1.5 ms."""
    hashlib.blake2b(PIECE)


def tried(cpus: Collection[int]) -> Canary:
    """Time a canary on one hardware thread of each core, all at once; return the slowest."""
    firsts = [core[0] for core in proc.physical_cores(cpus)] if len(cpus) > 1 else []
    if len(firsts) > 1:
        with suppress(RuntimeError):  # no more threads: use one core
            if found := _side_by_side(firsts):
                return max(found)
    return _tried(cpus)


def _tried(cpus: Collection[int]) -> Canary:
    """A CPU quota does not make a core slow: after a pause by it only the CPU time counts."""
    throttled, before_s, ran_before_s = _throttled(), queued_s(), time.thread_time()
    seconds = measure(cpus)
    ran_s, waited_s = time.thread_time() - ran_before_s, queued_s() - before_s
    return Canary(seconds, waited_s) if _throttled() == throttled else Canary(ran_s)


def _throttled() -> int:
    return sum(one.throttled for one in proc.throttling().values())


def _side_by_side(cpus: Sequence[int]) -> list[Canary]:
    """No canary on a forbidden CPU: two on one CPU would wait. Raises RuntimeError without threads."""
    together = Barrier(len(cpus), timeout=TOGETHER_S)

    def one(cpu: int) -> Canary | None:
        is_there = False
        with suppress(OSError):
            os.sched_setaffinity(0, [cpu])  # this thread only
            is_there = True
        together.wait()  # exclude the start of threads from the timing
        return _tried([cpu]) if is_there else None

    with ThreadPoolExecutor(len(cpus)) as threads:
        return [found for found in threads.map(one, cpus) if found is not None]


# ---------------------------------------------------------------- census

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Least share of a core at which a process is named.
LEAST_CORES = 0.1
NAMED = 3
INIT = 1
ARGUMENTS = 2
NAME_LENGTH = 40


class _Process(NamedTuple):
    name: str
    parent: int
    used_s: float
    children_s: float = 0.0  # of descendants that ended and were waited for


# Earlier state of a new process.
NEW = _Process("", 0, 0.0)


class Census(NamedTuple):
    at_s: float
    processes: dict[int, _Process]


def census(root: Path = Path("/proc")) -> Census:
    """Read all visible processes."""
    found = {int(folder.name): process for folder in root.iterdir() for process in _read(folder)}
    return Census(time.monotonic(), found)


def busiest(before: Census, now: Census, launcher: int | None = None) -> tuple[Foreign, ...]:
    """Return the processes that used the CPUs between the two, summed by name, busiest first.

    Descendants of `launcher` (default: this process's parent), of this process and of its twins are left out. A
    process that waited for its children, such as `make`, has their time too.
    """
    ours = {os.getpid(), os.getppid() if launcher is None else launcher} - {0}
    if os.getpid() != INIT:
        ours -= {INIT}  # children of init are not ours
    over_s = now.at_s - before.at_s
    by_name: defaultdict[str, float] = defaultdict(float)
    gone_s = _gone_s(before, now)
    for pid, process in now.processes.items():
        old = before.processes.get(pid, NEW)
        used_s = process.used_s - old.used_s + max(0.0, process.children_s - old.children_s - gone_s[pid])
        if used_s >= LEAST_CORES * over_s and not _is_ours(pid, ours, now.processes):
            by_name[_command(pid, process.name)] += used_s
    found = sorted(by_name.items(), key=lambda item: -item[1])
    return tuple(Foreign(name=name, run_s=run_s, over_s=over_s) for name, run_s in found[:NAMED])


def _gone_s(before: Census, now: Census) -> defaultdict[int, float]:
    """Earlier CPU seconds of descendants that have ended since, by ancestor.

    The process that waited for them gets all their time. It is unknown which one, so this is subtracted from all.
    """
    found: defaultdict[int, float] = defaultdict(float)
    for pid, process in before.processes.items():
        if pid not in now.processes:
            for ancestor in _line(pid, before.processes)[1:]:
                found[ancestor] += process.used_s + process.children_s
    return found


def _read(folder: Path) -> Iterator[_Process]:
    if not folder.name.isdecimal():
        return
    with suppress(OSError, IndexError, ValueError):
        head, _, tail = (folder / "stat").read_text().rpartition(")")
        fields = tail.split()
        used, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        yield _Process(head.partition("(")[2], int(fields[1]), used / TICKS_PER_S, children / TICKS_PER_S)


def _is_ours(pid: int, ours: Set[int], processes: dict[int, _Process]) -> bool:
    """Whether it or an ancestor is one of `ours` or a twin of this process.

    A twin is another rank: the same command under the same launcher, perhaps in a shell or container of its own.
    """
    line = _line(pid, processes)
    if not ours.isdisjoint(line):
        return True
    mine = _line(os.getpid(), processes)
    common = {*line} & {*mine} - ({0, INIT} if INIT not in mine[1:2] else {0})
    return bool(common) and any(_arguments(one) == _arguments(os.getpid()) for one in line if one not in common)


def _line(pid: int, processes: dict[int, _Process]) -> list[int]:
    """The process, its parent, and so on; it ends at a loop, which a race may cause."""
    found = [pid]
    while found[-1] in processes and (parent := processes[found[-1]].parent) not in found:
        found.append(parent)
    return found


def _command(pid: int, name: str) -> str:
    """The program and its first arguments; the kernel's name without arguments (kernel threads)."""
    with suppress(ValueError):
        program, *arguments = _arguments(pid)
        # A title that a server gives itself, `sshd: user@pts/0`, is no path.
        own = program if ": " in program else Path(program).name
        text = one_line(" ".join((own, *arguments[:ARGUMENTS])))
        return text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…"
    return name


def _arguments(pid: int) -> list[str]:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return [word for word in words if word]
    return []
