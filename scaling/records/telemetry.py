"""What is read beside a child while its measured windows run: of its device, its host's cards and connections."""

from __future__ import annotations

from scaling.records.point import Amount, Count, Index, Record, Seconds, Signed, Size, UnixSeconds

# ---------------------------------------------------------------- GPU time


# The annotation around the profiled steps in a trace.
TRACED = "scaling: traced steps"


class Kernels(Record, frozen=True, kw_only=True, array_like=True):
    """All runs of the kernels of one name, copies and fills among them: how many there were, how long together."""

    name: str
    count: Count
    run_s: Seconds


class Collective(Record, frozen=True, kw_only=True, array_like=True):
    """One run of a communication kernel, in which it also waits for the other ranks; `exposed_s` is the part in
    which neither a kernel that computes nor an earlier collective ran."""

    name: str
    run_s: Seconds
    exposed_s: Signed


class GpuTime(Record, frozen=True, kw_only=True):
    """One GPU's time in the profiled steps of its rank, from one device synchronisation to another.

    `span_s` = `compute_s` + what the collectives leave exposed + `idle_s`: each moment counts once. `kernels` are
    those that compute, `collectives` in the order of their starts.
    """

    steps: Size
    span_s: Seconds
    compute_s: Signed
    idle_s: Signed
    kernels: tuple[Kernels, ...]
    collectives: tuple[Collective, ...]

    @property
    def exposed_s(self) -> float:
        """Of all communication, what no computing hides."""
        return sum(collective.exposed_s for collective in self.collectives)


# ---------------------------------------------------------------- telemetry

# The reason that a GPU at its power limit gives: the normal state of many under load, and no fault.
POWER_CAP = "sw power cap"


class Sample(Record, frozen=True, kw_only=True, array_like=True):
    """One reading of one GPU while windows were timed, None where this GPU does not tell; `throttle` names the
    reasons that lowered its clocks. `device_index` counts as the child's task does; None in older records, which
    know of a child's first GPU only."""

    unix_s: UnixSeconds
    utilisation_percent: Amount | None = None
    power_w: Amount | None = None
    sm_clock_mhz: Amount | None = None
    memory_used_bytes: Count | None = None
    temperature_c: Signed | None = None
    throttle: tuple[str, ...] = ()
    device_index: Index | None = None


class Traffic(Record, frozen=True, kw_only=True, array_like=True):
    """What one interface (`eth0`) or port of an RDMA card (`mlx5_0/1`) of the host carried while windows were
    timed."""

    name: str
    received_bytes: Count
    sent_bytes: Count


class Flow(Record, frozen=True, kw_only=True, array_like=True):
    """What this host sent over TCP while windows were timed, from one address of its own to one of a peer: the
    bytes that arrived, and for how long the busiest of the connections had some to send."""

    address: str
    peer: str
    sent_bytes: Count
    busy_s: Seconds


# The name under which a process's first thread stands among its others.
MAIN = "main"


class ThreadTime(Record, frozen=True, kw_only=True, array_like=True):
    """What all threads of one name of a process did while windows were timed: how many there were, how long they
    ran, how long they waited for a CPU that ran something else (the kernel's schedstat)."""

    name: str
    threads: Index
    run_s: Signed
    queued_s: Signed


class CpuTime(Record, frozen=True, kw_only=True):
    """What a process asked of the CPUs while windows were timed, with the uncounted step before each `Run`.

    `steps` are the steps that this covers and `wall_s` the time; `kernel_s` is the part of `threads`' time in the
    kernel. Faults are those of memory, minor ones without any disk. `stolen_s` is what the hypervisor kept of the
    CPUs that this child was promised, 0 where it was promised none; `others_s` what these ran beside this process,
    by the kernel's ticks of 10 ms, None there and in older records. Of the `periods` of its cgroup's CPU quota
    the cgroup stood still at the end of `throttled_periods`, for `throttled_s` summed over CPUs: 0 without a quota
    and in older records.
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


class Foreign(Record, frozen=True, kw_only=True, array_like=True):
    """Processes of one name, none of them the launch's, that ran while a rank's core was slower than it mostly is
    or shared, or others ran on its hyperthreads: what they are called, their CPU seconds, and over how many
    seconds that was looked at."""

    name: str
    run_s: Signed
    over_s: Seconds

    @property
    def cores(self) -> float:
        """How many cores they kept busy."""
        return self.run_s / self.over_s if self.over_s else 0.0


class MachineEnergy(Record, frozen=True, kw_only=True):
    """What all processor packages and DRAM of a machine used while windows were timed, whoever used it: `joules`
    over `seconds`. None where the kernel has counters that cannot be read, then `unreadable` is the first of them
    and the system's word (`/sys/.../energy_uj: Permission denied`)."""

    joules: Signed | None = None
    seconds: Seconds = 0.0
    unreadable: str = ""


class Telemetry(Record, frozen=True, kw_only=True):
    """What was read beside one child while measured windows ran.

    `samples` are of all its GPUs, one GPU after the other; `energy_j` is theirs together, None where any does not
    tell; with `energy_is_integral` that of power readings, where a GPU has no counter. `max_sm_clock_mhz` is the
    highest clock that any of them could have, the lowest of these. `load_1m` is
    the host's at the end, `affinity_cpus` the child's, `cpu_percent` how much of one core it used. `traffic` and
    `flows` are read beside one child of each host, `idle_traffic` is what its cards would have carried meanwhile,
    had nothing run, `machine_cpu_percent` (100: all cores) where devices are emulated. `cpu` is None where /proc
    tells nothing, and in older records. `foreign` is read while the rank's core is slow or shared
    (`Window.canary_s`, `CpuTime.others_s`), busiest first. `machine_energy` is read beside one child of each
    machine that no other host of the launch shares, None where there are no counters.
    `masks` are the CPUs on which its threads might run, each that any of them had when a stretch of windows began
    or ended. `still_s` is the longest time that its agent did not run meanwhile either, 0 below a second;
    `suspended_s` how long the machine was suspended, which no window's clock counts. Older records have none of
    these three.
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
