"""Which environment and addresses each strategy is given for each kind of network: whole, as dictionaries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.records.network import Place
from scaling.records.task import Server, Task
from tests.support.paper_tasks import tasks
from tests.support.points import changed, placed

# How a task looks on a network: rank 1's address there, its interface, its RDMA card, the device.
SOCKETS = ("10.20.0", "eth0", "")
VERBS = ("10.10.0", "ib0", "mlx5_0")
CHOICE = ("10.10.0", "ib0", "any")
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
RDMA = {"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_0"}
MASTER = {"MASTER_ADDR": "10.20.0.1"}
HOROVOD = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.20.0.1", "HOROVOD_GLOO_IFACE": "eth0"}
RING = {"TF_CONFIG": {"worker": ["10.20.0.1:7001", "10.20.0.2:7002"]}}
PS_LITE = {"DMLC_PS_ROOT_URI": "10.20.0.1", "DMLC_NODE_HOST": "10.20.0.2", "DMLC_INTERFACE": "eth0"}
TF_PS = {
    "TF_CONFIG": {
        "chief": ["10.20.0.1:7000"],
        "worker": ["10.20.0.1:7001", "10.20.0.2:7002"],
        "ps": ["10.20.0.1:7003"],
    }
}
ON_CPU: dict[str, dict[str, Any]] = {
    "torch:gloo": {**MASTER, "GLOO_SOCKET_IFNAME": "eth0"},
    "torch:nccl": {**MASTER, "GLOO_SOCKET_IFNAME": "eth0"},
    "torch:horovod": HOROVOD,
    "tensorflow:horovod": HOROVOD,
    "mxnet:horovod": HOROVOD,
    "torch:ps-sync": {"GLOO_SOCKET_IFNAME": "eth0"},
    "torch:ps-async": {"GLOO_SOCKET_IFNAME": "eth0"},
    "tensorflow:ring": RING,
    "tensorflow:nccl": RING,
    "tensorflow:ps": TF_PS,
    "mxnet:local": {},
    "mxnet:device": {},
    "mxnet:nccl": {},
    "mxnet:dist_sync": PS_LITE,
    "mxnet:dist_device_sync": PS_LITE,
    "mxnet:dist_async": PS_LITE,
}
OVER_NCCL = ("torch:nccl", "torch:horovod", "tensorflow:horovod", "mxnet:horovod", "tensorflow:nccl")


@pytest.mark.parametrize("name", frameworks.NAMES)
def test_every_strategy_is_held_to_the_network(name: str) -> None:
    assert steered(on(name, SOCKETS)) == ON_CPU[name]


@pytest.mark.parametrize("name", OVER_NCCL)
@pytest.mark.parametrize(
    ("network", "wanted"),
    [(SOCKETS, nccl("eth0", **NO_RDMA)), (VERBS, nccl("ib0", **RDMA)), (CHOICE, nccl("ib0"))],
)
def test_nccl_takes_the_card_the_sockets_or_its_own_choice(
    name: str, network: tuple[str, str, str], wanted: dict[str, str]
) -> None:
    found = steered(on(name, network, "cuda"))
    assert {key: value for key, value in found.items() if key.startswith("NCCL_")} == wanted


@pytest.mark.parametrize("name", OVER_NCCL)
def test_on_one_host_nccl_keeps_its_own_ways(name: str) -> None:
    found = steered(on(name, ("127.0.0", "lo", ""), "cuda"))
    assert {key: value for key, value in found.items() if key.startswith("NCCL_")} == nccl("lo")


# ---------------------------------------------------------------- what NCCL writes down


def logged(of: Task) -> dict[str, str]:
    found = frameworks.load(of.point.strategy).environ(of, {})
    return {key: value for key, value in found.items() if key.startswith("NCCL_DEBUG")}


@pytest.mark.parametrize("name", [*OVER_NCCL, "mxnet:nccl"])
def test_on_gpus_nccl_writes_down_what_it_chose_beside_the_log(name: str) -> None:
    task = replace(on(name, VERBS, "cuda"), log="/runs/100%/logs/0001-a.1.log")
    assert logged(task) == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,NET,ENV",
        "NCCL_DEBUG_FILE": "/runs/100%%/logs/0001-a.1.log.nccl.%p",
    }
    assert logged(on(name, VERBS)) == {}
    assert logged(replace(task, log="")) == {}


@pytest.mark.parametrize("name", [*OVER_NCCL, "mxnet:nccl"])
def test_a_line_for_each_collective_is_written_in_one_round_of_comm_alone(name: str) -> None:
    """It costs the step in which it is written, and comm is in no efficiency."""
    task = on(name, VERBS, "cuda")
    comm = replace(task.point, kind="comm")
    found = [logged(replace(task, point=point)) for point in (comm, replace(comm, round=1))]
    assert [one["NCCL_DEBUG_SUBSYS"].endswith(",TUNING") for one in found] == [True, False]
    assert logged(replace(task, point=replace(task.point, kind="solo"))) == {}
