"""An agent's readings of a child during measured windows: devices, CPU time, traffic, energy.

Readings are added up over stretches: `begin`, `done` when this child has finished, `settle` when all ranks have.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from operator import add, sub
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from scaling.agent.device_probe import DeviceProbe
from scaling.hosts import connections, interfaces, proc
from scaling.quiet.agent import Quiet
from scaling.records.task import Task
from scaling.records.telemetry import MAIN, CpuTime, Flow, MachineEnergy, Sample, Telemetry, ThreadTime, Traffic

# ---------------------------------------------------------------- energy
# Energy of processors and DRAM, from the kernel's RAPL counters (Documentation/power/powercap).
#
# Packages and DRAM are added. Other domains are left out: cores and uncore are parts of a package, `psys` contains
# all, `intel-rapl-mmio` repeats a package. AMD uses the same names. Since Linux 5.10 only root may read
# (CVE-2020-8694).

POWERCAP = Path("/sys/class/powercap")
UJ_PER_J = 1e6


class EnergyCounter(NamedTuple):
    """A domain's file of microjoules, which wraps at `range_uj`."""

    path: Path
    range_uj: int

    def read(self) -> int:
        """Raises OSError with the path, also for wrong content."""
        text = self.path.read_text().strip()
        if not text.isdecimal():
            raise OSError(os.EX_DATAERR, f"no number: {text[:20]!r}", str(self.path))
        return int(text)


def energy_counters(root: Path | None = None) -> list[EnergyCounter]:
    """Return the counters of packages and DRAM; none on most virtual machines."""
    found = []
    for folder in sorted((root or POWERCAP).glob("intel-rapl:*")):
        with suppress(OSError, ValueError):
            name = (folder / "name").read_text().strip()
            range_uj = int((folder / "max_energy_range_uj").read_text())
            if name == "dram" or name.startswith("package-"):
                found.append(EnergyCounter(folder / "energy_uj", range_uj))
    return found


# ---------------------------------------------------------------- idle traffic
# Traffic of a host's cards while nothing of the launch runs: file systems, monitoring, other users.

# The median over five stretches ignores a burst within two of them.
STRETCHES = 5


class IdleTraffic:
    """The idle traffic of a host: for each card the rates of its median stretch."""

    def __init__(self) -> None:
        self._before: interfaces.Reading | None = None
        self._began_s = self._stretch_s = 0.0
        self._hearing: list[tuple[tuple[Traffic, ...], float]] = []
        self._rates: dict[str, tuple[float, float]] = {}

    def listen(self, seconds: float, now_s: float) -> None:
        self._before, self._began_s = interfaces.read(), now_s
        self._stretch_s, self._hearing = seconds / STRETCHES, []

    def is_due(self, now_s: float) -> bool:
        """Return True once, when listening is over. Call it often, because it also ends the stretches."""
        if self._before is None or now_s < self._began_s + self._stretch_s:
            return False
        now = interfaces.read()
        self._hearing.append((interfaces.since(self._before, now), now_s - self._began_s))
        if len(self._hearing) < STRETCHES:
            self._before, self._began_s = now, now_s
            return False
        self._before, self._rates = None, _median_rates(self._hearing)
        return True

    def over(self, seconds: float) -> tuple[Traffic, ...]:
        """Return the idle traffic of so many seconds by card; empty if no listening has ended."""
        return tuple(
            Traffic(name=name, received_bytes=round(seconds * received), sent_bytes=round(seconds * sent))
            for name, (received, sent) in self._rates.items()
        )


def _median_rates(stretches: list[tuple[tuple[Traffic, ...], float]]) -> dict[str, tuple[float, float]]:
    """Bytes per second that each card received and sent in its median stretch."""
    by_card: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for carried, seconds in stretches:
        for one in carried:
            by_card[one.name][0].append(one.received_bytes / seconds)
            by_card[one.name][1].append(one.sent_bytes / seconds)
    return {name: (median(received), median(sent)) for name, (received, sent) in by_card.items()}


# ---------------------------------------------------------------- energy meter


EVERY_S = 10.0


class EnergyMeter:
    """Energy of this machine's processors and memory (/sys/class/powercap): `start`, `sample`, `pause`, again;
    `total`. A counter wraps after minutes to hours, so it is read every 10 s. An unreadable one is reported."""

    def __init__(
        self, root: Path | None = None, clock: Callable[[], float] = time.monotonic, *, counts: bool = True
    ) -> None:
        self._clock = clock
        self._counters = energy_counters(root) if counts else []
        self._last: list[int] | None = None
        self._last_s = 0.0
        self._joules = self._seconds = 0.0
        self._unreadable = ""

    def start(self) -> None:
        self._last = self._read()
        self._last_s = self._clock()

    def sample(self) -> None:
        if self._last is not None and self._clock() - self._last_s >= EVERY_S:
            self._add()

    def pause(self) -> None:
        if self._last is not None:
            self._add()
        self._last = None

    def total(self) -> MachineEnergy | None:
        if self._unreadable:
            return MachineEnergy(unreadable=self._unreadable)
        return MachineEnergy(joules=self._joules, seconds=self._seconds) if self._seconds else None

    def _add(self) -> None:
        before, before_s = self._last, self._last_s
        self.start()
        if before is not None and self._last is not None:
            self._joules += sum(
                end - start + (counter.range_uj if end < start else 0)  # it may have wrapped once
                for counter, start, end in zip(self._counters, before, self._last, strict=True)
            ) / UJ_PER_J  # fmt: skip
            self._seconds += self._last_s - before_s

    def _read(self) -> list[int] | None:
        if not self._counters or self._unreadable:
            return None
        try:
            return [counter.read() for counter in self._counters]
        except OSError as error:
            self._unreadable = f"{error.filename}: {error.strerror}"
            return None


# ---------------------------------------------------------------- CPU meter


NS = 1e9
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The kernel counts in ticks of 10 ms: a shorter stretch shows nothing of other programs.
TELLS_S = 0.1
# Fields of a line of /proc/stat: user and nice (which include guests), system, irq, softirq; and steal.
BUSY, STOLEN = (1, 2, 3, 6, 7), 8


class _Sums(NamedTuple):
    """Cumulative counters of a process, with ended threads and children in `ran_s`, and of its CPUs.

    `busy_s`, `stolen_s`: time since boot that its CPUs ran anything, and that the hypervisor took from them.
    """

    wall_s: float = 0.0
    minor_faults: int = 0
    major_faults: int = 0
    kernel_s: float = 0.0
    ran_s: float = 0.0
    busy_s: float = 0.0
    stolen_s: float = 0.0


class _Reading(NamedTuple):
    """Cumulative counters of a process, of its threads (ns run and ns queued), and of its cgroups."""

    sums: _Sums
    threads: dict[int, tuple[int, int]]
    throttling: dict[Path, proc.Throttling]


class CpuMeter:
    """CPU time and faults of one process: `start`, then `end` with the steps, and again.

    /proc is read outside the timed windows, at some 30 us per thread. The uncounted step is included.
    `cpus`: the CPUs promised to the process.
    `others`: load by other programs in the last stretch, in units of one CPU; 0 if it was too short.
    """

    def __init__(
        self, pid: int, cpus: Collection[int], root: Path = Path("/proc"), cgroups: Path = proc.ROOT
    ) -> None:
        self._root = root
        self._cgroups = cgroups
        self._throttling: dict[Path, proc.Throttling] = {}
        self._pid = pid
        self._cpus = cpus
        self._names: dict[int, str] = {pid: MAIN}
        self._begun: _Reading | None = None
        self.others = 0.0
        self._used: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self._steps, self._sums = 0, _Sums()

    def start(self) -> None:
        self._begun = self._read(begins=True)

    def end(self, steps: int) -> None:
        before, self._begun = self._begun, None
        now = self._read(begins=False) if before is not None else None
        if before is None or now is None:
            return
        threads_s = self._add_threads(before.threads, now.threads)
        new = _Sums._make(map(sub, now.sums, before.sums))
        others_s = max(0.0, new.busy_s - max(new.ran_s, threads_s))
        self.others = others_s / new.wall_s if new.wall_s >= TELLS_S else 0.0
        self._steps += steps
        self._sums = _Sums._make(map(add, self._sums, new))
        self._add_throttling(before.throttling, now.throttling)

    def _add_throttling(self, before: dict[Path, proc.Throttling], now: dict[Path, proc.Throttling]) -> None:
        for folder in before.keys() & now.keys():
            sums = zip(self._throttling.get(folder, proc.Throttling()), now[folder], before[folder], strict=True)
            self._throttling[folder] = proc.Throttling._make(so_far + end - start for so_far, end, start in sums)

    def _add_threads(self, before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]) -> float:
        ran_ns = 0
        for thread, (run_ns, queued_ns) in now.items():
            run_before_ns, queued_before_ns = before.get(thread, (0, 0))
            self._used[thread][0] += run_ns - run_before_ns
            self._used[thread][1] += queued_ns - queued_before_ns
            ran_ns += run_ns - run_before_ns
        return ran_ns / NS

    def total(self) -> CpuTime | None:
        if not self._sums.wall_s:
            return None
        by_name: defaultdict[str, list[list[int]]] = defaultdict(list)
        for thread, used in self._used.items():
            by_name[self._names.get(thread, "?")].append(used)
        worst = max(self._throttling.values(), key=lambda one: one.throttled, default=proc.Throttling())
        return CpuTime(
            steps=self._steps,
            wall_s=self._sums.wall_s,
            kernel_s=self._sums.kernel_s,
            minor_faults=self._sums.minor_faults,
            major_faults=self._sums.major_faults,
            threads=tuple(_of_name(name, by_name[name]) for name in sorted(by_name)),
            stolen_s=self._sums.stolen_s,
            others_s=self._others_s() if self._cpus else None,
            periods=worst.periods,
            throttled_periods=worst.throttled,
            throttled_s=worst.seconds,
        )

    def _others_s(self) -> float:
        """Seconds of other programs. Only the process's ticks include threads that ended within a stretch."""
        threads_s = sum(run_ns for run_ns, _ in self._used.values()) / NS
        return max(0.0, self._sums.busy_s - max(self._sums.ran_s, threads_s))

    def _read(self, *, begins: bool) -> _Reading | None:
        """Read the CPUs last at the start and first at the end of a stretch: reading is then no load within it."""
        folder = self._root / str(self._pid)
        with suppress(OSError, ValueError, IndexError):
            at_end = None if begins else _of_cpus(self._root, self._cpus)
            # Fields from the third of proc(5) on.
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            at_s, threads = time.monotonic(), self._threads(folder)
            busy_s, stolen_s = at_end or _of_cpus(self._root, self._cpus)
            sums = _Sums(
                wall_s=at_s,
                minor_faults=int(stat[7]),
                major_faults=int(stat[9]),
                kernel_s=int(stat[12]) / TICKS_PER_S,
                ran_s=sum(map(int, stat[11:15])) / TICKS_PER_S,
                busy_s=busy_s,
                stolen_s=stolen_s,
            )
            return _Reading(sums, threads, proc.throttling(self._cgroups))
        return None

    def _threads(self, folder: Path) -> dict[int, tuple[int, int]]:
        found = {}
        for thread in os.listdir(folder / "task"):  # noqa: PTH208  three times as fast
            with suppress(OSError):  # the thread may have ended
                run_ns, queued_ns, _ = (folder / "task" / thread / "schedstat").read_text().split()
                found[int(thread)] = int(run_ns), int(queued_ns)
                if int(thread) not in self._names:
                    self._names[int(thread)] = (folder / "task" / thread / "comm").read_text().strip()
        return found


def _of_name(name: str, used: list[list[int]]) -> ThreadTime:
    return ThreadTime(
        name=name,
        threads=len(used),
        run_s=sum(run_ns for run_ns, _ in used) / NS,
        queued_s=sum(queued_ns for _, queued_ns in used) / NS,
    )


def _of_cpus(root: Path, cpus: Collection[int]) -> tuple[float, float]:
    """Seconds since boot that these CPUs ran anything, and that the hypervisor took from them."""
    if not cpus:
        return 0.0, 0.0
    wanted = {f"cpu{cpu}" for cpu in cpus}
    with (root / "stat").open() as file:
        lines = [line.split() for line in file if line.startswith("cpu")]
    mine = [line for line in lines if line[0] in wanted and len(line) > STOLEN]
    busy = sum(int(line[field]) for line in mine for field in BUSY)
    return busy / TICKS_PER_S, sum(int(line[STOLEN]) for line in mine) / TICKS_PER_S


# ---------------------------------------------------------------- watch

# An agent takes four turns a second during windows. After a longer pause it stood still itself.
STILL_S = 1.0


class Watch:
    """The readings of one child; GPUs only if it `computes`. `measuring`: whether a stretch runs for it."""

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
            connections.read()
        device = task.point.hardware.device if computes else "cpu"
        self._devices = DeviceProbe(device, task.device_indices, pid, shown_gpu=task.shown_gpu)
        self._cpu = CpuMeter(pid, task.cpus)
        self._energy = EnergyMeter(counts=task.counts_energy)
        self._steps = 0
        self._counters: interfaces.Reading | None = None
        self._connections: connections.Reading = {}
        self._connected: connections.Reading = {}
        self._carried: tuple[Traffic, ...] = ()
        self._flows: tuple[Flow, ...] = ()

    def gpus(self) -> tuple[Sample, ...]:
        return self._devices.now()

    def begin(self, steps: int, now_s: float) -> None:
        if self._counts_traffic:
            self._counters, self._connections = interfaces.read(), connections.read()
            self._connected = {}
            self._counting_s = time.monotonic()
        self._steps = steps
        self._devices.start()
        self._energy.start()
        self._cpu.start()
        self.measuring, self._sampled_s, self._looked_s = True, now_s, now_s
        self._asleep_before_s = proc.asleep_s()

    def look(self, now_s: float) -> None:
        if self.measuring:
            self._still_s = max(self._still_s, now_s - self._looked_s)
            self._looked_s = now_s

    def sample(self, now_s: float) -> None:
        self.look(now_s)
        if self.measuring and now_s - self._sampled_s >= self._devices.interval_s:
            self._sampled_s = now_s
            self._devices.sample()
        self._energy.sample()

    def done(self) -> None:
        """End the stretch for this child. Connections are read too: a peer may leave before all ranks are done."""
        if not self.measuring:
            return
        self.measuring = False
        self._suspended_s += max(0.0, proc.asleep_s() - self._asleep_before_s)
        self._cpu.end(self._steps)
        self._energy.pause()
        self._quiet.after(self._cpu.others)
        self._devices.pause()
        if self._counts_traffic:
            self._connected = {**self._connected, **connections.read()}

    def settle(self) -> None:
        """End the stretch for all ranks. Bytes that were still queued after a rank's last window are included."""
        self.done()
        if self._counters is not None:
            self._counted_s += time.monotonic() - self._counting_s
            self._carried = _traffic((*self._carried, *interfaces.since(self._counters, interfaces.read())))
            self._keep_flows({**self._connected, **connections.read()})
            self._counters = None

    def _keep_flows(self, connected: connections.Reading) -> None:
        self._flows = _flows((*self._flows, *connections.since(self._connections, connected)))

    def close(self) -> Telemetry:
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
            machine_energy=self._energy.total(),
            still_s=self._still_s if self._still_s > STILL_S else 0.0,
            suspended_s=round(self._suspended_s, 1),
        )


def _traffic(found: Iterable[Traffic]) -> tuple[Traffic, ...]:
    by_name: dict[str, Traffic] = {}
    for one in found:
        old = by_name.get(one.name, Traffic(name=one.name, received_bytes=0, sent_bytes=0))
        by_name[one.name] = Traffic(
            name=one.name,
            received_bytes=old.received_bytes + one.received_bytes,
            sent_bytes=old.sent_bytes + one.sent_bytes,
            errors=dict(Counter(old.errors) + Counter(one.errors)),
        )
    return tuple(by_name.values())


def _flows(found: Iterable[Flow]) -> tuple[Flow, ...]:
    by_path: dict[tuple[str, str], Flow] = {}
    for one in found:
        old = by_path.get((one.address, one.peer))
        by_path[one.address, one.peer] = (
            one
            if old is None
            else replace(old, sent_bytes=old.sent_bytes + one.sent_bytes, busy_s=old.busy_s + one.busy_s)
        )
    return tuple(by_path.values())
