"""Environment variables that hold each library to one network.

Every rendezvous and server also gets its address there (`task.address`, `task.addresses`, `task.servers`). One
that listens on all interfaces sends through the interface to the peer's address.
"""

from __future__ import annotations

from scaling.records.network import ANY
from scaling.records.task import Task


def nccl(task: Task) -> dict[str, str]:
    """Return NCCL's variables: RDMA over the network's card, or sockets over its interface. Empty without GPUs.
    `=` makes NCCL match the whole name. Only the rendezvous gets the interface on one host, with any RDMA card, or
    with a plugin, which NCCL_NET=IB would exclude."""
    if task.point.hardware.device != "cuda":
        return {}
    bootstrap = {"NCCL_SOCKET_IFNAME": f"={task.place.interface}"}
    if task.place.hca == ANY or task.place.plugin or task.place.interface == "lo":
        return bootstrap
    if task.place.hca:
        return {**bootstrap, "NCCL_NET": "IB", "NCCL_IB_HCA": f"={task.place.hca}"}
    return {**bootstrap, "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}


def nccl_log(task: Task) -> dict[str, str]:
    """Return variables that log NCCL's choices next to the rank's log. Empty without GPUs or a log. TUNING logs
    every collective and slows the step: only in the first round of `comm`, which is in no efficiency."""
    if task.point.hardware.device != "cuda" or not task.log:
        return {}
    tuning = ("TUNING",) if task.point.kind == "comm" and task.point.round == 0 else ()
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": ",".join(("INIT", "GRAPH", "NET", "ENV", *tuning)),
        "NCCL_DEBUG_FILE": f"{task.log.replace('%', '%%')}.nccl.%p",
    }


def gloo(task: Task) -> dict[str, str]:
    """Return Gloo's interface. Without it, Gloo uses the address of the host's name, whatever MASTER_ADDR is."""
    return {"GLOO_SOCKET_IFNAME": task.place.interface}
