"""An agent's readings during measured windows: device, network, CPU and energy of a child and its host."""

from __future__ import annotations

import re

from scaling.records.point import Amount, Count, Index, Record, Seconds, Signed, Size, UnixSeconds

TRACED = "scaling: traced steps"


class Kernels(Record, frozen=True, kw_only=True, array_like=True):
    """All runs of one kernel (copies and fills too): how many, and their total time."""

    name: str
    count: Count
    run_s: Seconds


class Collective(Record, frozen=True, kw_only=True, array_like=True):
    """One run of a communication kernel, including its wait for other ranks.

    `exposed_s`: the part without a compute kernel or an earlier collective.
    """

    name: str
    run_s: Seconds
    exposed_s: Signed


class GpuTime(Record, frozen=True, kw_only=True):
    """One GPU's time in the profiled steps of its rank, between two device synchronisations. `span_s` =
    `compute_s` + exposed time of the collectives + `idle_s`. `collectives` are sorted by start."""

    steps: Size
    span_s: Seconds
    compute_s: Signed
    idle_s: Signed
    kernels: tuple[Kernels, ...]
    collectives: tuple[Collective, ...]

    @property
    def exposed_s(self) -> float:
        """Communication that no compute hides, in seconds."""
        return sum(collective.exposed_s for collective in self.collectives)


# The throttle reason at the power limit: normal under load, not a fault.
POWER_CAP = "sw power cap"


class Sample(Record, frozen=True, kw_only=True, array_like=True):
    """One reading of one GPU in timed windows; None for values that it does not report.

    `throttle`: reasons for lower clocks. `device_index`: as in the task; None in older records (first GPU only).
    """

    unix_s: UnixSeconds
    utilisation_percent: Amount | None = None
    power_w: Amount | None = None
    sm_clock_mhz: Amount | None = None
    memory_used_bytes: Count | None = None
    temperature_c: Signed | None = None
    throttle: tuple[str, ...] = ()
    device_index: Index | None = None


class Traffic(Record, frozen=True, kw_only=True, array_like=True):
    """Bytes of one interface (`eth0`) or RDMA port (`mlx5_0/1`) of the host in timed windows.

    `errors`: error counters that rose, by name, and by how much.
    """

    name: str
    received_bytes: Count
    sent_bytes: Count
    errors: dict[str, Count] = {}


class Flow(Record, frozen=True, kw_only=True, array_like=True):
    """TCP bytes that arrived from one address of this host at a peer, in timed windows.

    `busy_s`: how long the busiest of the connections had data to send.
    """

    address: str
    peer: str
    sent_bytes: Count
    busy_s: Seconds


MAIN = "main"


class ThreadTime(Record, frozen=True, kw_only=True, array_like=True):
    """All threads of one name of a process in timed windows (the kernel's schedstat).

    `run_s`: seconds of running; `queued_s`: seconds of waiting for a busy CPU.
    """

    name: str
    threads: Index
    run_s: Signed
    queued_s: Signed


class CpuTime(Record, frozen=True, kw_only=True):
    """The CPU use of a process in timed windows, and in the uncounted step before each `Run`.

    `kernel_s`: the kernel's part of the threads' time.
    `minor_faults`, `major_faults`: page faults without and with disk access.
    `stolen_s`: taken by the hypervisor from the CPUs of this child; 0 if it has none.
    `others_s`: other processes on these CPUs, in ticks of 10 ms; None without own CPUs and in older records.
    `periods`, `throttled_periods`: of its cgroup's CPU quota; `throttled_s`: throttled time, summed over CPUs.
    """

    steps: Index
    wall_s: Seconds
    kernel_s: Signed
    minor_faults: Count
    major_faults: Count
    threads: tuple[ThreadTime, ...] = ()
    stolen_s: Signed = 0.0
    others_s: Signed | None = None
    periods: Count = 0
    throttled_periods: Count = 0
    throttled_s: Signed = 0.0

    @property
    def run_s(self) -> float:
        """CPU seconds of all threads."""
        return sum(thread.run_s for thread in self.threads)


# Threads of the kernel have a slash in their names: kworker/u8:2, ksoftirqd/0.
_OF_KERNEL = re.compile(r"(kworker|ksoftirqd|migration|cpuhp|watchdog|idle_inject|irq|rcu\w+)/")


class Foreign(Record, frozen=True, kw_only=True, array_like=True):
    """CPU use of processes of one name that are not the launch's, while a rank's core was slow or shared.

    `name`: the program with its first arguments, which no output shows; "" if unknown.
    `run_s`: CPU seconds; `over_s`: seconds of observation.
    """

    name: str
    run_s: Signed
    over_s: Seconds

    @property
    def cores(self) -> float:
        """How many cores they kept busy."""
        return self.run_s / self.over_s if self.over_s else 0.0

    @property
    def program(self) -> str:
        """The program alone: `python3` of `python3 -m train`, `kworker` of `kworker/u8:2`; "" if unknown."""
        first = "".join(self.name.split(maxsplit=1)[:1])
        if found := _OF_KERNEL.match(first):
            return found[1]
        # A login shell begins with "-", a title that a server gives itself ends with ":".
        return first.rstrip("/:").rpartition("/")[2].lstrip("-")


class MachineEnergy(Record, frozen=True, kw_only=True):
    """Energy of all processor packages and DRAM of a machine in timed windows: `joules` over `seconds`.

    `joules`: None if a counter cannot be read; `unreadable` names it (`/sys/.../energy_uj: Permission denied`).
    """

    joules: Signed | None = None
    seconds: Seconds = 0.0
    unreadable: str = ""


class Telemetry(Record, frozen=True, kw_only=True):
    """Readings of one child during its measured windows.

    `samples`: of all its GPUs, one GPU after another.
    `energy_j`: of all its GPUs, None if any does not report; `energy_is_integral`: integrated from power readings.
    `max_sm_clock_mhz`: the lowest of its GPUs' highest clocks.
    `load_1m`: of the host, at the end.
    `cpu_percent`: of one core; `machine_cpu_percent`: 100 is all cores, for emulated devices.
    `traffic`, `flows`: for one child of each host; `idle_traffic`: what the cards carry in that time when idle.
    `cpu`: None without /proc and in older records.
    `foreign`: read while the rank's core is slow or shared; busiest first.
    `machine_energy`: for one child of each machine that no other host shares; None without counters.
    `masks`: sets of CPUs on which its threads could run, at the start or end of a stretch of windows.
    `still_s`: the longest time that its agent did not run; 0 below 1 s.
    `suspended_s`: how long the machine was suspended, which no window contains.
    """

    samples: tuple[Sample, ...] = ()
    energy_j: Signed | None = None
    max_sm_clock_mhz: Amount | None = None
    load_1m: Amount | None = None
    affinity_cpus: Index | None = None
    cpu_percent: Signed | None = None
    traffic: tuple[Traffic, ...] = ()
    idle_traffic: tuple[Traffic, ...] = ()
    flows: tuple[Flow, ...] = ()
    machine_cpu_percent: Signed | None = None
    cpu: CpuTime | None = None
    foreign: tuple[Foreign, ...] = ()
    energy_is_integral: bool = False
    machine_energy: MachineEnergy | None = None
    masks: tuple[tuple[Index, ...], ...] = ()
    still_s: Seconds = 0.0
    suspended_s: Seconds = 0.0
