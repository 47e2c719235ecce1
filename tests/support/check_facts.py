"""A cluster as the preflight sees it, with faults to order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from msgspec.structs import replace

from scaling.hosts.networks import Entry
from scaling.records import task as records
from scaling.records.host import Gpu, GpuHealth, GpuHost, HostInfo, Nic
from scaling.records.task import DeviceRates, Timed
from scaling.tools.check import lead, measured
from scaling.tools.check.facts import Facts, Link, Load, Prepared, RankFacts
from tests.support.inline import host

GBIT = 1e9
Changes = Mapping[str, Mapping[str, Any]]
FOUR = ("node1", "node2", "node3", "node4")
# What ranks tell of a torch without CUDA on each node.
TORCH = {name: {"built_for_cuda": ""} for name in FOUR}
FABRIC = {"ib": Entry(interface="ib0", rate_gbit=10.0), "ethernet": Entry(interface="eth0", rate_gbit=1.0)}


def nic(name: str, address: str, **changes: Any) -> Nic:
    """A card in a /24."""
    fields: dict[str, Any] = {
        "name": name,
        "address": address,
        "netmask": "255.255.255.0",
        "up": True,
        "mtu": 1500,
    }
    return Nic(**{**fields, **changes})


def node(name: str, number: int, **changes: Any) -> HostInfo:
    """Host `number` of a cluster with ib0 in 10.10.0.0/24 and eth0 in 10.20.0.0/24."""
    loopback = nic("lo", "127.0.0.1", netmask="255.0.0.0", mtu=65536)
    cards = (loopback, nic("ib0", f"10.10.0.{number}"), nic("eth0", f"10.20.0.{number}"))
    made = replace(host(name), **{"nics": cards, "boot_id": f"boot-{name}", **changes})
    return replace(made, gpus=tuple(_of_node(one, name) for one in made.gpus))


def _of_node(one: Gpu, name: str) -> Gpu:
    """UUIDs are global: a GPU that was given none has its node's name in it."""
    return replace(one, uuid=f"{one.uuid}-{name}") if one.uuid == f"GPU-{one.index}" else one


def rank(one: HostInfo, number: int = 0, **changes: Any) -> RankFacts:
    """Rank `number` of the launch on a host."""
    fields: dict[str, Any] = {
        "host": one, "code": "c0de", "mpi": "Open MPI v5.0.11", "pid": 1000 + number,
        "machine_cores": len(one.cores), "memlock_bytes": None,
        "shm_bytes": 1 << 34, "shm_free_bytes": 1 << 33,
    }  # fmt: skip
    return RankFacts(**{**fields, **changes})


def ranks(
    nodes: Sequence[str] = FOUR, *, each: int = 1, hosts: Changes | None = None, told: Changes | None = None
) -> tuple[RankFacts, ...]:
    """`each` ranks on every node; `hosts` changes fields of a node's HostInfo, `told` of its ranks' facts."""
    found = []
    for number, name in enumerate(nodes, 1):
        one = node(name, number, **(hosts or {}).get(name, {}))
        found += [rank(one, number * 100 + local, **(told or {}).get(name, {})) for local in range(each)]
    return tuple(found)


Make = Callable[[str, int], HostInfo]


def pods(make: Make, count: int = 3) -> tuple[RankFacts, ...]:
    """A rank on each of the hosts a, b, c, ... of tests/support/clouds.py."""
    return tuple(rank(make(name, number), number) for number, name in enumerate("abcdef"[:count], 1))


def links(
    nodes: Sequence[str], network: str, speed: Callable[[str, str], float], latency_s: float = 20e-6
) -> tuple[Link, ...]:
    """Every pair, measured without fault; `speed` gives bits/s from a sender to a receiver."""
    return tuple(
        Link(
            network=network,
            client=a,
            server=b,
            latency_s=latency_s,
            offset_s=0.0001,
            forth_bits_per_s=speed(a, b),
            back_bits_per_s=speed(b, a),
        )
        for a, b in combinations(nodes, 2)
    )


def prepared(told: Sequence[RankFacts], **changes: Any) -> dict[str, Prepared]:
    """Every node listens, is idle, and resolves every name to its address on eth0."""
    hosts = {one.host.hostname: one.host for one in told}
    resolved = {
        name: tuple(nic.address for nic in one.nics if nic.name == "eth0")[:1] for name, one in hosts.items()
    }
    fields: dict[str, Any] = {"ports": {}, "resolved": resolved, "load": Load(other_cores=0.01)}
    return {name: Prepared(**{**fields, **changes}) for name in hosts}


def facts(
    nodes: Sequence[str] = FOUR,
    *,
    each: int = 1,
    hosts: Changes | None = None,
    told: Changes | None = None,
    fabric: Mapping[str, Entry] = FABRIC,
    words: Sequence[str] = (),
    **changes: Any,
) -> Facts:
    """A sound cluster, but for the changes: ib carries 9.4 Gb/s, ethernet 0.94."""
    everyone = ranks(nodes, each=each, hosts=hosts, told=told)
    found = lead.find_networks(everyone, words, fabric)
    sound = replace(
        found,
        prepared=prepared(everyone),
        links=tuple(
            link
            for network in found.networks
            for link in links(
                tuple(network.places), network.word, lambda *_, n=network: 0.94 * (n.rate_bits_per_s or GBIT)
            )
        ),
    )
    return replace(sound, **changes)


def gpu(index: int, *, of: int = 4, peers: Sequence[int] | None = None, **changes: Any) -> Gpu:
    """GPU `index` of a node of `of`, which reaches those in `peers` (default: all)."""
    reach = range(of) if peers is None else peers
    fields: dict[str, Any] = {
        "index": index,
        "name": "Tesla P100",
        "uuid": f"GPU-{index}",
        "memory_bytes": 1 << 34,
        "links": tuple("self" if other == index else "PIX" if other in reach else "SYS" for other in range(of)),
        "p2p": tuple(other == index or other in reach for other in range(of)),
    }
    return Gpu(**{**fields, **changes})


def timed(busbw_bytes_per_s: float, members: int = 4) -> Timed:
    """Three repetitions of 256 MB, of which the fastest is as fast as this and the median nine tenths of it."""
    seconds = 2 * (members - 1) / members * 256e6 / busbw_bytes_per_s
    return records.timed(members, 256_000_000, (2 * seconds, seconds / 0.9, seconds))


# ---------------------------------------------------------------- nodes with GPUs


def sound_gpu(index: int, **changes: Any) -> GpuHealth:
    """The health of GPU `index`, which has nothing to mend."""
    fields: dict[str, Any] = {
        "uuid": f"GPU-{index}", "name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0",
        "is_persistent": True, "compute_mode": "Default", "is_mig": False, "is_ecc": True, "uncorrected_errors": 0,
        "is_repair_pending": False, "is_repair_failed": False, "pcie_generation": 1, "pcie_generation_max": 4,
        "pcie_generation_own": 4, "pcie_width": 16, "pcie_width_max": 16, "sm_mhz_max": 1410,
        "application_sm_mhz": 1155, "default_sm_mhz": 1155, "power_limit_w": 400.0, "default_power_limit_w": 400.0,
    }  # fmt: skip
    return GpuHealth(**{**fields, **changes})


def gpu_facts(
    changed: Mapping[tuple[str, int], Mapping[str, Any]] | None = None,
    *,
    driver: Changes | None = None,
    told: Changes | None = None,
    hosts: Changes | None = None,
    nodes: Sequence[str] = FOUR,
) -> Facts:
    """A sound cluster with two A100 and two ranks on each node, but for what is `changed` of single GPUs' health,
    of the nodes' `driver`, of what their ranks told and of their `hosts`."""
    everything: dict[str, dict[str, Any]] = {}
    machines: dict[str, dict[str, Any]] = {}
    for name in nodes:
        gpus = tuple(sound_gpu(index, **(changed or {}).get((name, index), {})) for index in range(2))
        fields: dict[str, Any] = {"gpus": gpus, "cuda": "12.4", "reachable": 2, **(driver or {}).get(name, {})}
        everything[name] = {"driver": GpuHost(**fields), "built_for_cuda": "12.6", **(told or {}).get(name, {})}
        seen = tuple(gpu(index, of=2, name=gpus[index].name) for index in range(2))
        machines[name] = {"gpus": seen, "gpu_driver": "550.54", "kernel": "6.1", **(hosts or {}).get(name, {})}
    return facts(nodes, each=2, hosts=machines, told=everything)


# ---------------------------------------------------------------- rates of devices

H200, A100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB"
SOUND = {
    "matrix_flops_per_s": 766e12,
    "copy_bytes_per_s": 4.3e12,
    "to_device_bytes_per_s": 55.1e9,
    "from_device_bytes_per_s": 54.2e9,
    "samples_per_s": 2750.0,
}


def on_gpu(number: int, *, name: str = H200, of_sound: float = 1.0, **changes: Any) -> DeviceRates:
    """GPU `number` of a launch, eight to a node; `of_sound` is its matrix product as a fraction of a sound one."""
    fields: dict[str, Any] = {
        "launch_rank": number, "host": f"node{1 + number // 8}", "device": "cuda", "name": name,
        "index": number % 8, "uuid": f"GPU-{number}", "serial": f"16549220{number:03}",
        "work": measured.workload("cuda", (9, 0)),
        **SOUND, "matrix_flops_per_s": of_sound * SOUND["matrix_flops_per_s"],
    }  # fmt: skip
    return DeviceRates(**{**fields, **changes})


def failed_gpu(number: int, error: str = "no answer within 30 s", **known: float) -> DeviceRates:
    return replace(on_gpu(number, error=error), **{**dict.fromkeys(SOUND), **known})


def on_cpus(number: int, flops_per_s: float = 95e9, **changes: Any) -> DeviceRates:
    fields: dict[str, Any] = {
        "launch_rank": number, "host": "node1", "device": "cpu", "name": "Xeon",
        "cpus": (2 * number, 2 * number + 1),
        "work": measured.workload("cpu", None),
        "matrix_flops_per_s": flops_per_s, "copy_bytes_per_s": 12e9, "samples_per_s": 310.0,
    }  # fmt: skip
    return DeviceRates(**{**fields, **changes})
