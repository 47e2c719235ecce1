"""Environment variables: of networks, of rates, and what children of older names get."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent import environment
from scaling.hosts.networks import Entry, choose
from scaling.records.host import Hca, HostInfo
from scaling.records.network import Place
from scaling.records.task import Server, Task
from tests.support import clouds
from tests.support.paper_tasks import tasks
from tests.support.points import changed, placed

# Which environment and addresses each strategy is given for each kind of network: whole, as dictionaries.

# How a task looks on a network: rank 1's address there, its interface, its RDMA card, the device.
VERBS = ("10.10.0", "ib0", "mlx5_0")
NETWORK_WORDS = ("IFNAME", "IFACE", "NCCL_", "DMLC_NODE", "DMLC_INTERFACE", "ADDR", "ROOT_URI", "TF_CONFIG")


def on(name: str, network: tuple[str, str, str], device: str = "cpu") -> Task:
    subnet, interface, hca = network
    _, one = tasks(name, "exchange", 2)
    task = replace(
        one,
        point=changed(one.point, device=device),
        hosts=("node1", "node2"),
        ports=(7000,),
        rank_ports=(7001, 7002),
        servers=(
            Server(
                launch_rank=0, host="node1", place=Place(address=f"{subnet}.1", interface=interface), port=7003
            ),
        ),
    )
    return placed(task, (f"{subnet}.1", f"{subnet}.2"), interface, hca)


def steered(of: Task) -> dict[str, Any]:
    """What of a worker's environment has to do with networks; a TF_CONFIG as data."""
    found = frameworks.load(of.point.strategy).environ(of, {})
    told = {key: value for key, value in found.items() if not key.startswith("NCCL_DEBUG")}
    kept = {key: value for key, value in told.items() if any(word in key for word in NETWORK_WORDS)}
    if "TF_CONFIG" in kept:
        kept["TF_CONFIG"] = json.loads(kept["TF_CONFIG"])["cluster"]
    return kept


def nccl(interface: str, **more: str) -> dict[str, str]:
    return {"NCCL_SOCKET_IFNAME": f"={interface}", **more}


NO_RDMA = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
OVER_NCCL = (
    "torch:nccl", "torch:fsdp2", "torch:horovod", "tensorflow:horovod", "mxnet:horovod", "tensorflow:nccl",
    "jax:psum", "jax:fsdp",
)  # fmt: skip


@pytest.mark.parametrize("name", OVER_NCCL)
def test_on_one_host_nccl_keeps_its_own_ways(name: str) -> None:
    found = steered(on(name, ("127.0.0", "lo", ""), "cuda"))
    assert {key: value for key, value in found.items() if key.startswith("NCCL_")} == nccl("lo")


# ---------------------------------------------------------------- what NCCL writes down


def logged(of: Task, **changes: Any) -> dict[str, str]:
    task = replace(of, point=replace(of.point, **changes))
    found = frameworks.load(of.point.strategy).environ(task, {})
    return {key.removeprefix("NCCL_DEBUG"): value for key, value in found.items() if key.startswith("NCCL_DEBUG")}


@pytest.mark.parametrize("name", [*OVER_NCCL, "mxnet:nccl"])
def test_on_gpus_nccl_writes_down_what_it_chose_beside_the_log(name: str) -> None:
    """A line for each collective costs the step in which it is written: in one round of comm, in no efficiency."""
    task = replace(on(name, VERBS, "cuda"), log="/runs/100%/logs/0001-a.1.log")
    usual = {"": "INFO", "_SUBSYS": "INIT,GRAPH,NET,ENV", "_FILE": "/runs/100%%/logs/0001-a.1.log.nccl.%p"}
    assert logged(task) == logged(task, kind="comm", round=1) == usual
    assert logged(task, kind="comm") == {**usual, "_SUBSYS": "INIT,GRAPH,NET,ENV,TUNING"}
    nothing = (logged(on(name, VERBS)), logged(replace(task, log="")), logged(task, kind="solo"))
    assert nothing == ({}, {}, {})


# ---------------------------------------------------------------- from machines to the environment


def pair(addresses: Sequence[str], *hcas: Hca) -> list[HostInfo]:
    """Two machines, `#` in an address being the machine's number."""
    return [clouds.machine(f"node{n}", [one.replace("#", str(n)) for one in addresses], [], *hcas) for n in (1, 2)]


DUAL = [clouds.card("mlx4_0", "ib0", port=1), clouds.card("mlx4_0", "ib1", port=2)]
BONDED = [clouds.card("mlx5_0", "bond0", "ib0"), clouds.card("mlx5_1", "bond0", "ib1")]
ROCE = clouds.card("mlx5_2", "eth0", link_layer="Ethernet")
EFA = clouds.card("rdmap16s27", link_layer="Unknown")
RAILS = [clouds.card(f"mlx5_{rail}", f"ib{rail}") for rail in (0, 1)]
IB = ["ib0 10.10.0.#/24", "eth0 10.20.0.#/24 10"]
# Google's A3: no RDMA device, and a plugin for eight more Ethernet cards.
FASTRAK = [replace(one, nccl_plugins=("/usr/local/fastrak/lib64/libnccl-net.so",)) for one in pair(IB)]


class Case(NamedTuple):
    """Machines, what is asked of --interconnect and said in the fabric file; the interface for sockets, and what
    NCCL is told beside that interface."""

    hosts: list[HostInfo]
    word: str
    interface: str
    nccl: dict[str, str]
    entry: Entry = Entry()


def verbs(cards: str) -> dict[str, str]:
    return {"NCCL_NET": "IB", "NCCL_IB_HCA": f"={cards}"}


CASES = {
    "ib0 with its card": Case(pair(IB, *RAILS), "ib0", "ib0", verbs("mlx5_0")),
    "ib0 without a card": Case(pair(IB), "ib0", "ib0", NO_RDMA),
    "eth0 beside InfiniBand": Case(pair(IB, *RAILS), "eth0", "eth0", NO_RDMA),
    "bond0 over InfiniBand": Case(pair(["bond0 10.10.0.#/24"], *BONDED), "bond0", "bond0", verbs("mlx5_0,mlx5_1")),
    "the second port": Case(pair(["ib1 10.10.0.#/24"], *DUAL), "ib1", "ib1", verbs("mlx4_0:2")),
    "eth0 that could do RoCE": Case(pair(IB, ROCE), "eth0", "eth0", NO_RDMA),
    "RoCE": Case(pair(IB, ROCE), "roce", "eth0", verbs("mlx5_2"), Entry(interface="eth0", hca="mlx5_2")),
    "cards by node": Case(
        pair(IB), "ib", "ib0", verbs("mlx5_2"), Entry(interface="ib0", hca={"node1": "mlx5_0", "node2": "mlx5_2"})
    ),
    "several cards": Case(
        pair(IB, *RAILS), "ib", "ib0", verbs("mlx5_0,mlx5_1"), Entry(interface="ib0", hca=("mlx5_0", "mlx5_1"))
    ),
    "EFA": Case(pair(IB, EFA), "efa", "eth0", {}, Entry(interface="eth0", hca="rdmap16s27")),
    "sockets beside EFA": Case(pair(IB, EFA), "eth0", "eth0", NO_RDMA),
    "any of the file": Case(pair(IB, *RAILS), "ib", "ib0", {}, Entry(interface="ib0", hca="any")),
    "auto": Case(pair(IB, *RAILS), "auto", "ib0", {}),
    "auto with EFA": Case(pair(IB, EFA), "auto", "eth0", {}),
    "auto without cards": Case(pair(IB), "auto", "eth0", NO_RDMA),
    "auto with a plugin": Case(FASTRAK, "auto", "eth0", {}),
    "sockets beside a plugin": Case(FASTRAK, "eth0", "eth0", NO_RDMA),
}


@pytest.mark.parametrize("name", frameworks.NAMES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_strategy_on_every_kind_of_network(name: str, case: Case) -> None:
    """NCCL alone is told of cards; Gloo, Horovod's, ps-lite and TensorFlow have the interface or its address."""
    found = choose(case.hosts, case.word, {case.word: case.entry} if case.entry != Entry() else {})
    place = found.places["node2"]
    subnet = place.address.rpartition(".")[0]
    for device in ("cpu", "cuda"):
        task = on(name, (subnet, place.interface, place.hca), device)
        told = steered(replace(task, place=replace(task.place, plugin=place.plugin)))
        over_nccl = device == "cuda" and name in OVER_NCCL
        wanted = {**nccl(case.interface), **case.nccl} if over_nccl else {}
        assert {key: value for key, value in told.items() if key.startswith("NCCL_")} == wanted
        here = {key: value for key, value in told.items() if key.endswith(("_IFNAME", "_IFACE", "_INTERFACE"))}
        assert {value.removeprefix("=") for value in here.values()} <= {case.interface}
        assert all(f"{subnet}." in str(told[key]) for key in ("TF_CONFIG", "MASTER_ADDR") if key in told)


# Which environment variables runs record, and which children get.

DEBUG = "TORCH_DISTRIBUTED_DEBUG"
KEPT = ("OMP_SCHEDULE", "PORTS", "MY_PORT", "XDMLC_ROLE")
DROPPED = (
    "OMP_THREAD_LIMIT", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "DMLC_LOCAL", "DMLC_PS_VAN_TYPE", "DMLC_ROLE", "PORT",
)  # fmt: skip
RECORDED = (
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_VERBOSE", "TF_ENABLE_ONEDNN_OPTS", "HOROVOD_AUTOTUNE",
    "TORCH_NCCL_BLOCKING_WAIT", "NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING", "NCCL_ALGO", "XLA_FLAGS",
    "LD_PRELOAD", "MALLOC_ARENA_MAX", "MXNET_ENGINE_TYPE", "GLOO_X", "UCX_TLS", "PYTORCH_CUDA_ALLOC_CONF",
    "KERAS_BACKEND", "MKL_CBWR",
)  # fmt: skip
SECRETS_AND_PLACES = (
    "KERAS_API_KEY", "TF_TOKEN", "TF_VAR_x", "NCCL_my_password", "HOROVOD_SECRET_KEY", "NCCL_PASSWORD", "UCX_AUTH",
    "MXNET_CREDENTIALS", "CUDA_HOME", "NCCL_VERSION", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TF_CONFIG",
)  # fmt: skip


@pytest.mark.parametrize("name", DROPPED)
def test_what_breaks_workers_is_dropped_and_said(name: str) -> None:
    environ = {name: "1", "HOME": "/h", "OMP_WAIT_POLICY": "active"}
    assert environment.for_children(environ) == {"HOME": "/h", "OMP_WAIT_POLICY": "active"}
    (said,) = environment.changed_variables(environ)
    assert said.startswith(f"{name}=1 (dropped: ")
    assert environment.recorded_variables(environ) == {"OMP_WAIT_POLICY": "active"}


def test_other_variables_stay_and_a_dropped_secret_is_not_said() -> None:
    assert environment.for_children(dict.fromkeys(KEPT, "1")) == dict.fromkeys(KEPT, "1")
    assert environment.changed_variables({**dict.fromkeys(KEPT, "1"), "DMLC_TOKEN": "x"}) == ()


@pytest.mark.parametrize("level", ["DETAIL", "detail", "INFO", "OFF"])
def test_a_debug_level_that_ends_torch_is_lowered_and_said(level: str) -> None:
    ends = level.upper() == "DETAIL"
    environ, lowered = {DEBUG: level}, {DEBUG: "INFO" if ends else level}
    assert environment.for_children(environ) == environment.recorded_variables(environ) == lowered
    said = environment.changed_variables(environ)
    assert said[0].startswith(f"{DEBUG}={level} (INFO for workers") if ends else said == ()


def test_what_changes_rates_is_recorded_without_secrets_and_places() -> None:
    environ = dict.fromkeys((*RECORDED, *SECRETS_AND_PLACES, "PATH"), "1")
    assert environment.recorded_variables(environ) == dict.fromkeys(sorted(RECORDED), "1")


def test_values_are_bounded_and_hide_passwords() -> None:
    found = environment.recorded_variables({"XLA_FLAGS": "x" * 1000, "TF_PROXY": "http://me:hunter2@host/x"})
    assert len(found["XLA_FLAGS"]) == environment.MOST_CHARACTERS + len("...")
    assert found["TF_PROXY"] == "http://***@host/x"
