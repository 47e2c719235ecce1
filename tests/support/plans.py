"""Launches by name, and plans of one host with GPUs."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from scaling.plan import config, plan, validation
from scaling.plan.plan import Plan
from scaling.records.host import Gpu, HostInfo, Nic
from scaling.records.messages import Enrol
from tests.support.inline import enrol, host

GB = 10**9
MODERN = (9, 0)
MISMATCH = "unusable: RM has detected an NVML/RM version mismatch."
H100 = "NVIDIA H100 80GB HBM3"


def gpu(capability: tuple[int, int] | None = MODERN, memory_bytes: int = 80 * GB, index: int = 0) -> Gpu:
    return Gpu(
        index=index, name="GPU", uuid=f"GPU-{index}", memory_bytes=memory_bytes, compute_capability=capability
    )


def made(*gpus: Gpu, **fields: Any) -> Plan:
    ranks = [enrol(host(cores=16, memory_bytes=1 << 40, gpus=gpus))] * max(1, len(gpus))
    given = {"strategy": ["torch:nccl"], **fields} if gpus else fields
    wanted = config.build(given, source="test")
    validation.validate(wanted)
    return plan.make(wanted, ranks)


# ---------------------------------------------------------------- hosts


def nics(number: int) -> tuple[Nic, ...]:
    return tuple(
        Nic(name=name, address=f"10.{net}.0.{number}", netmask="255.255.255.0", up=True, mtu=1500)
        for name, net in (("ib0", 10), ("eth0", 20))
    )


def gpus_of(*uuids: str, parent: str = "", name: str = H100) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index=index, name=name, uuid=uuid, memory_bytes=80 * GB, parent=parent)
        for index, uuid in enumerate(uuids)
    )


def gpu_node(name: str, *uuids: str, reachable: int | None = None, **changes: Any) -> HostInfo:
    """A node `n1` with these GPUs, in a network with `n2`."""
    found = gpus_of(*(f"GPU-{name}-{uuid}" for uuid in uuids))
    seen = len(uuids) if reachable is None else reachable
    given = {"gpus": found, "gpu_driver": "580.95.05", "reachable_gpus": seen, "boot_id": name, **changes}
    return host(name, nics=nics(int(name[1:])), **given)


def slices(name: str, count: int) -> HostInfo:
    """A node whose GPU is in so many slices (MIG)."""
    found = gpus_of(*(f"MIG-{name}-{number}" for number in range(count)), parent=f"GPU-{name}")
    return gpu_node(name, gpus=found, gpu_driver="", reachable_gpus=1)


def in_mode(mode: str) -> list[HostInfo]:
    one = gpu_node("n1", "0", "1", memory_bytes=1 << 40)
    return [replace(one, gpus=tuple(replace(gpu, compute_mode=mode) for gpu in one.gpus))] * 2


def beside_three(driver: str) -> list[HostInfo]:
    return [*(gpu_node(f"n{number}", "0") for number in (1, 2, 3)), gpu_node("n4", gpu_driver=driver)]


def one_each(reachable: int) -> list[HostInfo]:
    """Four ranks of a node, each of which sees one of its GPUs and may open so many."""
    return [gpu_node("n1", str(number), reachable=reachable) for number in range(4)]


WITHOUT = gpu_node("n1", gpu_driver=MISMATCH)
LAUNCHES: dict[str, list[HostInfo]] = {
    "a fourth node with a broken driver": beside_three(MISMATCH),
    "a fourth node without a driver": beside_three(""),
    "a fourth node that shows none": beside_three("580.95.05"),
    "a third rank without a GPU": [gpu_node("n1", "0"), gpu_node("n1", "1"), gpu_node("n1")],
    "a broken driver": [WITHOUT] * 2,
    "no driver": [gpu_node("n1", gpu_driver="")] * 2,
    "AMD": [gpu_node("n1", gpu_driver="", unsupported_gpus="AMD GPU found, not supported")] * 2,
    "GPUs in mode Default": in_mode("Default"),
    "GPUs of one process": in_mode("Exclusive_Process"),
    "GPUs of no process": in_mode("Prohibited"),
    "two nodes of two GPUs": [gpu_node("n1", "0", "1")] * 2 + [gpu_node("n2", "0", "1")] * 2,
    "two kinds of GPUs": [gpu_node("n1", "0"), gpu_node("n2", gpus=gpus_of("GPU-b", name="Tesla V100-PCIE-32GB"))],
    "one visible GPU each": one_each(4),
    "one open GPU each": one_each(1),
    "four GPUs": [gpu_node("n1", "0", "1", "2", "3")] * 4,
    "two nodes that share a GPU": [gpu_node(name, gpus=gpus_of("GPU-a")) for name in ("n1", "n2")],
    "slices of one GPU on two nodes": [
        gpu_node(name, gpus=gpus_of(f"MIG-{name}", parent="GPU-a")) for name in ("n1", "n2")
    ],
    "slices of one GPU": [slices("n1", 2)] * 2,
    "slices of two GPUs": [slices("n1", 1), slices("n2", 1)],
}


# The addresses of the names of some nodes, at which Horovod's ranks listen; "-" for a build that obeys.
NAMES = {
    "names on ib0": ("10.10.0.1", "10.10.0.2"),
    "a name on the loopback": ("10.20.0.1", "127.0.1.1"),
    "a name on another network": ("10.20.0.1", "10.10.0.2"),
    "builds that obey": ("-", "-"),
    "one name on the loopback": ("127.0.1.1",),
}


def launch(text: str) -> list[Enrol]:
    """The ranks of one of LAUNCHES or NAMES, of `N ranks` (a host of N cores), of `NxM ranks` (N hosts of M),
    or of `GPUs 9.0/80,-/12` (a host with GPUs of these compute capabilities, `-` for unknown, and GB)."""
    if text in LAUNCHES:
        return [enrol(one) for one in LAUNCHES[text]]
    if text in NAMES:
        nodes_of = [host(f"node{at}", nics=nics(at), boot_id=str(at)) for at, _ in enumerate(NAMES[text], 1)]
        told: list[dict[str, str]] = [{} if one == "-" else {"torch:horovod": one} for one in NAMES[text]]
        return [enrol(one, name_addresses=names) for one, names in zip(nodes_of, told, strict=True)]
    if text.startswith("GPUs "):
        gpus = tuple(_card(one, index) for index, one in enumerate(text.removeprefix("GPUs ").split(",")))
        return [enrol(host(cores=16, memory_bytes=1 << 40, gpus=gpus))] * len(gpus)
    nodes, _, ranks = text.removesuffix(" ranks").rpartition("x")
    missing = {} if nodes else {"torch:nccl": "torch's build has no CUDA"}
    return [
        enrol(
            host(f"node{number}", cores=int(ranks), memory_bytes=512 << 30, nics=nics(number) if nodes else ()),
            missing=missing,
        )
        for number in range(1, int(nodes or 1) + 1)
        for _ in range(int(ranks))
    ]


def _card(text: str, index: int) -> Gpu:
    capability, _, size = text.partition("/")
    major, _, minor = capability.partition(".")
    return gpu((int(major), int(minor)) if minor else None, round(float(size) * GB), index)
