"""CPU time of one step, by rank and by thread: what a step computed, and what it waited. Pure.

Per rank, wall = CPU / cores + time off the CPU is an identity, where each rank has as many cores as computing
threads. Where it has more (hardware threads to spare, where a communication thread costs the computing ones
nothing), only threads that plain steps have too count, and what those queued for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import NamedTuple

from scaling.records.events import Finished
from scaling.records.point import SERVER, Record
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import Telemetry

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
