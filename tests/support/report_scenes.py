"""Runs that the report's tests tabulate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from msgspec.structs import replace

from scaling.analysis.table.cost import Match, Price, Prices, Pricing
from scaling.records.run import Certificate, Criterion, Header, ImportedBandwidth, ImportedRow, PointRecord
from scaling.report.formats import terminal
from scaling.report.material import Material, Source
from tests.support.emulated_records import emulated_run
from tests.support.gpu_records import gpus_run
from tests.support.scripted_records import (
    STRONG,
    asynchronous,
    by_one_worker,
    carried,
    failed,
    header,
    host,
    point,
    record,
    served,
    sweep,
    throttled,
    warning,
    with_losses,
)
from tests.support.training_records import training_record

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
            made.append(record(replace(at, kind="comm"), 0.05, hosts=hosts))
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
        texts = (f"rank {rank} on node1 had 1 CPUs instead of the promised 2" for rank in range(7))
        lost = tuple(warning(text, "lost-cpus") for text in texts)
        return replace(one, settled=False, warnings=lost)
    return one


# Strategy -> a step on one device in units of 0.1 s, what each doubling adds, synchronous, has servers.
FRAMEWORKS = {
    "torch:gloo": (1.007, 0.04, True, 0),
    "torch:horovod": (1.012, 0.043, True, 0),
    "torch:ps-sync": (1.03, 0.09, True, 1),
    "torch:ps-async": (1.03, 0.05, False, 1),
    "tensorflow:ring": (1.41, 0.08, True, 0),
    "tensorflow:ps": (1.5, 0.12, False, 1),
    "mxnet:dist_sync": (1.22, 0.11, True, 1),
    "mxnet:dist_async": (1.21, 0.06, False, 1),
    "mxnet:horovod": (1.2, 0.05, True, 0),
}
PLAIN_S = {"torch": 0.1, "tensorflow": 0.14, "mxnet": 0.12}
NOISE = ((1.0, 1.004, 0.998), (1.003, 0.999, 1.001), (0.998, 1.002, 1.004))


def frameworks_run() -> Run:
    """Nine ways in three frameworks on 1, 2 and 4 devices of two nodes: asynchronous ones, parameter servers,
    one whose workers are driven by one process, and one that is not installed."""
    records: list[PointRecord] = []
    for number, drift in enumerate(DRIFT):
        for framework, solo_s in PLAIN_S.items():
            records += _plain_loops(framework, solo_s * drift, number)
        for index, strategy in enumerate(FRAMEWORKS):
            noise = NOISE[index % 3][number]
            for n in (1, 2, 4):
                records += _framework_cells(strategy, n, number, drift * noise)
    return header([host("node1"), host("node2")], launch_size=4), records


def _plain_loops(framework: str, solo_s: float, number: int) -> list[PointRecord]:
    strategy = f"{framework}:plain"
    made = [record(point("solo", 1, number, strategy=strategy), solo_s)]
    for n in (2, 4):
        beside = (*(solo_s * 1.02,) * (n - 1), solo_s * 1.04)
        made.append(record(point("together", n, number, strategy=strategy), *beside, hosts=_nodes(n)))
    return made


def _nodes(n: int) -> list[str]:
    return ["node1"] if n <= 2 else ["node1", "node2"]


def _framework_cells(strategy: str, n: int, number: int, factor: float) -> list[PointRecord]:
    alone, each, synchronous, has_servers = FRAMEWORKS[strategy]
    nodes = _nodes(n)
    servers = {"servers": len(nodes)} if has_servers else {}
    at = point("exchange", n, number, strategy=strategy, **servers)
    if strategy == "mxnet:horovod":
        return [replace(failed(at, "missing", "horovod is not installed: ./launch/install horovod"), ranks=())]
    step_s = 0.1 * factor * (alone + each * (n.bit_length() - 1))
    times = (step_s,) if synchronous else tuple(step_s * (1 + 0.02 * rank) for rank in range(n))
    made = record(at, *times, hosts=nodes)
    if not synchronous:
        made = with_losses(asynchronous(made, staleness=(n - 1) * 0.94), 2.0, 1.6, 1.2)
    if strategy == "tensorflow:ps":
        made = by_one_worker(made)
    if has_servers:
        made = served(made, *(37.4 * n - 4.0 * index for index in range(len(nodes))), hosts=nodes)
    comm = record(point("comm", n, number, strategy=strategy, **servers), 0.03 * n, hosts=nodes)
    return [made, comm] if n > 1 else [made]


def servers_run() -> Run:
    """One strategy with one and two parameter servers, beside training and on nodes of their own, under the
    strong rule, and a rival with a name that must be wrapped."""
    records: list[PointRecord] = []
    knobs = {"compression_threshold": "0.5", "push_dtype": "fp16"}
    for number, drift in enumerate(DRIFT):
        for batch in (256, 128, 64):
            solo_s = 0.8 * drift * batch / 256 * (1 + 0.02 * (256 / batch - 1))
            at = point("solo", 1, number, strategy="mxnet:plain", batch_size=batch, **STRONG)
            records.append(record(at, solo_s))
        for n, nodes in ((2, ["node1"]), (4, ["node1", "node2"])):
            at = point("together", n, number, strategy="mxnet:plain", batch_size=256 // n, **STRONG)
            records.append(
                record(at, 0.85 * drift / n, 0.84 * drift / n, *(0.83 * drift / n,) * (n - 2), hosts=nodes)
            )
            records += _server_cells(n, number, drift, nodes, knobs)
    return header([host(f"node{index}") for index in (1, 2, 3)], launch_size=6), records


def _server_cells(n: int, number: int, drift: float, nodes: list[str], knobs: dict[str, str]) -> list[PointRecord]:
    made = []
    for name, servers, where, options, step_s in (
        ("mxnet:dist_sync", 1, "shared", {}, 1.0),
        ("mxnet:dist_sync", 2, "shared", {}, 0.95),
        ("mxnet:dist_sync", 2, "dedicated", {}, 0.9),
        ("mxnet:dist_device_sync", 2, "dedicated", knobs, 0.92 - 0.01 * number),
    ):
        cell = {"strategy": name, "servers": servers, "server_hosts": where, "options": options}
        at = point("exchange", n, number, batch_size=256 // n, **cell, **STRONG)
        one = record(at, step_s * drift / n, hosts=nodes)
        used = served(one, *(55.0, 61.0)[:servers], hosts=nodes if where == "shared" else ["node3"])
        made += [used, record(replace(at, kind="comm"), 0.05, hosts=nodes)]
    return made


def one_round() -> Run:
    """One round, broken off before the controls of N=2."""
    return header(), sweep(0, 0.1, {1: 0.1007, 2: 0.107})[:3]


def nothing() -> Run:
    """Broken off before any exchange ended."""
    return header(), [record(point("solo"), 0.1)]


def networks_run() -> Run:
    """Four nodes over two networks: over one, node2's link is slow; the bytes of the other took the first."""
    records: list[PointRecord] = []
    names = [f"node{index}" for index in range(1, 5)]
    for number, drift in enumerate(DRIFT):
        records.append(record(point("solo", 1, number), 0.1 * drift))
        for network, n, step_s in (("ib0", 2, 0.11), ("ib0", 4, 0.3), ("eth0", 4, 0.12)):
            at = point("exchange", n, number, interconnect=network)
            made = record(at, step_s * drift, hosts=names[:n])
            records.append(carried(made, "ib0", slow="node2" if (network, n) == ("ib0", 4) else ""))
    return header([host(name) for name in names]), records


SCENES: dict[str, Callable[[], Run]] = {
    "default": default_run,
    "cluster": cluster_run,
    "strong": strong_run,
    "frameworks": frameworks_run,
    "servers": servers_run,
    "networks": networks_run,
    "gpus": gpus_run,
    "one_round": one_round,
    "nothing": nothing,
}


# ---------------------------------------------------------------- what a run may have besides its curves


def priced() -> Material:
    """The cluster's run with prices of machines of eight devices, one of them old."""
    match = Match(cpu="Test CPU*")
    price = Price(name="p3", match=match, devices=8, per_hour={"on_demand": 24.48, "spot": 7.5}, seen="2018-02-01")
    return Material(*cluster_run(), pricing=Pricing(Prices(currency="USD", price=(price,)), 50_000))


def swept() -> Material:
    """Batches of the plain loop alone, passes of an exchange, and one batch that does not fit."""
    plain: dict[str, Any] = {"strategy": "fake:plain"}
    made = [failed(point("exchange", 1, batch_size=256, **plain))]
    for number, drift in enumerate((0.999, 1.0, 1.002)):
        for size, step_s in ((32, 0.211), (64, 0.42), (128, 0.9)):
            made.append(record(point("exchange", 1, number, batch_size=size, **plain), drift * step_s))
            for n in (1, 2):
                at = point("exchange", n, number, batch_size=size, pass_="forward")
                made.append(record(at, drift * step_s / 3 * (1 + n / 50)))
    return Material(header(), made)


def trained() -> Material:
    """Trainings of two seeds and two world sizes to a target, of which one diverged and one crashed."""
    linear: dict[str, Any] = {"size": 4, "rule": "linear", "rate": 0.4, "target": 0.95}
    return Material(
        header(),
        [
            training_record([0.9, 0.99], target=0.95),
            training_record([0.8, 0.98], seed=1, target=0.95),
            training_record([0.5, 0.52], **linear),
            training_record([0.7, 0.96], seed=1, **linear),
            training_record([0.1], failed="nan-loss"),
            training_record([0.1], size=2, failed="crash(SIGKILL)"),
        ],
    )


def imported() -> Material:
    """A curve of three logs, one of which failed, and the bandwidth of a collective with a wrong value."""
    log: dict[str, Any] = {"tool": "tf_cnn_benchmarks", "unit": "images", "model": "resnet50", "batch_size": 64}
    rows = (
        ImportedRow(log="1.log", world_size=1, rate=300.0, steps=90, spread=0.02, **log),
        ImportedRow(log="2.log", world_size=8, rate=2200.0, notes=("one step is missing",), **log),
        ImportedRow(log="3.log", world_size=16, rate=None, failed="out of memory", **log),
    )
    ring: dict[str, Any] = {"collective": "all_reduce", "world_size": 16, "dtype": "float", "redop": "sum"}
    ring["time_s"] = 0.0013
    bandwidths = tuple(
        ImportedBandwidth(
            tool="nccl-tests", log="nccl.log", size_bytes=1 << 27, in_place=bool(wrong), wrong=wrong,
            algbw_gbytes_per_s=103.2, busbw_gbytes_per_s=193.6, **ring,
        )
        for wrong in (0, 1)
    )  # fmt: skip
    return Material(header((), imported=rows, bandwidths=bandwidths), ())


def certified() -> Material:
    """The networks' run with a verdict that its records do not have."""
    names = ("efficiency at N=4", "one device alone")
    criteria = tuple(
        Criterion(name=name, unit=unit, line=line, looks=(), result="PASS", reference=reference)
        for name, unit, line, reference in zip(names, ("", "images/s"), (0.9, 285.0), (None, 300.0), strict=True)
    )
    where = ("bandwidth: ib0: node2 is slow", "largest loss: waiting 5.1 %")
    given = Certificate(result="PASS", why="", criteria=criteria, error=0.01, minutes=15.0, where=where)
    return Material(*networks_run(), sources=[Source("run-1", "ab" * 32)], certificate=given)


def _of_run(run: Callable[[], Run]) -> Material:
    return Material(*run())


MATERIALS: dict[str, Callable[[], Material]] = {
    **{name: partial(_of_run, run) for name, run in SCENES.items()},
    "priced": priced,
    "swept": swept,
    "trained": trained,
    "imported": imported,
    "certified": certified,
    "emulated": partial(_of_run, emulated_run),
}


@cache
def rendered(scene: str) -> str:
    """The scene's report without colour, for all tests that read it."""
    made, records = SCENES[scene]()
    return terminal.render(made, records, color=False)
