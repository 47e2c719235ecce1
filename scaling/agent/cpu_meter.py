"""What a child asks of the CPUs while windows are timed: its threads' time and queueing, its faults of memory.

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

from scaling.records.telemetry import MAIN, CpuTime, ThreadTime

NS = 1e9
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class _Reading(NamedTuple):
    """All since the process began: by thread run and queued ns, the rest of the process; the CPUs' stolen
    seconds."""

    at_s: float
    threads: dict[int, tuple[int, int]]
    minor_faults: int
    major_faults: int
    kernel_s: float
    stolen_s: float


class CpuMeter:
    """CPU time of one process, added up over stretches: `start`, then `end` with the steps in between, and again.

    `cpus` are those that it was promised, of which the hypervisor's share is read; `root` is /proc.
    """

    def __init__(self, pid: int, cpus: Collection[int], root: Path = Path("/proc")) -> None:
        self._root = root
        self._pid = pid
        self._cpus = cpus
        # Threads have the name of the one that made them until they are given another.
        self._names: dict[int, str] = {pid: MAIN}
        self._begun: _Reading | None = None
        self._used: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self._steps = self._minor_faults = self._major_faults = 0
        self._wall_s = self._kernel_s = self._stolen_s = 0.0

    def start(self) -> None:
        """A stretch begins."""
        self._begun = self._read()

    def end(self, steps: int) -> None:
        """A stretch of so many steps ends; nothing where none has begun, or where the process is gone."""
        before, self._begun = self._begun, None
        now = self._read() if before is not None else None
        if before is None or now is None:
            return
        for thread, (run_ns, queued_ns) in now.threads.items():
            run_before_ns, queued_before_ns = before.threads.get(thread, (0, 0))
            self._used[thread][0] += run_ns - run_before_ns
            self._used[thread][1] += queued_ns - queued_before_ns
        self._steps += steps
        self._wall_s += now.at_s - before.at_s
        self._minor_faults += now.minor_faults - before.minor_faults
        self._major_faults += now.major_faults - before.major_faults
        self._kernel_s += now.kernel_s - before.kernel_s
        self._stolen_s += now.stolen_s - before.stolen_s

    def total(self) -> CpuTime | None:
        """All stretches; None where there was none."""
        if not self._wall_s:
            return None
        by_name: defaultdict[str, list[list[int]]] = defaultdict(list)
        for thread, used in self._used.items():
            by_name[self._names.get(thread, "?")].append(used)
        return CpuTime(
            steps=self._steps,
            wall_s=self._wall_s,
            kernel_s=self._kernel_s,
            minor_faults=self._minor_faults,
            major_faults=self._major_faults,
            threads=tuple(_of_name(name, by_name[name]) for name in sorted(by_name)),
            stolen_s=self._stolen_s,
        )

    def _read(self) -> _Reading | None:
        folder = self._root / str(self._pid)
        with suppress(OSError, ValueError, IndexError):
            # Fields after the command's closing bracket, from the third of proc(5) on.
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            return _Reading(
                at_s=time.monotonic(),
                threads=self._threads(folder),
                minor_faults=int(stat[7]),
                major_faults=int(stat[9]),
                kernel_s=int(stat[12]) / TICKS_PER_S,
                stolen_s=_stolen_s(self._root, self._cpus),
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


def _stolen_s(root: Path, cpus: Collection[int]) -> float:
    """Seconds since boot that the hypervisor ran something else on these CPUs of a virtual machine."""
    if not cpus:
        return 0.0
    wanted = {f"cpu{cpu}" for cpu in cpus}
    with (root / "stat").open() as file:
        lines = [line.split() for line in file if line.startswith("cpu")]
    return sum(int(line[8]) for line in lines if line[0] in wanted and len(line) > 8) / TICKS_PER_S
