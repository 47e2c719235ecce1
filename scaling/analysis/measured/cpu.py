"""What memory, and the kernel at all, cost while a cell was measured. Pure.

Faults are a part of the kernel's time, and no counter tells which. Two bounds are known: they take no longer
than all of that time, and of one page about FAULT_S each. Faults are named where both are worth a note, with
what they explain where that is less than half. Where the kernel's time is large and faults are too few for it,
they may still be of huge pages, each of which clears 512 times as much; or the kernel did something else. A note
then tells what is known and names no cause. It does so of plain loops alone: what ranks exchange through sockets
is the kernel's work, and counts as the exchange's CPU.

Parts are of the time of a process's cores, and each process is judged by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from scaling.records.events import Finished
from scaling.records.other_code import own
from scaling.records.point import SERVER, Record
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import CpuTime, Telemetry

# ---------------------------------------------------------------- cpu use
#
# What CPUs did beside the training: parameter servers' use of a core, an emulating machine's of all. Pure.


class ServerUse(Record, frozen=True, kw_only=True):
    """A parameter server of a row: where it ran, and how much of one core it used while windows were measured,
    mean over rounds; None where that is not known."""

    name: str
    host: str
    cpu_percent: float | None


def server_use(records: Iterable[PointRecord]) -> tuple[ServerUse, ...]:
    """The parameter servers of the rounds that ended well, by number."""
    found: dict[tuple[int, str, str], list[HelperRecord]] = defaultdict(list)
    for record in records:
        for helper in record.helpers if isinstance(record.outcome, Finished) else ():
            number = helper.name.removeprefix(SERVER)
            if helper.name.startswith(SERVER) and number.isdecimal():
                found[int(number), helper.name, helper.host].append(helper)
    return tuple(
        ServerUse(name=name, host=host, cpu_percent=_mean(helper.telemetry.cpu_percent for helper in helpers))
        for (_, name, host), helpers in sorted(found.items(), key=lambda item: item[0])
    )


def of_servers(servers: Iterable[ServerUse]) -> float | None:
    """Of one core, the mean of the servers whose use is known."""
    return _mean(server.cpu_percent for server in servers)


def of_machine(records: Iterable[PointRecord]) -> float | None:
    """Of all cores of the busiest machine while it emulated, mean over rounds; None for real devices."""
    by_round = (
        [used for rank in record.ranks if (used := rank.telemetry.machine_cpu_percent) is not None]
        for record in records
    )
    return _mean(max(known, default=None) for known in by_round)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


# ---------------------------------------------------------------- conditions

# ---------------------------------------------------------------- cpu time
#
# CPU time of one step, by rank and by thread: what a step computed, and what it waited. Pure.
#
# Per rank, wall = CPU / cores + time off the CPU is an identity, where each rank has as many cores as computing
# threads. Where it has more (hardware threads to spare, where a communication thread costs the computing ones
# nothing), only threads that plain steps have too count, and what those queued for.


# Helpers that compute, one per device: their CPU time is the training's.
COMPUTING = "trainer-"
# A thread that runs for less of a process' time is not one that computes.
LEAST_SHARE = 0.01


class Thread(NamedTuple):
    """Seconds of one step that threads of one name ran, and that they waited for a CPU, per core."""

    run_s: float
    queued_s: float


class Use(Record, frozen=True, kw_only=True):
    """Seconds of one step, per core: what all threads ran, by name where that is known. `others_s` is what others
    ran on all its cores, None where nobody knows."""

    run_s: float
    threads: Mapping[str, Thread] = {}
    others_s: float | None = None

    @property
    def queued_s(self) -> float | None:
        """What all threads waited for a CPU; None in records that do not tell threads apart."""
        return sum(thread.queued_s for thread in self.threads.values()) if self.threads else None

    @property
    def computing(self) -> frozenset[str]:
        """The names of the threads that do a plain loop's work."""
        return frozenset(name for name, one in self.threads.items() if one.run_s > LEAST_SHARE * self.run_s)


class CpuStep(Record, frozen=True, kw_only=True):
    """What a record says of the CPUs in one step.

    `seats` are by rank of the launch; `mean` is over devices, computing helpers included. `servers_s` are the CPU
    seconds of parameter servers by host, `sharing` the seats of ranks on those hosts. `is_spare`: a rank had more
    CPUs than threads that compute.
    """

    seats: Mapping[int, Use]
    mean: Use
    is_spare: bool = False
    servers_s: Mapping[str, float] = {}
    sharing: Mapping[str, tuple[int, ...]] = {}


def cpu_step(record: PointRecord) -> CpuStep | None:
    """Return a step's CPU time; None where it is unknown, and where devices are no CPUs."""
    if not isinstance(record.outcome, Finished) or record.point.hardware.device != "cpu":
        return None
    ranks = [rank for rank in record.ranks if rank.windows]
    if not ranks:
        return None
    seats = {rank.launch_rank: _use(rank.telemetry, _Span.of(rank), rank.threads) for rank in ranks}
    known = {seat: use for seat, use in seats.items() if use is not None}
    helpers = _helpers(record, ranks)
    if len(known) < len(seats) or None in helpers:
        return None
    computing = [*known.values(), *(use for use in helpers if use is not None)]
    devices = len(known) if record.point.kind == "each" else record.point.world_size
    return CpuStep(
        seats=known,
        mean=mean_of(computing, devices),
        is_spare=any(_is_spare(rank, record) for rank in ranks),
        servers_s=_servers(record, ranks),
        sharing=_sharing(record),
    )


def mean_of(uses: Iterable[Use], devices: int) -> Use:
    """Per device."""
    run_s, threads = 0.0, dict[str, Thread]()
    for use in uses:
        run_s += use.run_s / devices
        for name, one in use.threads.items():
            before = threads.get(name, Thread(0.0, 0.0))
            threads[name] = Thread(before.run_s + one.run_s / devices, before.queued_s + one.queued_s / devices)
    return Use(run_s=run_s, threads=threads)


class Growth(NamedTuple):
    """Seconds by which the CPU time of a step grew by the exchange: of the threads that compute, or of all; and on
    CPUs to spare what those queued behind the `threads_s` that the other threads of their process ran, as far as
    that is known. It is a difference and may be negative: over rounds it is bounded by these."""

    run_s: float
    queued_s: float = 0.0
    threads_s: float = 0.0


def growth(exchange: Use, plain: Use, *, is_spare: bool, servers_s: float = 0.0) -> Growth | None:
    """By how much the CPU time of a step grew by the exchange; None where this cannot be told from what ran beside
    it on CPUs to spare. `servers_s` is what servers ran beside a rank, behind whom its threads queue too."""
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
    """By name, what threads ran in a step that compute nothing in a plain one."""
    return {name: one.run_s for name, one in exchange.threads.items() if name not in plain.computing}


def new_seconds(exchange: Use, plain: Use) -> float:
    """What those ran in all."""
    return sum(new_threads(exchange, plain).values())


def _queued_s(use: Use, names: frozenset[str]) -> float:
    return sum(one.queued_s for name, one in use.threads.items() if name in names)


# ---------------------------------------------------------------- of one process


class _Span(NamedTuple):
    """What a process' CPU time is spread over: steps, and seconds of one of them."""

    steps: float
    step_s: float

    @classmethod
    def of(cls, rank: RankRecord) -> _Span:
        steps = sum(window.steps for window in rank.windows)
        return cls(steps, rank.measured_s / steps if steps else 0.0)


def _use(telemetry: Telemetry, span: _Span, cores: int) -> Use | None:
    """Per core; of older records only how much of one core the process used is known."""
    cpu, percent = telemetry.cpu, telemetry.cpu_percent
    if cpu is not None:
        steps = (cpu.steps or span.steps) * cores
        threads = {one.name: Thread(one.run_s / steps, one.queued_s / steps) for one in cpu.threads if steps}
        others_s = None if cpu.others_s is None or not steps else cpu.others_s / steps * cores
        return Use(run_s=cpu.run_s / steps, threads=threads, others_s=others_s) if threads else None
    return None if percent is None else Use(run_s=percent / 100 * span.step_s / cores)


def _helpers(record: PointRecord, ranks: list[RankRecord]) -> list[Use | None]:
    """Those that compute."""
    span = _mean_span(ranks)
    return [
        _use(helper.telemetry, span, ranks[0].threads)
        for helper in record.helpers
        if helper.name.startswith(COMPUTING)
    ]


def _mean_span(ranks: Iterable[RankRecord]) -> _Span:
    """Of helpers, which do not count steps: that of the ranks, with the uncounted step where it is known."""
    spans = [_Span.of(rank) for rank in ranks]
    counted = [rank.telemetry.cpu.steps for rank in ranks if rank.telemetry.cpu is not None]
    steps = fmean(counted) if counted else fmean(span.steps for span in spans)
    return _Span(steps, fmean(span.step_s for span in spans))


def _is_spare(rank: RankRecord, record: PointRecord) -> bool:
    driven = record.hosts.count(rank.host) if len(record.ranks) < record.point.world_size else 1
    return len(rank.cpus) > rank.threads * max(1, driven)


# ---------------------------------------------------------------- of servers


def _servers(record: PointRecord, ranks: list[RankRecord]) -> dict[str, float]:
    """CPU seconds of a step by host, of the hosts that train; a server whose use is unknown counts as none."""
    span, training = _mean_span(ranks), set(record.hosts) | {rank.host for rank in ranks}
    found: dict[str, float] = {}
    for helper in record.helpers:
        if _is_server(helper) and helper.host in training:
            use = _use(helper.telemetry, span, 1)
            found[helper.host] = found.get(helper.host, 0.0) + (use.run_s if use else 0.0)
    return found


def _is_server(helper: HelperRecord) -> bool:
    return helper.name.startswith(SERVER)


def _sharing(record: PointRecord) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for rank in record.ranks:
        found[rank.host] = (*found.get(rank.host, ()), rank.launch_rank)
    return found


# ---------------------------------------------------------------- conditions

# Parts of the time that are worth a note: of faults, and of the kernel where these do not explain it. Plain
# loops had at most 0.6 % of it over the rounds of each of ten runs on two cores.
LEAST, LARGE = 0.01, 0.03
# Measured with glibc's heap given back after each step: 4,500 to 6,300 faults and 9 to 11 ms of kernel time.
FAULT_S = 2e-6
# What helps, and why faults are left where it was in use: 32 MiB is the largest buffer that glibc keeps.
MALLOC = "in CPU workers --malloc keep, the default, spares those of buffers up to 32 MiB"


class _Asked(NamedTuple):
    """What a process asked of the kernel in so many steps, while its cores had so many seconds."""

    name: str
    steps: float
    faults: int
    kernel_s: float
    cores_s: float
    wall_s: float

    @property
    def kernel(self) -> float:
        """The kernel's part of its cores' time."""
        return self.kernel_s / self.cores_s

    @property
    def paging(self) -> float:
        """The same of its faults, each of one page."""
        return self.faults * FAULT_S / self.cores_s

    @property
    def is_faulting(self) -> bool:
        """Whether its faults explain enough of it."""
        return min(self.kernel, self.paging) > LEAST

    @property
    def of_step(self) -> str:
        """What its parts are of."""
        return "of the step" + (" per core" if self.cores_s > self.wall_s else "")


def condition_notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """What a CPU quota costs, and faulting memory in, where they cost something; and the kernel, where that is not
    why."""
    yield from _throttled(records)
    told = _told(records)
    if faulting := [one for one in told if one.is_faulting]:
        one, whose = _worst(faulting, told)
        part = f", {_percent(one.paging)} explained by them" if one.kernel > 2 * one.paging else ""
        yield (
            f"memory: {whose}{one.faults / one.steps:,.0f} minor faults per step, kernel time "
            f"{_percent(one.kernel)} {one.of_step}{part}; {MALLOC}"
        )
    large = [one for one in told if one.kernel > LARGE and not one.is_faulting]
    if large and _is_plain(records[0]):
        one, whose = _worst(large, told)
        yield (
            f"kernel: {whose}{_percent(one.kernel)} {one.of_step} is the kernel's time, of which "
            f"{one.faults / one.steps:,.0f} minor faults per step explain {_percent(one.paging)} as single pages; "
            "the rest is of huge pages or other calls"
        )


class _HeldUp(NamedTuple):
    """What the CPU quota of a host's ranks did to them: the periods in which it held them up, of so many, and for
    how long, of their cores' seconds."""

    throttled: int
    periods: int
    seconds: float
    cores_s: float


def _throttled(records: Iterable[PointRecord]) -> Iterator[str]:
    """The host that its CPU quota held up most."""
    by_host: dict[str, list[_HeldUp]] = {}
    for record in records:
        for host in dict.fromkeys(rank.host for rank in record.ranks):
            by_host.setdefault(host, []).append(_held_up([rank for rank in record.ranks if rank.host == host]))
    sums = {host: _HeldUp(*map(sum, zip(*found, strict=True))) for host, found in by_host.items()}
    host = max(sums, key=lambda name: sums[name].throttled, default="")
    if host and sums[host].throttled > LEAST * sums[host].periods:
        throttled, periods, seconds, cores_s = sums[host]
        yield (
            f"throttled by the CPU quota of its cgroup on {host}: in {throttled} of {periods} periods, "
            f"{_percent(seconds / cores_s)} of its cores' time; raise the quota (docker --cpus, Kubernetes "
            "limits.cpu, systemd CPUQuota), or use fewer ranks"
        )


def _held_up(ranks: Sequence[RankRecord]) -> _HeldUp:
    """Ranks of one cgroup read the same counts: those of one of them are taken."""
    known = [(rank.threads, cpu) for rank in ranks if (cpu := rank.telemetry.cpu) is not None]
    worst = max((cpu for _, cpu in known), key=lambda cpu: cpu.throttled_periods, default=None)
    if worst is None:
        return _HeldUp(0, 0, 0.0, 0.0)
    cores_s = sum(threads * cpu.wall_s for threads, cpu in known)
    return _HeldUp(worst.throttled_periods, worst.periods, worst.throttled_s, cores_s)


def _worst(found: Sequence[_Asked], told: Sequence[_Asked]) -> tuple[_Asked, str]:
    """What all of them asked, if all do so; else the worst, and who it is."""
    if len(found) == len(told):
        return _sum(found), ""
    worst = max(found, key=lambda one: one.kernel)
    return worst, f"{worst.name} ({len(found)} of {len(told)} processes): "


def _is_plain(record: PointRecord) -> bool:
    """Whether it trains on CPUs and exchanges nothing."""
    return record.point.hardware.device == "cpu" and own(record.point.strategy).endswith(":plain")


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


# ---------------------------------------------------------------- process by process


def _told(records: Iterable[PointRecord]) -> list[_Asked]:
    """Of each rank, and of each helper that computes, over rounds."""
    by_name: dict[str, list[_Asked]] = {}
    for one in (asked for record in records for asked in _processes(record)):
        by_name.setdefault(one.name, []).append(one)
    return [_sum(found) for found in by_name.values()]


def _sum(found: Sequence[_Asked]) -> _Asked:
    steps, faults, kernel_s, cores_s, wall_s = map(sum, zip(*(one[1:] for one in found), strict=True))
    return _Asked(found[0].name, steps, faults, kernel_s, cores_s, wall_s)


def _processes(record: PointRecord) -> Iterator[_Asked]:
    helpers = [helper for helper in record.helpers if helper.name.startswith(COMPUTING)]
    known = [cpu for rank in record.ranks if (cpu := rank.telemetry.cpu) is not None]
    for rank in record.ranks:
        devices = 1 if helpers else _driven(rank, record)
        yield from _asked(f"rank {rank.rank} on {rank.host}", rank.telemetry.cpu, rank.threads * devices)
    for helper in helpers if known else ():
        steps, name = fmean(cpu.steps for cpu in known), f"{helper.name} on {helper.host}"
        yield from _asked(name, helper.telemetry.cpu, record.ranks[0].threads, steps)


def _asked(name: str, cpu: CpuTime | None, cores: int, steps: float = 0.0) -> Iterator[_Asked]:
    """`steps`: of who does not count them."""
    if cpu is not None and (cpu.steps or steps) and cpu.wall_s:
        yield _Asked(name, cpu.steps or steps, cpu.minor_faults, cpu.kernel_s, cores * cpu.wall_s, cpu.wall_s)


def _driven(rank: RankRecord, record: PointRecord) -> int:
    """How many devices its process drives."""
    return max(1, record.hosts.count(rank.host)) if len(record.ranks) < record.point.world_size else 1
