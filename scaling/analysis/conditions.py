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

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.cpu_time import COMPUTING
from scaling.records.other_code import own
from scaling.records.run import PointRecord, RankRecord
from scaling.records.telemetry import CpuTime

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


def notes(records: Sequence[PointRecord]) -> Iterator[str]:
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
