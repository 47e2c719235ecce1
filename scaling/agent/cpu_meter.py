"""What a child asks of the CPUs while windows are timed: its threads' time and queueing, its faults of memory; and
what others ran on the CPUs that it was promised.

Read by the agent through /proc before the command to measure is handed on and after the last window has arrived:
outside the timed windows, some 30 us per thread. What lies between the readings, and is not timed, is the step
that is not counted.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scaling.hosts import proc
from scaling.records.telemetry import MAIN, CpuTime, ThreadTime

NS = 1e9
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The kernel counts what CPUs ran in ticks of 10 ms: a shorter stretch tells nothing of others.
TELLS_S = 0.1
# Of a line of /proc/stat: user and nice, which have the time of guests in them, system, irq and softirq; steal.
BUSY, STOLEN = (1, 2, 3, 6, 7), 8


class _Reading(NamedTuple):
    """All since the process began: by thread run and queued ns, the rest of the process, `ran_s` with threads that
    ended and children that were waited for; since boot what its CPUs ran, and what was stolen of them; since they
    were made how often cgroups with a CPU quota were throttled."""

    at_s: float
    threads: dict[int, tuple[int, int]]
    minor_faults: int
    major_faults: int
    kernel_s: float
    ran_s: float
    busy_s: float
    stolen_s: float
    throttling: dict[Path, proc.Throttling]


class CpuMeter:
    """CPU time of one process, added up over stretches: `start`, then `end` with the steps in between, and again.

    `cpus` are those that it was promised, of which the shares of the hypervisor and of others are read; `root` is
    /proc, and below `cgroups` lie the files of this agent's cgroups, in which the process is too. `others` is what
    others ran in the last stretch, as a part of one CPU, 0 where that was too short to tell.
    """

    def __init__(
        self, pid: int, cpus: Collection[int], root: Path = Path("/proc"), cgroups: Path = proc.ROOT
    ) -> None:
        self._root = root
        self._cgroups = cgroups
        self._throttling: dict[Path, proc.Throttling] = {}
        self._pid = pid
        self._cpus = cpus
        # Threads have the name of the one that made them until they are given another.
        self._names: dict[int, str] = {pid: MAIN}
        self._begun: _Reading | None = None
        self.others = 0.0
        self._used: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self._steps = self._minor_faults = self._major_faults = 0
        self._wall_s = self._kernel_s = self._ran_s = self._busy_s = self._stolen_s = 0.0

    def start(self) -> None:
        """A stretch begins."""
        self._begun = self._read(begins=True)

    def end(self, steps: int) -> None:
        """A stretch of so many steps ends; nothing where none has begun, or where the process is gone."""
        before, self._begun = self._begun, None
        now = self._read(begins=False) if before is not None else None
        if before is None or now is None:
            return
        threads_s = self._add_threads(before.threads, now.threads)
        wall_s, ran_s, busy_s = now.at_s - before.at_s, now.ran_s - before.ran_s, now.busy_s - before.busy_s
        self.others = max(0.0, busy_s - max(ran_s, threads_s)) / wall_s if wall_s >= TELLS_S else 0.0
        self._steps += steps
        self._wall_s += wall_s
        self._minor_faults += now.minor_faults - before.minor_faults
        self._major_faults += now.major_faults - before.major_faults
        self._kernel_s += now.kernel_s - before.kernel_s
        self._ran_s += ran_s
        self._busy_s += busy_s
        self._stolen_s += now.stolen_s - before.stolen_s
        self._add_throttling(before.throttling, now.throttling)

    def _add_throttling(self, before: dict[Path, proc.Throttling], now: dict[Path, proc.Throttling]) -> None:
        for folder in before.keys() & now.keys():
            sums = zip(self._throttling.get(folder, proc.Throttling()), now[folder], before[folder], strict=True)
            self._throttling[folder] = proc.Throttling._make(so_far + end - start for so_far, end, start in sums)

    def _add_threads(self, before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]) -> float:
        """Returns how long they ran in between."""
        ran_ns = 0
        for thread, (run_ns, queued_ns) in now.items():
            run_before_ns, queued_before_ns = before.get(thread, (0, 0))
            self._used[thread][0] += run_ns - run_before_ns
            self._used[thread][1] += queued_ns - queued_before_ns
            ran_ns += run_ns - run_before_ns
        return ran_ns / NS

    def total(self) -> CpuTime | None:
        """All stretches; None where there was none."""
        if not self._wall_s:
            return None
        by_name: defaultdict[str, list[list[int]]] = defaultdict(list)
        for thread, used in self._used.items():
            by_name[self._names.get(thread, "?")].append(used)
        worst = max(self._throttling.values(), key=lambda one: one.throttled, default=proc.Throttling())
        return CpuTime(
            steps=self._steps,
            wall_s=self._wall_s,
            kernel_s=self._kernel_s,
            minor_faults=self._minor_faults,
            major_faults=self._major_faults,
            threads=tuple(_of_name(name, by_name[name]) for name in sorted(by_name)),
            stolen_s=self._stolen_s,
            others_s=self._others_s() if self._cpus else None,
            periods=worst.periods,
            throttled_periods=worst.throttled,
            throttled_s=worst.seconds,
        )

    def _others_s(self) -> float:
        """What its CPUs ran beside it. Of its own threads those that ended within a stretch are known by the ticks
        of the whole process alone."""
        threads_s = sum(run_ns for run_ns, _ in self._used.values()) / NS
        return max(0.0, self._busy_s - max(self._ran_s, threads_s))

    def _read(self, *, begins: bool) -> _Reading | None:
        """Its CPUs last where a stretch begins and first where it ends, so that reading is no load within it."""
        folder = self._root / str(self._pid)
        with suppress(OSError, ValueError, IndexError):
            at_end = None if begins else _of_cpus(self._root, self._cpus)
            # Fields after the command's closing bracket, from the third of proc(5) on.
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            at_s, threads = time.monotonic(), self._threads(folder)
            busy_s, stolen_s = at_end or _of_cpus(self._root, self._cpus)
            return _Reading(
                at_s=at_s,
                threads=threads,
                minor_faults=int(stat[7]),
                major_faults=int(stat[9]),
                kernel_s=int(stat[12]) / TICKS_PER_S,
                ran_s=sum(map(int, stat[11:15])) / TICKS_PER_S,
                busy_s=busy_s,
                stolen_s=stolen_s,
                throttling=proc.throttling(self._cgroups),
            )
        return None

    def _threads(self, folder: Path) -> dict[int, tuple[int, int]]:
        found = {}
        for thread in os.listdir(folder / "task"):  # noqa: PTH208  three times as fast
            with suppress(OSError):  # it may have ended meanwhile
                run_ns, queued_ns, _ = (folder / "task" / thread / "schedstat").read_text().split()
                found[int(thread)] = int(run_ns), int(queued_ns)
                if int(thread) not in self._names:
                    self._names[int(thread)] = (folder / "task" / thread / "comm").read_text().strip()
        return found


def _of_name(name: str, used: list[list[int]]) -> ThreadTime:
    """All threads of a name that did anything."""
    return ThreadTime(
        name=name,
        threads=len(used),
        run_s=sum(run_ns for run_ns, _ in used) / NS,
        queued_s=sum(queued_ns for _, queued_ns in used) / NS,
    )


def _of_cpus(root: Path, cpus: Collection[int]) -> tuple[float, float]:
    """Seconds since boot that these CPUs ran anything, and that the hypervisor of a virtual machine ran something
    else on them."""
    if not cpus:
        return 0.0, 0.0
    wanted = {f"cpu{cpu}" for cpu in cpus}
    with (root / "stat").open() as file:
        lines = [line.split() for line in file if line.startswith("cpu")]
    mine = [line for line in lines if line[0] in wanted and len(line) > STOLEN]
    busy = sum(int(line[field]) for line in mine for field in BUSY)
    return busy / TICKS_PER_S, sum(int(line[STOLEN]) for line in mine) / TICKS_PER_S
