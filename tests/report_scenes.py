"""Runs that the report's tests tabulate."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from scaling.records import Header, PointRecord
from tests.scripted_records import STRONG, failed, header, host, point, record, sweep, throttled

DRIFT = (0.998, 1.0, 1.003)
Run = tuple[Header, list[PointRecord]]


def default_run() -> Run:
    """What two ranks on one machine leave, with the strategy's noise over rounds."""
    noise = ((1.0, 1.003), (1.002, 1.0), (0.999, 1.004))
    records: list[PointRecord] = []
    for number, (drift, (one, two)) in enumerate(zip(DRIFT, noise, strict=True)):
        records += sweep(number, 0.1 * drift, {1: 0.1007 * drift * one, 2: 0.107 * drift * two})
    return header(launch_size=2, why_default="no NVIDIA GPU on node1"), records


def cluster_run() -> Run:
    """Three ways on four nodes: one fails at N=8 and once at N=4, one is superlinear, one oversubscribed."""
    records: list[PointRecord] = []
    for number, drift in enumerate(DRIFT):
        records.append(record(point("solo", 1, number, strategy="torch:plain"), 0.1 * drift))
        for n in (1, 2, 4, 8, 16):
            records += _cluster_cells(n, number, drift)
    names = [f"node{index}" for index in range(1, 5)]
    return header([host(name) for name in names], launch_size=16), records


def _cluster_cells(n: int, number: int, drift: float) -> list[PointRecord]:
    hosts = ["node1"] if n <= 4 else [f"node{index}" for index in range(1, n // 4 + 1)]
    made = []
    for strategy, network, slower in (
        ("torch:nccl", "ib0", 1.0),
        ("torch:nccl", "eth0", 1.1),
        ("torch:gloo", "ib0", 1.1 * drift),
    ):
        step_s = {1: 0.1007, 2: 0.107, 4: 0.113, 8: 0.125, 16: 0.13}[n] * slower * drift
        at = point("exchange", n, number, strategy=strategy, interconnect=network)
        one = record(at, 0.095 * drift if (strategy, n) == ("torch:gloo", 2) else step_s, hosts=hosts)
        if strategy == "torch:gloo" and (n == 8 or (n == 4 and number == 1)):
            one = failed(at, *(("crash(SIGSEGV)", "killed by SIGSEGV") if n == 8 else ("oom", "out of memory")))
        made.append(replace(one, oversubscribed=(strategy, n) == ("torch:gloo", 16)))
        if n > 1:
            made.append(
                record(point("comm", n, number, strategy=strategy, interconnect=network), 0.05, hosts=hosts)
            )
    if n > 1:
        beside = (*(0.102 * drift,) * (n - 1), 0.104 * drift)
        made.append(record(point("together", n, number, strategy="torch:plain"), *beside, hosts=hosts))
    return made


def strong_run() -> Run:
    """A global batch of 256, options, a throttled row, one much warned of, a comm control that failed."""
    records: list[PointRecord] = []
    knobs = {"options": {"bucket_cap_mb": "10"}, **STRONG}
    for number, drift in enumerate(DRIFT):
        for n, solo_s, step_s in ((1, 0.8, 0.81), (2, 0.38, 0.395), (4, 0.21, 0.23), (16, 0.06, 0.09)):
            batch, hosts = 256 // n, ["node1"] if n <= 4 else ["node1", "node2", "node3", "node4"]
            records.append(record(point("solo", 1, number, batch_size=batch, **STRONG), solo_s * drift))
            one = record(point("exchange", n, number, batch_size=batch, **knobs), step_s, hosts=hosts)
            records.append(_odd(one))
            if n > 1:
                beside = (*(solo_s * 1.02,) * (n - 1), solo_s * 1.04)
                records.append(record(point("together", n, number, batch_size=batch, **STRONG), *beside))
                comm = point("comm", n, number, batch_size=batch, **knobs)
                records.append(failed(comm) if (n, number) == (4, 0) else record(comm, 0.05))
    return header([host(f"node{index}") for index in range(1, 5)], launch_size=16), records


def _odd(one: PointRecord) -> PointRecord:
    if one.point.world_size == 16:
        return throttled(one)
    if one.point.world_size == 4 and one.point.round == 0:
        lost = tuple(f"rank {rank} on node1 had 1 CPUs instead of the promised 2" for rank in range(7))
        return replace(one, settled=False, warnings=lost)
    return one


def one_round() -> Run:
    """One round, broken off before the controls of N=2."""
    return header(), sweep(0, 0.1, {1: 0.1007, 2: 0.107})[:3]


def nothing() -> Run:
    """Broken off before any exchange ended."""
    return header(), [record(point("solo"), 0.1)]


SCENES: dict[str, Callable[[], Run]] = {
    "default": default_run,
    "cluster": cluster_run,
    "strong": strong_run,
    "one_round": one_round,
    "nothing": nothing,
}
