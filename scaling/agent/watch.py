"""All that an agent reads beside a child while measured windows run: devices, CPU time, traffic, energy.

Measured windows come in one stretch, or in many where points take turns: `begin` before each, `done` when the
child itself is done with it, `settle` when all ranks are. Readings are added up.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from scaling.agent.device_probe import DeviceProbe
from scaling.agent.idle import IdleTraffic
from scaling.hosts import connections, interfaces, proc, rapl
from scaling.quiet.agent import Quiet
from scaling.records.task import Task
from scaling.records.telemetry import MAIN, CpuTime, Flow, MachineEnergy, Telemetry, ThreadTime, Traffic

# ---------------------------------------------------------------- energy meter
#
# What this machine's processors and memory use while measured windows run: read at both ends and every 10 s.
#
# A package's counter begins anew after minutes to hours: more than one turn between two readings would be lost.


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


# ---------------------------------------------------------------- cpu meter
#
# What a child asks of the CPUs while windows are timed: its threads' time and queueing, its faults of memory;
# and what others ran on the CPUs that it was promised.
#
# Read by the agent through /proc before the command to measure is handed on and after the last window has
# arrived: outside the timed windows, some 30 us per thread. What lies between the readings, and is not timed, is
# the step that is not counted.


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


# ---------------------------------------------------------------- watch

# An agent that has no turn for so long while windows run stood still itself: it has one four times a second.
STILL_S = 1.0


class Watch:
    """The readings beside one child. A server is watched for its CPU alone.

    `measuring` tells whether a stretch runs for this child.
    """

    def __init__(
        self,
        task: Task,
        pid: int,
        *,
        computes: bool,
        idle: IdleTraffic | None = None,
        quiet: Quiet | None = None,
    ) -> None:
        self.measuring = False
        self._quiet = quiet or Quiet(task)
        self._idle = idle or IdleTraffic()
        self._counted_s = self._counting_s = self._sampled_s = 0.0
        self._looked_s = self._still_s = self._asleep_before_s = self._suspended_s = 0.0
        self._counts_traffic = task.counts_traffic
        if task.counts_traffic:
            connections.read()  # what it imports, it imports now
        device = task.point.hardware.device if computes else "cpu"
        # Opening takes time, which no command should wait for.
        self._devices = DeviceProbe.open(device, task.device_indices, pid, shown_gpu=task.shown_gpu)
        self._cpu = CpuMeter(pid, task.cpus)
        self._energy = EnergyMeter() if task.counts_energy else None
        self._steps = 0
        self._counters: interfaces.Reading | None = None
        self._connections: connections.Reading = {}
        self._connected: connections.Reading = {}
        self._carried: tuple[Traffic, ...] = ()
        self._flows: tuple[Flow, ...] = ()

    def begin(self, steps: int, now_s: float) -> None:
        """A stretch of measured windows is about to begin, of so many steps in all."""
        if self._counts_traffic:
            self._counters, self._connections = interfaces.read(), connections.read()
            self._connected = {}
            self._counting_s = time.monotonic()
        self._steps = steps
        self._devices.start()
        if self._energy is not None:
            self._energy.start()
        self._cpu.start()
        self.measuring, self._sampled_s, self._looked_s = True, now_s, now_s
        self._asleep_before_s = proc.asleep_s()

    def look(self, now_s: float) -> None:
        """The agent has a turn: note how long it had none while windows run."""
        if self.measuring:
            self._still_s = max(self._still_s, now_s - self._looked_s)
            self._looked_s = now_s

    def sample(self, now_s: float) -> None:
        """Read the devices and the machine, if that is due."""
        self.look(now_s)
        if self.measuring and now_s - self._sampled_s >= self._devices.interval_s:
            self._sampled_s = now_s
            self._devices.sample()
        if self._energy is not None:
            self._energy.sample()

    def done(self) -> None:
        """The child is done with its windows; others may not be.

        Connections are read now too: when all are done, a peer may have left and its connections with it.
        """
        if not self.measuring:
            return
        self.measuring = False
        self._suspended_s += proc.asleep_s() - self._asleep_before_s
        self._cpu.end(self._steps)
        if self._energy is not None:
            self._energy.pause()
        self._quiet.after(self._cpu.others)
        self._devices.pause()
        if self._counts_traffic:
            self._connected = {**self._connected, **connections.read()}

    def settle(self) -> None:
        """All ranks are done: a rank that was done before may have sent bytes that still waited for their turn."""
        self.done()
        if self._counters is not None:
            self._counted_s += time.monotonic() - self._counting_s
            self._carried = _traffic((*self._carried, *interfaces.since(self._counters, interfaces.read())))
            self._keep_flows({**self._connected, **connections.read()})
            self._counters = None

    def _keep_flows(self, connected: connections.Reading) -> None:
        self._flows = _flows((*self._flows, *connections.since(self._connections, connected)))

    def close(self) -> Telemetry:
        """What was read in all; of a stretch that was broken off, what is known."""
        self.done()
        if self._counters is not None:
            self._keep_flows(self._connected)
        return replace(
            self._devices.stop(),
            cpu=self._cpu.total(),
            traffic=self._carried,
            idle_traffic=self._idle.over(self._counted_s) if self._carried else (),
            flows=self._flows,
            foreign=self._quiet.foreign(),
            machine_energy=self._energy.total() if self._energy is not None else None,
            still_s=self._still_s if self._still_s > STILL_S else 0.0,
            suspended_s=round(self._suspended_s, 1),
        )


def _traffic(found: Iterable[Traffic]) -> tuple[Traffic, ...]:
    """The sum of each card's."""
    by_name: dict[str, Traffic] = {}
    for one in found:
        old = by_name.get(one.name, Traffic(name=one.name, received_bytes=0, sent_bytes=0))
        by_name[one.name] = Traffic(
            name=one.name,
            received_bytes=old.received_bytes + one.received_bytes,
            sent_bytes=old.sent_bytes + one.sent_bytes,
        )
    return tuple(by_name.values())


def _flows(found: Iterable[Flow]) -> tuple[Flow, ...]:
    """The sum of each path's."""
    by_path: dict[tuple[str, str], Flow] = {}
    for one in found:
        old = by_path.get((one.address, one.peer))
        by_path[one.address, one.peer] = (
            one
            if old is None
            else replace(old, sent_bytes=old.sent_bytes + one.sent_bytes, busy_s=old.busy_s + one.busy_s)
        )
    return tuple(by_path.values())
