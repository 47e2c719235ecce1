"""Find out on an agent's host whether another program uses the cores of its rank.

A canary is a fixed piece of work that is timed on all cores of a rank while its point stands still. It always does
the same and touches little memory. So it is slower only if its core is: by other processes, another hyperthread's
work, the hypervisor or the clock.

The agent reads all of /proc, some 15 us a process, only while another program is suspected: after a slow or shared
canary, or if others ran on a rank's CPUs.
"""

from __future__ import annotations

import contextlib
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

# Of a CPU, in one stretch of windows: two of the kernel's ticks in a tenth of a second.
OTHERS = 0.2


class Suspicion:
    """Whether another program may use the CPUs of one rank, over all points of a launch.

    A canary finds a program that comes and goes. A program that is there all the time without being waited for, as
    on the other hyperthread of a core, is found by what the rank's CPUs ran while nothing else of the run did.
    """

    def __init__(self) -> None:
        self._canaries = Canaries()
        self._others = False

    def is_raised(self, found: Canary | None, *, again: bool) -> bool:
        """Return whether to look during the next windows, before which this canary was tried.

        `again`: these windows were measured before.
        """
        if found is not None and (self._canaries.disturbed([(0, "", found)], again=again) or found.is_shared):
            return True
        return self._others

    def ran_alone(self, others: float) -> None:
        """Note what share of a CPU others ran in a stretch in which nothing of the run was beside the rank."""
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
        """Try the canary that a command asks for; look who runs if the measured windows may be disturbed."""
        self._canary = None
        if isinstance(command, Run):
            self._canary = tried(self.task.cpus) if command.canary else None
            if command.measured:
                if self._suspicion.is_raised(self._canary, again=command.first in self._measured):
                    self.look()
                self._measured.add(command.first)

    def look(self) -> None:
        """Look who runs until the next measured windows are done."""
        self._census = census()

    def noted(self, window: Window) -> Window:
        """Return the first window of a command with the canary before it, the others unchanged."""
        found, self._canary = self._canary, None
        return window if found is None else replace(window, canary_s=found.seconds, canary_queued_s=found.queued_s)

    def after(self, others: float) -> None:
        """Note that measured windows are done, beside which other processes ran this share of a CPU."""
        if self.task.role == "worker" and self.task.point.has_own_cpus:
            self._suspicion.ran_alone(others)
        if self._census is not None:
            self._foreign += busiest(self._census, census())
            self._census = None

    def foreign(self) -> tuple[Foreign, ...]:
        """Return the processes that were seen, the sum of each by name, busiest first."""
        by_name: dict[str, Foreign] = {}
        for one in self._foreign:
            old = by_name.get(one.name, Foreign(name=one.name, run_s=0.0, over_s=0.0))
            by_name[one.name] = replace(old, run_s=old.run_s + one.run_s, over_s=old.over_s + one.over_s)
        return tuple(sorted(by_name.values(), key=lambda one: -one.run_s))


def stood(order: Pause, launch_rank: int, cpus: Collection[int] | None) -> Paused:
    """Return the answer once a point stands still, with a canary on a worker's CPUs if the order asks for one."""
    answer = Paused(attempt=order.attempt, launch_rank=launch_rank)
    if cpus is None or not order.canary:
        return answer
    found = tried(cpus)
    return replace(answer, canary_s=found.seconds, canary_queued_s=found.queued_s)


# ---------------------------------------------------------------- canary
#
# The piece of work takes longer than two of the kernel's slices of time (4 ms where the clock ticks 250 times a
# second): a process that has slept gets its first slice at once, and may be asked to leave only at its second.

NS = 1e9
PIECE = bytes(1 << 20)
PIECES = 14
TOGETHER_S = 1.0  # until the canaries of several cores are all there; none begins before


def measure(cpus: Collection[int]) -> float:
    """Return the seconds that the piece of work takes on the first of these CPUs; on any if none are given."""
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # a cgroup that forbids it: any CPU will do
        os.sched_setaffinity(0, list(cpus)[:1] or before)
    try:
        return _once()
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def piece() -> None:
    """Do a part of the work: 0.7 to 1.5 ms."""
    hashlib.blake2b(PIECE)


def _once() -> float:
    start_s = time.perf_counter()
    for _ in range(PIECES):
        piece()
    return time.perf_counter() - start_s


def queued_s() -> float:
    """Return how long this thread has waited so far for CPUs that others had; 0 if the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / NS
    return 0.0


def tried(cpus: Collection[int]) -> Canary:
    """Time a canary on a hardware thread of each core of these CPUs, all at the same time; return the slowest."""
    firsts = [core[0] for core in proc.physical_cores(cpus)] if len(cpus) > 1 else []
    if len(firsts) > 1:
        with contextlib.suppress(RuntimeError):  # no more threads: any core will do
            if found := _side_by_side(firsts):
                return max(found)
    return _tried(cpus)


def _tried(cpus: Collection[int]) -> Canary:
    """Time a canary in this thread. A CPU quota makes no core slow: if it held this up, what it ran counts."""
    throttled, before_s, ran_before_s = _throttled(), queued_s(), time.thread_time()
    seconds = measure(cpus)
    ran_s, waited_s = time.thread_time() - ran_before_s, queued_s() - before_s
    return Canary(seconds, waited_s) if _throttled() == throttled else Canary(ran_s)


def _throttled() -> int:
    """Return in how many periods so far a CPU quota has held this process up."""
    return sum(one.throttled for one in proc.throttling().values())


def _side_by_side(cpus: Sequence[int]) -> list[Canary]:
    """Time a canary on each of these CPUs in a thread of its own.

    None on a CPU that is forbidden: two on one CPU would wait for each other. Raises RuntimeError without threads.
    """
    together = Barrier(len(cpus), timeout=TOGETHER_S)

    def one(cpu: int) -> Canary | None:
        is_there = False
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, [cpu])  # this thread's alone
            is_there = True
        together.wait()  # no thread's start is part of what is timed
        return _tried([cpu]) if is_there else None

    with ThreadPoolExecutor(len(cpus)) as threads:
        return [found for found in threads.map(one, cpus) if found is not None]


# ---------------------------------------------------------------- census

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Of a core: a process that uses less is not named.
LEAST_CORES = 0.1
NAMED = 3
INIT = 1
ARGUMENTS = 2
NAME_LENGTH = 40


class _Process(NamedTuple):
    """One process: the kernel's name, its parent, and its CPU seconds.

    `children_s` are those of its descendants that have ended and were waited for.
    """

    name: str
    parent: int
    used_s: float
    children_s: float = 0.0


# A process that is new has used all of its time since.
NEW = _Process("", 0, 0.0)


class Census(NamedTuple):
    """All processes at one time."""

    at_s: float
    processes: dict[int, _Process]


def census(root: Path = Path("/proc")) -> Census:
    """Read all processes that this one sees."""
    found = {int(folder.name): process for folder in root.iterdir() for process in _read(folder)}
    return Census(time.monotonic(), found)


def busiest(before: Census, now: Census, launcher: int | None = None) -> tuple[Foreign, ...]:
    """Return who used the CPUs between the two, busiest first, processes of one name together.

    The launch's own are left out: descendants of `launcher` (by default this process's parent), of this process,
    and of its twins. A process that waited for children which have ended, as `make` does, has used their time too.
    """
    ours = {os.getpid(), os.getppid() if launcher is None else launcher} - {0}
    if os.getpid() != INIT:
        ours -= {INIT}  # init's are nobody's
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
    """Return by process what its descendants that have ended since had used before.

    The process that waited for them is given all their time. Which one that was is unknown if parents ended too:
    the time is subtracted from all.
    """
    found: defaultdict[int, float] = defaultdict(float)
    for pid, process in before.processes.items():
        if pid not in now.processes:
            for ancestor in _line(pid, before.processes)[1:]:
                found[ancestor] += process.used_s + process.children_s
    return found


def _read(folder: Path) -> Iterator[_Process]:
    """Yield one process, if it is still there. The command's name may hold spaces and brackets."""
    if not folder.name.isdecimal():
        return
    with suppress(OSError, IndexError, ValueError):
        head, _, tail = (folder / "stat").read_text().rpartition(")")
        fields = tail.split()
        used, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        yield _Process(head.partition("(")[2], int(fields[1]), used / TICKS_PER_S, children / TICKS_PER_S)


def _is_ours(pid: int, ours: Set[int], processes: dict[int, _Process]) -> bool:
    """Return whether a process is one of `ours`, or a descendant of one or of a twin of this process.

    A twin is another rank of the launch: it runs the same command under the same launcher, behind a shell or a
    container's starter of its own.
    """
    line = _line(pid, processes)
    if not ours.isdisjoint(line):
        return True
    mine = _line(os.getpid(), processes)
    common = {*line} & {*mine} - ({0, INIT} if INIT not in mine[1:2] else {0})
    return bool(common) and any(_arguments(one) == _arguments(os.getpid()) for one in line if one not in common)


def _line(pid: int, processes: dict[int, _Process]) -> list[int]:
    """Return a process, its parent, and so on.

    Processes end and begin while they are read: one may seem to be its own ancestor.
    """
    found = [pid]
    while found[-1] in processes and (parent := processes[found[-1]].parent) not in found:
        found.append(parent)
    return found


def _command(pid: int, name: str) -> str:
    """Return the program and its first arguments: they tell programs apart, but not each run of one.

    The kernel's name if there are none (kernel threads).
    """
    with suppress(ValueError):
        program, *arguments = _arguments(pid)
        text = one_line(" ".join((Path(program).name, *arguments[:ARGUMENTS])))
        return text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…"
    return name


def _arguments(pid: int) -> list[str]:
    """Return the words with which a process was started; none if the kernel does not tell."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return [word for word in words if word]
    return []
