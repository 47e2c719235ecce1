"""How each library of an exchange is held to one network: the environment of a child. Pure.

Addresses do the rest: every rendezvous and server is told the address that it binds on that network
(`task.address`, `task.addresses`, `task.servers`). A server that listens on all interfaces has only these, and
goes out by the interface that leads to the peer's address.
"""

from __future__ import annotations

from scaling.records.network import ANY
from scaling.records.task import Task


def nccl(task: Task) -> dict[str, str]:
    """NCCL: RDMA over the network's card, or sockets over its interface and no RDMA at all.

    `=` makes NCCL take a name as a whole and not as a prefix. On one host, and where it may choose among the
    RDMA cards or reaches them by a plugin, which NCCL_NET=IB would exclude, only its rendezvous is told the
    interface. Nothing without GPUs.
    """
    if task.point.hardware.device != "cuda":
        return {}
    bootstrap = {"NCCL_SOCKET_IFNAME": f"={task.place.interface}"}
    if task.place.hca == ANY or task.place.plugin or task.place.interface == "lo":
        return bootstrap
    if task.place.hca:
        return {**bootstrap, "NCCL_NET": "IB", "NCCL_IB_HCA": f"={task.place.hca}"}
    return {**bootstrap, "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}


def nccl_log(task: Task) -> dict[str, str]:
    """What has NCCL write down what it chose, into a file beside the rank's log; nothing without GPUs or a log.

    A line for every collective (TUNING) tells the algorithm, and costs the step that it is written in: only in the
    first round of `comm`, which is in no efficiency.
    """
    if task.point.hardware.device != "cuda" or not task.log:
        return {}
    tuning = ("TUNING",) if task.point.kind == "comm" and task.point.round == 0 else ()
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": ",".join(("INIT", "GRAPH", "NET", "ENV", *tuning)),
        "NCCL_DEBUG_FILE": f"{task.log.replace('%', '%%')}.nccl.%p",
    }


def gloo(task: Task) -> dict[str, str]:
    """The interface of Gloo, which else takes the address of the host's name, whatever MASTER_ADDR says."""
    return {"GLOO_SOCKET_IFNAME": task.place.interface}
