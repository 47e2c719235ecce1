"""An agent's readings of a child during measured windows: process, GPUs, machine, energy, traffic.

Readings are added up over stretches: `begin`, `done` when this child has finished, `settle` when all ranks have.
If a process or GPU disappears, earlier stretches are kept.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import chain, pairwise, takewhile
from operator import add, sub
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from msgspec.structs import replace

from scaling.hosts import connections, interfaces, proc
from scaling.hosts.gpus import ask, find_visible, session
from scaling.quiet.agent import Quiet
from scaling.records.task import Task
from scaling.records.telemetry import (
    MAIN,
    POWER_CAP,
    CpuTime,
    Flow,
    MachineEnergy,
    Sample,
    Telemetry,
    ThreadTime,
    Traffic,
)

# ---------------------------------------------------------------- energy of a machine
# From the kernel's RAPL counters (Documentation/power/powercap).
#
# Packages and DRAM are added. Other domains are left out: cores and uncore are parts of a package, `psys` contains
# all, `intel-rapl-mmio` repeats a package. AMD uses the same names. Since Linux 5.10 only root may read
# (CVE-2020-8694).

POWERCAP = Path("/sys/class/powercap")
EVERY_S = 10.0
UJ_PER_J = 1e6


class EnergyMeter:
    """Energy of this machine's processors and memory: `start`, `sample`, `pause`, again; `total`. A counter wraps
    after minutes to hours, so it is read every 10 s. An unreadable one is reported."""

    def __init__(self, root: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Find the counters below `root`; none on most virtual machines."""
        self._clock = clock
        self._wraps_uj: dict[Path, int] = {}  # by counter
        self._last: tuple[list[int], float] | None = None
        self._used_uj, self._seconds, self._unreadable = 0, 0.0, ""
        for folder in sorted(root.glob("intel-rapl:*")) if root else ():
            with suppress(OSError, ValueError):
                name = (folder / "name").read_text().strip()
                wraps_uj = int((folder / "max_energy_range_uj").read_text())
                if name == "dram" or name.startswith("package-"):
                    self._wraps_uj[folder / "energy_uj"] = wraps_uj

    def start(self) -> None:
        self._last = None
        if self._wraps_uj and not self._unreadable:
            try:
                self._last = [_count(file) for file in self._wraps_uj], self._clock()
            except OSError as error:
                self._unreadable = f"{error.filename}: {error.strerror}"

    def sample(self, every_s: float = EVERY_S) -> None:
        if self._last is None or self._clock() - self._last[1] < every_s:
            return
        before, before_s = self._last
        self.start()
        if self._last is not None:
            now, now_s = self._last
            for start, end, wraps in zip(before, now, self._wraps_uj.values(), strict=True):
                self._used_uj += end - start + (wraps if end < start else 0)  # it may have wrapped once
            self._seconds += now_s - before_s

    def pause(self) -> None:
        self.sample(0.0)
        self._last = None

    def total(self) -> MachineEnergy | None:
        if self._unreadable:
            return MachineEnergy(unreadable=self._unreadable)
        return MachineEnergy(joules=self._used_uj / UJ_PER_J, seconds=self._seconds) if self._seconds else None


def _count(file: Path) -> int:
    """Read a counter. Raises OSError with the path, also if it is empty: containers hide files by /dev/null."""
    text = file.read_text().strip()
    if not text.isdecimal():
        raise OSError(os.EX_DATAERR, f"no number: {text[:20]!r}", str(file))
    return int(text)


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


# ---------------------------------------------------------------- a GPU

# Bits of NVML's nvmlClocksEventReasons that are a loss: not idle, the user's clocks, sync boost, display clocks.
THROTTLE = {
    0x08: "hw slowdown",
    0x40: "hw thermal",
    0x20: "sw thermal",
    0x80: "power brake",
    0x04: POWER_CAP,
}


class GpuMeter:
    """Readings of one GPU. `energy_is_integral`: whether part of its energy is an integral of power readings."""

    def __init__(self, nvml: Any, handle: Any, device_index: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self._device_index = device_index
        self._energy_before_mj: int | None = None
        self._first: int | None = None  # index of the stretch's first sample
        self._used_j: list[float | None] = []
        self.energy_is_integral = False
        self.samples: list[Sample] = []
        self.max_sm_clock_mhz: float | None = self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)

    @classmethod
    def open(cls, device_index: int, shown_gpu: str = "") -> GpuMeter | None:
        """Return the meter of visible GPU `device_index`, or of `shown_gpu`; None if NVML cannot reach it."""
        nvml, _ = session()
        handle = None if nvml is None else find_visible(nvml, device_index, shown_gpu)
        return None if handle is None else cls(nvml, handle, device_index)

    def start(self) -> None:
        self._first = len(self.samples)
        self._energy_before_mj = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        self.read()

    def read(self) -> None:
        if (sample := self.now()) is not None:
            self.samples.append(sample)

    def now(self) -> Sample | None:
        """Return what NVML reads now; None if it reads nothing."""
        nvml = self._nvml
        power_mw = self._ask("nvmlDeviceGetPowerUsage")
        clock_mhz = self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        utilisation = self._ask("nvmlDeviceGetUtilizationRates")
        if all(answer is None for answer in (power_mw, clock_mhz, memory, utilisation)):
            return None
        return Sample(
            unix_s=time.time(),
            utilisation_percent=utilisation.gpu if utilisation else None,
            power_w=None if power_mw is None else power_mw / 1000,
            sm_clock_mhz=clock_mhz,
            memory_used_bytes=memory.used if memory else None,
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            throttle=self._throttle(),
            device_index=self._device_index,
        )

    def pause(self) -> None:
        if self._first is None:
            return
        self.read()
        before_mj = self._energy_before_mj
        after_mj: int | None = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if before_mj is None or after_mj is None or after_mj < before_mj:  # it falls when the driver is reloaded
            self._used_j.append(integral_j(self.samples[self._first :]))
            self.energy_is_integral = True
        else:
            self._used_j.append((after_mj - before_mj) / 1000)
        self._first = None

    @property
    def energy_j(self) -> float | None:
        """Energy in J, by the GPU's counter or from power samples; None if a stretch is unknown."""
        known_j = [used_j for used_j in self._used_j if used_j is not None]
        return sum(known_j) if known_j and len(known_j) == len(self._used_j) else None

    def _throttle(self) -> tuple[str, ...]:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(word for bit, word in THROTTLE.items() if (reasons or 0) & bit)

    def _ask(self, name: str, *args: Any) -> Any:
        return ask(self._nvml, name, self._handle, *args)


def integral_j(samples: list[Sample]) -> float | None:
    """Integrate the power samples by the trapezoidal rule, in J; None with fewer than two power readings."""
    known = [(sample.unix_s, sample.power_w) for sample in samples if sample.power_w is not None]
    if len(known) < 2:
        return None
    return sum((end_s - start_s) * (a_w + b_w) / 2 for (start_s, a_w), (end_s, b_w) in pairwise(known))


# ---------------------------------------------------------------- a process


NS = 1e9
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The kernel counts in ticks of 10 ms: a shorter stretch shows nothing of other programs.
TELLS_S = 0.1
# Fields of a line of /proc/stat: user and nice (which include guests), system, irq, softirq; steal; idle, iowait.
BUSY, STOLEN, IDLE = (1, 2, 3, 6, 7), 8, (4, 5)


class _Sums(NamedTuple):
    """Cumulative counters of a process and of CPUs, which count since boot.

    `own_s`, `ran_s`: its CPU time without and with ended children; both include ended threads.
    `busy_s`, `stolen_s`: time that its CPUs ran anything, and that the hypervisor took from them.
    `machine_busy_s`, `machine_s`: time that all CPUs ran or lost to the hypervisor, and in all.
    """

    wall_s: float = 0.0
    minor_faults: int = 0
    major_faults: int = 0
    kernel_s: float = 0.0
    own_s: float = 0.0
    ran_s: float = 0.0
    busy_s: float = 0.0
    stolen_s: float = 0.0
    machine_busy_s: float = 0.0
    machine_s: float = 0.0


class _Reading(NamedTuple):
    """Cumulative counters of a process, of its threads (ns run and ns queued), and of its cgroups."""

    sums: _Sums
    threads: dict[int, tuple[int, int]]
    throttling: dict[Path, proc.Throttling]


class CpuMeter:
    """CPU time, faults and affinity of one process: `start`, then `end` with the steps, and again.

    /proc is read outside the timed windows, at some 30 us per thread. The uncounted step is included.
    `cpus`: the CPUs promised to the process.
    `others`: load by other programs in the last stretch, in units of one CPU; 0 if it was too short.
    `masks`: CPU sets of its threads at both ends of all stretches.
    `affinity_cpus`: the number of CPUs in all masks together, the least of all ends; None if unknown.
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
        self.masks: set[tuple[int, ...]] = set()
        self.affinity_cpus: int | None = None
        self._used: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self._steps, self._sums = 0, _Sums()

    def start(self) -> None:
        self._begun = self._read(begins=True)

    def end(self, steps: int) -> None:
        before, self._begun = self._begun, None
        now = self._read(begins=False) if before is not None else None
        if before is None or now is None:
            return
        ran_ns = 0
        for thread, (run_ns, queued_ns) in now.threads.items():
            run_before_ns, queued_before_ns = before.threads.get(thread, (0, 0))
            self._used[thread][0] += run_ns - run_before_ns
            self._used[thread][1] += queued_ns - queued_before_ns
            ran_ns += run_ns - run_before_ns
        new = _Sums._make(map(sub, now.sums, before.sums))
        self.others = _others_s(new, ran_ns) / new.wall_s if new.wall_s >= TELLS_S else 0.0
        self._steps += steps
        self._sums = _Sums._make(map(add, self._sums, new))
        for folder in before.throttling.keys() & now.throttling.keys():
            new_counts = map(sub, now.throttling[folder], before.throttling[folder])
            so_far = self._throttling.get(folder, proc.Throttling())
            self._throttling[folder] = proc.Throttling._make(map(add, so_far, new_counts))

    def total(self) -> CpuTime | None:
        if not self._sums.wall_s:
            return None
        by_name: defaultdict[str, list[list[int]]] = defaultdict(list)
        for thread, used in self._used.items():
            by_name[self._names.get(thread, "?")].append(used)
        worst = max(self._throttling.values(), key=lambda one: one.throttled, default=proc.Throttling())
        ran_ns = sum(run_ns for run_ns, _ in self._used.values())
        return CpuTime(
            steps=self._steps,
            wall_s=self._sums.wall_s,
            kernel_s=self._sums.kernel_s,
            minor_faults=self._sums.minor_faults,
            major_faults=self._sums.major_faults,
            threads=tuple(
                ThreadTime(
                    name=name,
                    threads=len(used),
                    run_s=sum(run_ns for run_ns, _ in used) / NS,
                    queued_s=sum(queued_ns for _, queued_ns in used) / NS,
                )
                for name, used in sorted(by_name.items())
            ),
            stolen_s=self._sums.stolen_s,
            others_s=_others_s(self._sums, ran_ns) if self._cpus else None,
            periods=worst.periods,
            throttled_periods=worst.throttled,
            throttled_s=worst.seconds,
        )

    @property
    def percent(self) -> float | None:
        """Mean CPU use over all stretches: 100 is one busy core; None without a stretch."""
        return 100 * self._sums.own_s / self._sums.wall_s if self._sums.wall_s else None

    @property
    def machine_percent(self) -> float | None:
        """Mean use of all CPUs, also outside this container; None without a stretch, or within one tick."""
        return 100 * self._sums.machine_busy_s / self._sums.machine_s if self._sums.machine_s else None

    def _read(self, *, begins: bool) -> _Reading | None:
        """Read the CPUs last at the start and first at the end of a stretch: reading is then no load within it."""
        folder = self._root / str(self._pid)
        with suppress(OSError, ValueError, IndexError):
            at_end = None if begins else _of_cpus(self._root, self._cpus)
            # Fields from the third of proc(5) on.
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            at_s, threads = time.monotonic(), self._threads(folder)
            own_s, ended_s = (sum(map(int, stat[first : first + 2])) / TICKS_PER_S for first in (11, 13))
            faults, kernel_s = (int(stat[7]), int(stat[9])), int(stat[12]) / TICKS_PER_S
            of_cpus = at_end or _of_cpus(self._root, self._cpus)
            sums = _Sums(at_s, *faults, kernel_s, own_s, own_s + ended_s, *of_cpus)
            return _Reading(sums, threads, proc.throttling(self._cgroups))
        return None

    def _threads(self, folder: Path) -> dict[int, tuple[int, int]]:
        """Read all threads, also their affinity: OpenMP may bind each, and `taskset -p` moves the first alone."""
        found, masks = {}, set()
        for thread in map(int, os.listdir(folder / "task")):  # noqa: PTH208  three times as fast
            with suppress(OSError):  # the thread may have ended
                masks.add(tuple(sorted(os.sched_getaffinity(thread))))
            with suppress(OSError):
                run_ns, queued_ns, _ = (folder / f"task/{thread}/schedstat").read_text().split()
                found[thread] = int(run_ns), int(queued_ns)
                if thread not in self._names:
                    self._names[thread] = (folder / f"task/{thread}/comm").read_text().strip()
        if masks:
            self.masks |= masks
            count = len(set(chain.from_iterable(masks)))
            self.affinity_cpus = min(count, self.affinity_cpus or count)
        return found


def _others_s(sums: _Sums, ran_ns: int) -> float:
    """Seconds of other programs. Only the process's ticks include threads that ended within a stretch."""
    return max(0.0, sums.busy_s - max(sums.ran_s, ran_ns / NS))


def _of_cpus(root: Path, cpus: Collection[int]) -> tuple[float, ...]:
    """Read the last four of _Sums."""
    with (root / "stat").open() as file:
        lines = [line.split() for line in takewhile(lambda line: line.startswith("cpu"), file)]
    wanted, every = {f"cpu{cpu}" for cpu in cpus}, list(map(int, lines[0][1 : STOLEN + 1]))
    mine = [line for line in lines if line[0] in wanted]
    busy, stolen = (sum(int(line[field]) for line in mine for field in of) for of in (BUSY, (STOLEN,)))
    idle = sum(int(lines[0][field]) for field in IDLE)
    return tuple(ticks / TICKS_PER_S for ticks in (busy, stolen, sum(every) - idle, sum(every)))


# ---------------------------------------------------------------- watch

SAMPLE_S = 1.0  # between samples of a GPU
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
        indices = task.device_indices if device == "cuda" else ()
        self._task_gpus, self._emulates = len(indices), device == "emulated"
        self._gpus = [gpu for index in indices if (gpu := GpuMeter.open(index, task.shown_gpu)) is not None]
        self._cpu = CpuMeter(pid, task.cpus)
        self._energy = EnergyMeter(POWERCAP if task.counts_energy else None)
        self._steps = 0
        self._counters: interfaces.Reading | None = None
        self._connections: connections.Reading = {}
        self._connected: connections.Reading = {}
        self._carried: tuple[Traffic, ...] = ()
        self._flows: tuple[Flow, ...] = ()

    def gpus(self) -> tuple[Sample, ...]:
        """Read the GPUs once, outside measured windows."""
        return tuple(found for gpu in self._gpus if (found := gpu.now()) is not None)

    def begin(self, steps: int, now_s: float) -> None:
        if self._counts_traffic:
            self._counters, self._connections = interfaces.read(), connections.read()
            self._connected = {}
            self._counting_s = time.monotonic()
        self._steps = steps
        for gpu in self._gpus:
            gpu.start()
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
        if self.measuring and now_s - self._sampled_s >= SAMPLE_S:
            self._sampled_s = now_s
            for gpu in self._gpus:
                gpu.read()
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
        for gpu in self._gpus:
            gpu.pause()
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
        known_j = [energy_j for gpu in self._gpus if (energy_j := gpu.energy_j) is not None]
        # The energy is unknown if that of any GPU is: a part would pass for the whole.
        energy_j = sum(known_j) if known_j and len(known_j) == self._task_gpus else None
        clocks_mhz = [gpu.max_sm_clock_mhz for gpu in self._gpus if gpu.max_sm_clock_mhz is not None]
        return Telemetry(
            samples=tuple(chain.from_iterable(gpu.samples for gpu in self._gpus)),
            energy_j=energy_j,
            energy_is_integral=energy_j is not None and any(gpu.energy_is_integral for gpu in self._gpus),
            max_sm_clock_mhz=min(clocks_mhz, default=None),
            load_1m=os.getloadavg()[0],
            affinity_cpus=self._cpu.affinity_cpus,
            masks=tuple(sorted(self._cpu.masks)),
            cpu_percent=self._cpu.percent,
            machine_cpu_percent=self._cpu.machine_percent if self._emulates else None,
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
        path = (one.address, one.peer)
        old = by_path.get(path, replace(one, sent_bytes=0, busy_s=0.0))
        by_path[path] = replace(old, sent_bytes=old.sent_bytes + one.sent_bytes, busy_s=old.busy_s + one.busy_s)
    return tuple(by_path.values())
