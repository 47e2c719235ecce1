"""CPU time of a step, CPU use of servers, and the cost of memory faults, the kernel and CPU quotas.

Page faults are part of the kernel's time, and no counter separates them. Two bounds are known: the kernel's time,
and about FAULT_S per page. A note names faults if both bounds matter. If the kernel's time is large but faults are
few, a note on a plain loop names no cause: huge pages or other calls. (Exchanges use the kernel for sockets.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.statistics.intervals import known_mean
from scaling.records.events import Finished
from scaling.records.point import SERVER, Record
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import CpuTime, Telemetry
from scaling.text import percent

# CPU time that was counted for so many times its steps' seconds has pauses of a script in it.
PAUSED = 3.0

# ---------------------------------------------------------------- cpu use


class ServerUse(Record, frozen=True, kw_only=True):
    """A parameter server: its host and its use of one core in measured windows, mean over rounds."""

    name: str
    host: str
    cpu_percent: float | None


def server_use(records: Iterable[PointRecord]) -> tuple[ServerUse, ...]:
    """Return the parameter servers of the finished rounds, sorted by number."""
    found: dict[tuple[int, str, str], list[HelperRecord]] = defaultdict(list)
    for record in records:
        for helper in record.helpers if isinstance(record.outcome, Finished) else ():
            number = helper.name.removeprefix(SERVER)
            if helper.name.startswith(SERVER) and number.isdecimal():
                found[int(number), helper.name, helper.host].append(helper)
    return tuple(
        ServerUse(name=name, host=host, cpu_percent=known_mean(helper.telemetry.cpu_percent for helper in helpers))
        for (_, name, host), helpers in sorted(found.items(), key=lambda item: item[0])
    )


def of_machine(records: Iterable[PointRecord]) -> float | None:
    """Return the busiest emulating machine's use of all its cores, mean over rounds; None for real devices."""
    by_round = (
        [used for rank in record.ranks if (used := rank.telemetry.machine_cpu_percent) is not None]
        for record in records
    )
    return known_mean(max(known, default=None) for known in by_round)


# ---------------------------------------------------------------- cpu time
#
# wall = CPU / cores + time off the CPU is an identity per rank, if it has as many cores as computing threads. With
# spare cores a communication thread may cost nothing. So only the threads of plain steps and their queueing count.

# Helpers that compute, one per device.
COMPUTING = "trainer-"
# A thread below this part of the process's CPU time does not count as computing.
LEAST_SHARE = 0.01


class Thread(NamedTuple):
    """Seconds of a step, per core, that threads of one name ran and waited for a CPU."""

    run_s: float
    queued_s: float


class Use(Record, frozen=True, kw_only=True):
    """CPU seconds of a step, per core: of all threads, by thread name, of other processes (None if unknown)."""

    run_s: float
    threads: Mapping[str, Thread] = {}
    others_s: float | None = None

    @property
    def queued_s(self) -> float | None:
        """Seconds that all threads waited for a CPU; None if threads are unknown."""
        return sum(thread.queued_s for thread in self.threads.values()) if self.threads else None

    @property
    def computing(self) -> frozenset[str]:
        """Names of the threads that compute in a plain loop."""
        return frozenset(name for name, one in self.threads.items() if one.run_s > LEAST_SHARE * self.run_s)


class CpuStep(Record, frozen=True, kw_only=True):
    """CPU time of one step: by seat, and the mean over devices with computing helpers.

    `is_spare`: some rank has more CPUs than computing threads. `servers_s` are CPU seconds of parameter servers by
    host, `sharing` the seats of ranks on each host.
    """

    seats: Mapping[int, Use]
    mean: Use
    is_spare: bool = False
    servers_s: Mapping[str, float] = {}
    sharing: Mapping[str, tuple[int, ...]] = {}


def cpu_step(record: PointRecord) -> CpuStep | None:
    """Return a step's CPU time; None if it is unknown or the devices are no CPUs."""
    if not isinstance(record.outcome, Finished) or record.point.hardware.device != "cpu":
        return None
    ranks = [rank for rank in record.ranks if rank.windows]
    if not ranks or (record.point.workload.script and any(map(_has_pauses, ranks))):
        return None
    seats = {rank.launch_rank: _use(rank.telemetry, _span(rank), rank.threads) for rank in ranks}
    span, threads = _mean_span(ranks), ranks[0].threads
    helpers = [_use(one.telemetry, span, threads) for one in record.helpers if one.name.startswith(COMPUTING)]
    if None in seats.values() or None in helpers:
        return None
    known = {seat: use for seat, use in seats.items() if use is not None}
    sharing: dict[str, tuple[int, ...]] = defaultdict(tuple)
    for rank in record.ranks:
        sharing[rank.host] += (rank.launch_rank,)
    return CpuStep(
        seats=known,
        mean=mean_of(
            (*known.values(), *(use for use in helpers if use is not None)),
            len(known) if record.point.kind == "each" else record.point.world_size,
        ),
        is_spare=any(len(rank.cpus) > rank.threads * _driven(rank, record) for rank in ranks),
        servers_s=_servers(record, ranks),
        sharing=dict(sharing),
    )


def mean_of(uses: Iterable[Use], devices: int) -> Use:
    """Return the sum of `uses` per device."""
    run_s, threads = 0.0, dict[str, Thread]()
    for use in uses:
        run_s += use.run_s / devices
        for name, one in use.threads.items():
            before = threads.get(name, Thread(0.0, 0.0))
            threads[name] = Thread(before.run_s + one.run_s / devices, before.queued_s + one.queued_s / devices)
    return Use(run_s=run_s, threads=threads)


class Growth(NamedTuple):
    """Growth of the CPU time of a step, in seconds: of the computing threads with spare CPUs, else of all.

    `queued_s` is their queueing behind `threads_s`, the process's other threads; over rounds it is bounded by
    these.
    """

    run_s: float
    queued_s: float = 0.0
    threads_s: float = 0.0


def growth(exchange: Use, plain: Use, *, is_spare: bool, servers_s: float = 0.0) -> Growth | None:
    """Return how much the CPU time of a step grew by the exchange; None with spare CPUs and unknown threads."""
    if not is_spare:
        return Growth(exchange.run_s - plain.run_s)
    names = plain.computing
    if not exchange.threads or not names:
        return None
    computing_s = sum(one.run_s for name, one in exchange.threads.items() if name in names)
    threads_s = exchange.run_s - computing_s
    queued_s = _queued_s(exchange, names) - _queued_s(plain, names)
    before_s = sum(plain.threads[name].run_s for name in names)
    part = threads_s / (threads_s + servers_s) if threads_s > 0 else 0.0
    return Growth(computing_s - before_s, part * queued_s, threads_s)


def new_threads(exchange: Use, plain: Use) -> dict[str, float]:
    """Return by name the seconds of threads that do not compute in the plain loop."""
    return {name: one.run_s for name, one in exchange.threads.items() if name not in plain.computing}


def new_seconds(exchange: Use, plain: Use) -> float:
    """Return the sum of `new_threads`."""
    return sum(new_threads(exchange, plain).values())


def _queued_s(use: Use, names: frozenset[str]) -> float:
    return sum(one.queued_s for name, one in use.threads.items() if name in names)


# ---------------------------------------------------------------- one process


# Steps, and seconds of a step.
Span = tuple[float, float]


def _span(rank: RankRecord) -> Span:
    steps = sum(window.steps for window in rank.windows)
    return steps, rank.measured_s / steps if steps else 0.0


def _has_pauses(rank: RankRecord) -> bool:
    """Return whether the CPU time is of far more than steps: a script's pauses are in it, such as evaluation."""
    cpu, (_, step_s) = rank.telemetry.cpu, _span(rank)
    return cpu is not None and cpu.wall_s > PAUSED * cpu.steps * step_s


def _use(telemetry: Telemetry, span: Span, cores: int) -> Use | None:
    """Older records have only the percentage of one core."""
    cpu, percent = telemetry.cpu, telemetry.cpu_percent
    if cpu is not None:
        steps = (cpu.steps or span[0]) * cores
        threads = {one.name: Thread(one.run_s / steps, one.queued_s / steps) for one in cpu.threads if steps}
        others_s = None if cpu.others_s is None or not steps else cpu.others_s / steps * cores
        return Use(run_s=cpu.run_s / steps, threads=threads, others_s=others_s) if threads else None
    return None if percent is None else Use(run_s=percent / 100 * span[1] / cores)


def _mean_span(ranks: Sequence[RankRecord]) -> Span:
    steps, steps_s = zip(*map(_span, ranks), strict=True)
    counted = [rank.telemetry.cpu.steps for rank in ranks if rank.telemetry.cpu is not None]
    return fmean(counted or steps), fmean(steps_s)


# ---------------------------------------------------------------- servers


def _servers(record: PointRecord, ranks: Sequence[RankRecord]) -> dict[str, float]:
    """CPU seconds of a step on each training host; a server with unknown use counts as 0."""
    span, training = _mean_span(ranks), set(record.hosts) | {rank.host for rank in ranks}
    found: dict[str, float] = defaultdict(float)
    for helper in record.helpers:
        if helper.name.startswith(SERVER) and helper.host in training:
            use = _use(helper.telemetry, span, 1)
            found[helper.host] += use.run_s if use else 0.0
    return dict(found)


# ---------------------------------------------------------------- conditions

# Least part of the time for a note: of faults, and of the kernel without faults. Plain loops reach 0.6 %.
LEAST, LARGE = 0.01, 0.03
# Measured on plain steps with about 5,000 faults and 10 ms of kernel time each.
FAULT_S = 2e-6
# 32 MiB is the largest buffer that glibc keeps.
MALLOC = "--malloc keep, the default for CPU workers, avoids faults of buffers up to 32 MiB"


class _Process(NamedTuple):
    """Counts of a process over its rounds; `cores_s` is the time of its cores."""

    name: str
    steps: float
    faults: int
    kernel_s: float
    cores_s: float
    wall_s: float

    @property
    def kernel(self) -> float:
        """Part of its cores' time."""
        return self.kernel_s / self.cores_s

    @property
    def paging(self) -> float:
        """Part of its cores' time explained by faults of one page each."""
        return self.faults * FAULT_S / self.cores_s

    @property
    def is_faulting(self) -> bool:
        return min(self.kernel, self.paging) > LEAST

    @property
    def of_step(self) -> str:
        return "of the step" + (" per core" if self.cores_s > self.wall_s else "")


def condition_notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """Yield notes about a CPU quota, memory faults and unexplained kernel time, if they matter."""
    yield from _throttled(records)
    told = _processes(records)
    if faulting := [one for one in told if one.is_faulting]:
        one, whose = _worst(faulting, told)
        part = f", {percent(one.paging, 1)} explained by them" if one.kernel > 2 * one.paging else ""
        yield (
            f"memory: {whose}{one.faults / one.steps:,.0f} minor faults per step, kernel time "
            f"{percent(one.kernel, 1)} {one.of_step}{part}; {MALLOC}"
        )
    large = [one for one in told if one.kernel > LARGE and not one.is_faulting]
    point = records[0].point
    if large and point.hardware.device == "cpu" and point.strategy.endswith(":plain"):
        one, whose = _worst(large, told)
        yield (
            f"kernel: {whose}{percent(one.kernel, 1)} {one.of_step} is kernel time; {one.faults / one.steps:,.0f} "
            f"minor faults per step explain {percent(one.paging, 1)} if each is of a single page; the rest is "
            "huge pages or other calls"
        )


def _throttled(records: Iterable[PointRecord]) -> Iterator[str]:
    # By host: throttled periods, periods, throttled seconds, seconds of its cores.
    sums: dict[str, tuple[float, ...]] = {}
    for record in records:
        for host in dict.fromkeys(rank.host for rank in record.ranks):
            known = [(rank.threads, rank.telemetry.cpu) for rank in record.ranks if rank.host == host]
            cpus = [(threads, cpu) for threads, cpu in known if cpu is not None]
            # Ranks of one cgroup read the same counts, so those of one rank are used.
            if worst := max((cpu for _, cpu in cpus), key=lambda cpu: cpu.throttled_periods, default=None):
                cores_s = sum(threads * cpu.wall_s for threads, cpu in cpus)
                counts = (worst.throttled_periods, worst.periods, worst.throttled_s, cores_s)
                sums[host] = tuple(map(sum, zip(counts, sums.get(host, (0, 0, 0, 0)), strict=True)))
    host = max(sums, key=lambda name: sums[name][0], default="")
    throttled, periods, seconds, cores_s = sums.get(host, (0, 0, 0.0, 0.0))
    if throttled > LEAST * periods:
        yield (
            f"throttled by the CPU quota of its cgroup on {host}: in {throttled} of {periods} periods, "
            f"{percent(seconds / cores_s, 1)} of its cores' time; raise the quota (docker --cpus, Kubernetes "
            "limits.cpu, systemd CPUQuota), or use fewer ranks"
        )


def _worst(found: Sequence[_Process], told: Sequence[_Process]) -> tuple[_Process, str]:
    if len(found) == len(told):
        return _sum(found), ""
    worst = max(found, key=lambda one: one.kernel)
    return worst, f"{worst.name} ({len(found)} of {len(told)} processes): "


def _sum(found: Sequence[_Process]) -> _Process:
    steps, faults, kernel_s, cores_s, wall_s = map(sum, zip(*(one[1:] for one in found), strict=True))
    return _Process(found[0].name, steps, faults, kernel_s, cores_s, wall_s)


def _processes(records: Iterable[PointRecord]) -> list[_Process]:
    by_name: dict[str, list[_Process]] = defaultdict(list)

    def add(name: str, cpu: CpuTime | None, cores: int, steps: float = 0.0) -> None:
        """`steps` is for a process that does not count its own."""
        if cpu is not None and (cpu.steps or steps) and cpu.wall_s:
            counts = (cpu.minor_faults, cpu.kernel_s, cores * cpu.wall_s, cpu.wall_s)
            by_name[name].append(_Process(name, cpu.steps or steps, *counts))

    for record in records:
        helpers = [helper for helper in record.helpers if helper.name.startswith(COMPUTING)]
        known = [cpu.steps for rank in record.ranks if (cpu := rank.telemetry.cpu) is not None]
        for rank in record.ranks:
            devices = 1 if helpers else _driven(rank, record)
            add(f"rank {rank.rank} on {rank.host}", rank.telemetry.cpu, rank.threads * devices)
        for helper in helpers if known else ():
            name = f"{helper.name} on {helper.host}"
            add(name, helper.telemetry.cpu, record.ranks[0].threads, fmean(known))
    return [_sum(found) for found in by_name.values()]


def _driven(rank: RankRecord, record: PointRecord) -> int:
    return max(1, record.hosts.count(rank.host)) if len(record.ranks) < record.point.world_size else 1
