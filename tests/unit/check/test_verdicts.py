"""Facts of the preflight -> verdicts: each planted fault is named, alone, with its nodes and its mend.

tests/golden/check-verdicts.txt has the lines of each case that sound clusters lack, then
the table to hand on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Interface
from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.hosts.networks import Entry
from scaling.records import host
from scaling.records.host import GpuHost, Hca, HostInfo, Interpreter
from scaling.records.network import NcclChoice
from scaling.records.task import DeviceRates
from scaling.tools.check import lead
from scaling.tools.check.__main__ import handover, summary_line
from scaling.tools.check.facts import AllReduce, Facts, Link, Load
from scaling.tools.check.verdicts import NCCL_SEGMENT_BYTES, SHM_ADVISED_BYTES, judge, links
from scaling.tools.check.verdicts.devices import ALIKE, FAULTS
from tests.support import clouds
from tests.support.check_facts import (
    FABRIC,
    FOUR,
    GBIT,
    SOUND,
    TORCH,
    Make,
    facts,
    failed_gpu,
    gpu,
    gpu_facts,
    nic,
    on_cpus,
    on_gpu,
    pods,
    prepared,
    timed,
)
from tests.support.check_facts import links as linked
from tests.support.golden import GOLDEN, check_golden

PAIR = FOUR[:2]
EACH_GPU = [(node, index) for node in FOUR for index in range(2)]


def all_nodes(value: Any) -> dict[str, Any]:
    return dict.fromkeys(FOUR, value)


# ---------------------------------------------------------------- software and limits

IB_CARD = Hca(name="mlx5_0", port=1, link_layer="InfiniBand", active=True, interfaces=("ib0",))
EFA_CARD = Hca(name="rdmap16s27", port=1, link_layer="Unknown", active=True)
ROCE_CARD = Hca(name="mlx5_1", port=1, link_layer="Ethernet", active=True, interfaces=("eth0",))
CARDS = all_nodes({"hcas": (IB_CARD,)})
NCCL = {"nvidia-nccl-cu13": "2.29.7", "nvidia-nccl-cu12": "2.27.7"}
ONE_NCCL = all_nodes({"versions": {"nvidia-nccl-cu13": "2.29.7"}})
ZEROMQ = all_nodes({"mpi": "ZeroMQ 4.3.5"})


def with_nccl(*packages: str) -> dict[str, Any]:
    env = {name: NCCL[name] for name in packages}
    return {
        "versions": NCCL,
        "interpreters": (Interpreter(framework="tensorflow", path="/env", python="3.11", versions=env),),
    }


def version(name: str) -> Facts:
    return facts(hosts={"node2": {"versions": {name: "1"}}})


def node2(**changes: Any) -> dict[str, Any]:
    return {"node2": changes}


def bound(quota: dict[str, float], cores: int = 64, **changes: Any) -> Facts:
    own = {"cores": tuple((core,) for core in range(cores)), "cpu_quotas": quota}
    return facts(told=all_nodes({"machine_cores": 64}), hosts=all_nodes(own), **changes)


def quota(cpus: float) -> Facts:
    own = {"cores": ((0,), (1,)), "cpu_quotas": {"a": cpus}}
    return facts(FOUR[:1], each=2, told={"node1": {"machine_cores": 2}}, hosts={"node1": own})


def memlock(card: Hca) -> Facts:
    return facts(hosts=all_nodes({"hcas": (card,)}), told={"node3": {"memlock_bytes": 65536}})


def prepared_at(node: str, found: Facts, **changes: Any) -> Facts:
    return replace(found, prepared={**found.prepared, node: replace(found.prepared[node], **changes)})


FOUR_RANKS = facts()
SOFTWARE: dict[str, Facts] = {
    **{f"sound: {n} x {each}": facts(FOUR[:n], each=each) for n in (4, 2, 1) for each in (1, 4)},
    **{
        f"one node has {name}": version(name)
        for name in ("torch", "nvidia-nccl-cu13", "horovod (mxnet)", "triton", "nvidia-ml-py")
    },
    "another Python": facts(hosts=node2(python="3.12.1")),
    "another GPU driver": facts(hosts=node2(gpu_driver="550.1")),
    "another MPI": facts(told=node2(mpi="MPICH 5.0")),
    "ZeroMQ": facts(told=ZEROMQ),
    "another ZeroMQ": facts(told=ZEROMQ | node2(mpi="ZeroMQ 4.3.4")),
    "one NCCL": facts(hosts=ONE_NCCL),
    "another NCCL": facts(hosts=ONE_NCCL | {"node2": {"versions": {"nvidia-nccl-cu13": "2.27.5"}}}),
    "two packages of NCCL": facts(hosts=all_nodes({"versions": NCCL})),
    "two NCCLs in two environments": facts(hosts=all_nodes(with_nccl("nvidia-nccl-cu12"))),
    "two NCCLs in a framework's environment": facts(hosts=all_nodes(with_nccl(*NCCL))),
    "other numbers of ranks": replace(FOUR_RANKS, ranks=(*FOUR_RANKS.ranks, FOUR_RANKS.ranks[3])),
    "other files of this program": facts(told={"node3": {"code": "0ther"}}),
    "locked memory without a card": facts(told={"node1": {"memlock_bytes": 65536}}),
    "locked memory with a dead card": facts(
        hosts={"node1": {"hcas": (replace(IB_CARD, active=False, interfaces=()),)}},
        told={"node1": {"memlock_bytes": 65536}},
    ),
    "unlimited locked memory": facts(hosts=CARDS),
    "locked memory, InfiniBand": memlock(IB_CARD),
    "locked memory, EFA": memlock(EFA_CARD),
    "locked memory, RoCE": memlock(ROCE_CARD),
    **{
        f"shared memory, {free} bytes": facts(told=node2(shm_free_bytes=free))
        for free in (SHM_ADVISED_BYTES - 1, 0, None)
    },
    "shared memory below NCCL's": facts(
        hosts=all_nodes({"gpus": (gpu(0, of=1),), "gpu_driver": "550.1"}),
        told=node2(shm_free_bytes=4 * NCCL_SEGMENT_BYTES - 1),
    ),
    "more ranks than cores": facts(FOUR[:1], each=17),
    "nodes of one machine": facts(each=5, hosts=all_nodes({"boot_id": "one"})),
    "ranks bound to a core of many": facts(told=all_nodes({"machine_cores": 64})),
    "ranks bound to half of the cores": facts(told=all_nodes({"machine_cores": 32})),
    "ranks bound to less than half": facts(told=all_nodes({"machine_cores": 33})),
    "a quota of 16": bound({"a": 16.0}),
    "a quota of 16.9": bound({"a": 16.9}),
    "a quota above what is bound": bound({"a": 20.0}, cores=16),
    **{f"two ranks with a quota of {cpus:g}": quota(cpus) for cpus in (1.0, 0.5, 2.0)},
    "a node with fewer cores": facts(hosts=node2(cores=((0,), (1,))), told=node2(machine_cores=2)),
    "other processes": prepared_at(
        "node2", FOUR_RANKS, load=Load(other_cores=3.2, by=(("java", 3.0), ("sshd", 0.01)))
    ),
}  # fmt: skip

# ---------------------------------------------------------------- GPUs

ONE_GPU = {"gpus": (gpu(0, of=1),)}
SILENT = {
    **dict.fromkeys((
        "is_persistent", "is_mig", "is_ecc", "uncorrected_errors", "is_repair_pending", "is_repair_failed",
        "pcie_generation", "pcie_generation_max", "pcie_generation_own", "pcie_width", "pcie_width_max",
        "sm_mhz_max", "application_sm_mhz", "default_sm_mhz", "power_limit_w", "default_power_limit_w",
    )),
    "compute_mode": "", "compute_capability": "",
}  # fmt: skip
PLANTED: tuple[dict[str, Any], ...] = (
    {"fabric": "in progress"}, {"fabric": "completed", "fabric_fault": "Unknown Error"},
    {"compute_mode": "Prohibited"}, {"is_repair_failed": True}, {"uncorrected_errors": 7},
    {"is_repair_pending": True}, {"pcie_width": 8}, {"pcie_width": 8, "pcie_width_max": 8},
    {"pcie_generation_max": 3}, {"acs_redirects": ("0000:3a:00.0",)}, {"processes": ("python3",)},
    {"compute_mode": "Exclusive_Process"}, {"is_mig": True}, {"application_sm_mhz": 1005},
    {"is_persistent": False}, {"sm_mhz_max": 1200}, {"is_ecc": False}, {"power_limit_w": 250.0}, SILENT,
)  # fmt: skip


def each_sees_one(found: Facts, **changes: Any) -> Facts:
    """Each rank sees its own GPU alone."""
    shown = []
    for number, one in enumerate(found.ranks):
        own = slice(number % 2, number % 2 + 1)
        driver = replace(one.driver, gpus=one.driver.gpus[own], **changes)
        shown.append(replace(one, host=replace(one.host, gpus=one.host.gpus[own]), driver=driver))
    return replace(found, ranks=tuple(shown))


def releases(torch: str | None, runs: str, **driver: Any) -> Facts:
    return gpu_facts(driver=all_nodes({"cuda": runs}) | driver, told=all_nodes({"built_for_cuda": torch}))


def direct(kernel: str, *, one: Mapping[str, Any] | None = None, **driver: Any) -> Facts:
    """Nodes with RDMA cards and this driver; `one` is node2's, among nodes that may use them."""
    drivers = all_nodes({"peer_memory": "nvidia_peermem"}) | node2(**one) if one else all_nodes(driver)
    return gpu_facts(driver=drivers, hosts=all_nodes({**CARDS["node1"], "kernel": kernel}))


def topology(peers: Callable[[int], Sequence[int] | None], **changes: Any) -> Facts:
    gpus = tuple(gpu(index, peers=peers(index), **changes) for index in range(4))
    return facts(each=4, hosts=all_nodes({"gpus": gpus, "gpu_driver": "550.1"}))


def own_uuids(*uuids: str) -> dict[str, Any]:
    return {node: {"gpus": (gpu(0, of=1, uuid=uuid),)} for node, uuid in zip(FOUR, uuids, strict=True)}


A40 = {"name": "NVIDIA A40", "sm_mhz_max": 1740, "power_limit_w": 300.0, "default_power_limit_w": 300.0}
CLOSED = all_nodes({"is_open": False})
GEFORCE = {place: {"name": "NVIDIA GeForce RTX 4090"} for place in EACH_GPU}
GPUS: dict[str, Facts] = {
    "sound GPUs": gpu_facts(),
    **{f"one GPU has {changes}": gpu_facts({("node3", 1): changes}) for changes in PLANTED},
    "NVML is silent on all": gpu_facts(dict.fromkeys(EACH_GPU, SILENT)),
    "a power limit of all": gpu_facts({each: {"power_limit_w": 250.0} for each in EACH_GPU}),
    "no redirects": gpu_facts({each: {"acs_redirects": ()} for each in EACH_GPU}),
    "GPUs that do not answer": facts(
        each=2, told=node2(driver=GpuHost(lost=("GPU 0: GPU is lost", "GPU 1: Unknown Error")))
    ),
    "other kinds are not compared": gpu_facts({(node, 1): A40 for node in FOUR}),
    "a fault that only one rank sees": each_sees_one(gpu_facts({("node2", 1): {"uncorrected_errors": 1}})),
    "ranks that see their own GPU": each_sees_one(gpu_facts()),
    "ranks that reach only their own GPU": each_sees_one(gpu_facts(), reachable=1),
    "all reach each other": topology(lambda _: None),
    "pairs reach each other": topology(lambda index: (index - index % 2, index - index % 2 + 1)),
    "GeForce reach no other": topology(lambda index: (index,), name="NVIDIA GeForce RTX 4090"),
    "a node without GPUs": facts(hosts=dict.fromkeys(FOUR[:3], ONE_GPU)),
    "a node with other GPUs": facts(
        hosts=all_nodes(ONE_GPU) | {"node4": {"gpus": (gpu(0, of=1, name="K80"),)}}
    ),
    "more ranks than GPUs": facts(each=2, hosts=all_nodes(ONE_GPU)),
    "nodes that share a GPU": facts(hosts=own_uuids("GPU-a", "GPU-a", "GPU-b", "GPU-c")),
    "a driver that does not work": facts(
        hosts=all_nodes({"gpu_driver": "unusable: Driver/library version mismatch"})
    ),
    "a driver that is too old": releases("13.0", "13.0", node2={"cuda": "12.2"}),
    **{
        f"torch for {torch} on {runs or 'a silent driver'}": releases(torch, runs)
        for torch, runs in (("12.6", "12.2"), ("11.8", "13.0"), ("13.0", ""), (None, "12.4"))
    },
    "torch without CUDA": gpu_facts(told={"node4": {"built_for_cuda": ""}}),
    "peermem": direct("5.4.0-150", peer_memory="nvidia_peermem", is_open=False),
    "DMA-BUF": direct("5.12.0-100-generic", is_open=True),
    "no trace of a way": direct("6.1", is_open=None),
    "closed modules without peermem": direct("6.8.0", one={"is_open": False}),
    "open modules on an old kernel": direct("5.4.0-150", one={"is_open": True}),
    "closed modules without cards": gpu_facts(driver=CLOSED),
    "closed modules on one node": gpu_facts(driver=CLOSED, hosts=CARDS, nodes=FOUR[:1]),
    "closed modules of GeForce": gpu_facts(GEFORCE, driver=CLOSED, hosts=CARDS),
}  # fmt: skip


def rated(*rates: DeviceRates) -> Facts:
    return replace(FOUR_RANKS, device_rates=rates)


def eight(slow: float, count: int = 8, at: int = 5, **changes: Any) -> Facts:
    return rated(
        *(on_gpu(n, of_sound=slow if n == at else 1.0, **changes if n == at else {}) for n in range(count))
    )


RATES: dict[str, Facts] = {
    "sound devices": eight(1.0),
    "a slow device of eight": eight(0.87),
    "a slow device of sixteen": eight(0.88, 16, 13),
    "the lowest within the spread": eight(0.93, 4, 2),
    "a slow transfer": eight(1.0, 2, 0, to_device_bytes_per_s=25e9),
    "a slow transfer and product": eight(0.5, 2, 0, to_device_bytes_per_s=25e9),
    "many slow devices": rated(*(on_gpu(n, of_sound=0.9 - n / 1000 if n < 16 else 1) for n in range(64))),
    "slow cores": rated(on_cpus(0), on_cpus(1, 76e9)),
    "a device that fails": rated(on_gpu(0), on_gpu(1), on_gpu(2, of_sound=0.8), failed_gpu(3)),
    "a device left out": rated(replace(on_gpu(0, left_out="torch is missing"), **dict.fromkeys(SOUND))),
}

# ---------------------------------------------------------------- names, clocks, networks, links


def resolving(asker: str, *addresses: str, found: Facts = FOUR_RANKS) -> Facts:
    return prepared_at(asker, found, resolved={**found.prepared[asker].resolved, "node2": addresses})


def horovod(words: Sequence[str] = (), **changes: str) -> Facts:
    of = {f"node{n}": f"10.10.0.{n}" for n in range(1, 5)} | changes
    told = {node: {"name_addresses": {"torch:horovod": address}} for node, address in of.items()}
    return facts(told=told, words=words)


def on_docker() -> Facts:
    nics = (nic("ib0", "10.10.0.2"), nic("eth0", "10.20.0.2"), nic("docker0", "172.17.0.1"))
    found = facts(hosts=node2(nics=nics))
    for node in FOUR:
        found = resolving(node, "172.17.0.1", found=found)
    return found


def ahead(seconds: float) -> Facts:
    """Node 3's clock is ahead."""

    def shifted(link: Link) -> Link:
        sign = (link.server == "node3") - (link.client == "node3")
        return replace(link, offset_s=(link.offset_s or 0.0) + sign * seconds)

    return replace(FOUR_RANKS, links=tuple(map(shifted, FOUR_RANKS.links)))


def along(*pairs: tuple[str, str]) -> Facts:
    kept = (link for link in reversed(FOUR_RANKS.links) if (link.client, link.server) in pairs)
    return replace(FOUR_RANKS, links=tuple(kept))


def failing(found: Facts, why: str, *pairs: tuple[str, str], **changes: Any) -> Facts:
    nothing = {"latency_s": None, "offset_s": None, "forth_bits_per_s": None, "back_bits_per_s": None, **changes}
    broken = (
        replace(link, error=why, **nothing)
        if (link.client, link.server) in pairs and link.network == "ib"
        else link
        for link in found.links
    )
    return replace(found, links=tuple(broken))


def cluster(count: int, speed: Callable[[str, str], float], **changes: Any) -> Facts:
    """A cluster on ib; `speed` is in Gb/s."""
    nodes = tuple(f"node{number}" for number in range(1, count + 1))
    made = linked(nodes, "ib", lambda a, b: speed(a, b) * GBIT)
    return replace(facts(nodes, words=("ib",)), links=made, **changes)


def late() -> Facts:
    found = cluster(5, lambda *_: 9.4)
    slow = (replace(link, latency_s=800e-6) if link.server == "node5" else link for link in found.links)
    return replace(found, links=tuple(slow))


def fast() -> Facts:
    found = cluster(4, lambda *_: 30)
    return replace(found, networks=tuple(replace(one, rate_bits_per_s=100 * GBIT) for one in found.networks))


def rdma() -> Facts:
    dead = replace(IB_CARD, name="mlx5_1", active=False)
    both = {"hcas": (IB_CARD, replace(dead, active=True))}
    known = {"ib": replace(FABRIC["ib"], hca="mlx5_0,mlx5_1")}
    return facts(hosts={"node1": both, "node2": both, "node3": {"hcas": (IB_CARD, dead)}}, fabric=known)


CHAIN = (("node1", "node2"), ("node2", "node3"), ("node3", "node4"))
DOWN = {"node3": {"nics": (nic("ib0", "10.10.0.3", up=False), nic("eth0", "10.20.0.3"))}}
AWAY = {"node2", "node4"}
NETWORKS: dict[str, Facts] = {
    "a name does not resolve": resolving("node1"),
    "a name is loopback to itself": resolving("node2", "127.0.1.1"),
    "a name is loopback to another": resolving("node1", "127.0.1.1", "10.10.0.2"),
    "a name is another node's": resolving("node1", "10.10.0.3"),
    "a name is nobody's": resolving("node1", "192.168.7.7"),
    "a name on a network of its own": on_docker(),
    "a single node's name is loopback": prepared_at("node1", facts(FOUR[:1]), resolved={"node1": ("127.0.1.1",)}),
    "a single node's name is unknown": prepared_at("node1", facts(FOUR[:1]), resolved={"node1": ()}),
    "Horovod listens elsewhere": horovod(),
    "Horovod listens elsewhere, asked": horovod(("ib", "ethernet")),
    "Horovod listens nowhere": horovod(node3=""),
    "a clock ahead": ahead(0.2),
    "a clock behind": ahead(-3600.0),
    "clocks along a chain": along(*CHAIN),
    "a clock that no link reaches": along(*CHAIN[:2]),
    "a card that is down": facts(hosts=DOWN),
    "a card that is down, not asked for": facts(hosts=DOWN, fabric={}),
    "a network of the fabric file alone": facts(fabric=FABRIC | {"hsn": Entry(interface="hsn0")}),
    "no network in common": facts(
        hosts={name: {"nics": (nic("eth0", f"10.{n}.0.1"),)} for n, name in enumerate(FOUR)}, fabric={}
    ),
    "RDMA cards of the fabric file alone": rdma(),
    "packets of different size": facts(
        hosts=node2(nics=(nic("ib0", "10.10.0.2", mtu=9000), nic("eth0", "10.20.0.2")))
    ),
    "a pair that cannot connect": failing(FOUR_RANKS, "timed out", ("node1", "node3")),
    "a node that nobody reaches": failing(
        FOUR_RANKS, "No route to host", ("node1", "node3"), ("node2", "node3"), ("node3", "node4")
    ),
    "a node that some reach": failing(FOUR_RANKS, "timed out", ("node1", "node3"), ("node3", "node4")),
    "two dead nodes": failing(FOUR_RANKS, "timed out", *(p for p in combinations(FOUR, 2) if AWAY & {*p})),
    "nothing works": failing(FOUR_RANKS, "Connection refused", *combinations(FOUR, 2)),
    "large packets vanish": failing(FOUR_RANKS, "no data arrived", ("node1", "node2"), latency_s=20e-6),
    "two nodes without a link": failing(facts(PAIR), "timed out", ("node1", "node2")),
    "a node that cannot listen": prepared_at(
        "node2", FOUR_RANKS, refused={"ib": "Cannot assign requested address"}
    ),
    "no time for a pair": replace(FOUR_RANKS, left_out=(("ib", "node1", "node2"),)),
    "a slow sender": cluster(4, lambda a, _: 1.0 if a == "node2" else 9.4),
    "three slow nodes of sixteen": cluster(
        16, lambda a, b: 4.0 if {a, b} & {"node3", "node7", "node9"} else 9.4
    ),
    "a slow link of four": cluster(4, lambda a, b: 2.0 if {a, b} == {"node1", "node2"} else 9.4),
    "a slow link of eight": cluster(8, lambda a, b: 2.0 if {a, b} == {"node1", "node2"} else 9.4),
    "two nodes below the nominal rate": cluster(2, lambda *_: 0.94),
    "a flow that does not fill a fast link": fast(),
    "a node that answers late": late(),
}  # fmt: skip


def of_pods(make: Make, words: Sequence[str] = (), known: dict[str, Entry] | None = None) -> Facts:
    told = pods(make)
    resolved = {one.host.hostname: (one.host.nics[1].address,) for one in told}
    return replace(lead.find_networks(told, words, known or {}), prepared=prepared(told, resolved=resolved))


def dgx(**changes: Any) -> Make:
    """Node b's first card differs."""

    def make(name: str, number: int) -> HostInfo:
        one = clouds.dgx(name, number)
        return replace(one, hcas=(replace(one.hcas[0], **changes), *one.hcas[1:])) if name == "b" else one

    return make


def two_ports(name: str, number: int) -> HostInfo:
    two = [clouds.card("mlx4_0", f"ib{port - 1}", port=port) for port in (1, 2)]
    return clouds.machine(name, [f"ib0 10.0.0.{number}/24"], [], *two)


PODS: dict[str, Facts] = {
    "pods that are routed": of_pods(clouds.calico),
    "a card behind ib0 that is down": of_pods(dgx(active=False), ["ib0"]),
    "a card that a container was not given": of_pods(dgx(opens=False), ["ib0"]),
    **{
        f"the card {card}": of_pods(two_ports, ["ib"], {"ib": Entry(interface="ib0", hca=card)})
        for card in ("mlx4_0", "mlx4_0:2", "mlx4_0:3")
    },
}

# ---------------------------------------------------------------- all-reduce


def reduced(found: Facts = FOUR_RANKS, **changes: Any) -> Facts:
    fields: dict[str, Any] = {"network": "ib", "backend": "gloo", **changes}
    return replace(found, all_reduces=(AllReduce(**fields),))


def by_nccl(chosen: NcclChoice, cards: str = "") -> Facts:
    sound = facts(words=("ib",))
    (network,) = sound.networks
    places = {name: replace(place, hca=cards) for name, place in network.places.items()}
    hosts = replace(sound, networks=(replace(network, places=places),))
    return reduced(hosts, backend="nccl", everyone=timed(1e9), nccl=chosen)


def dealt() -> Facts:
    found = facts(PAIR, each=2, told=TORCH)
    return replace(found, ranks=(*found.ranks[::2], *found.ranks[1::2]))


IB = NcclChoice(
    network="IB",
    cards=("mlx5_0",),
    transports={"NET/IB": 4},
    gpu_direct=4,
    algorithms={"ring simple": 256_000_000},
)
SOCKET = NcclChoice(network="Socket", cards=("ib0",), transports={"NET/Socket": 4})
INSIDE = {name: timed(2e11 if name != "node3" else 1e10) for name in FOUR}
SLOW = facts(words=("ib",), links=linked(FOUR, "ib", lambda a, b: 0.94e9 if "node2" in (a, b) else 9.4e9))
ALL_REDUCES: dict[str, Facts] = {
    "its share of the link": reduced(everyone=timed(0.5e9)),
    "just above a third": reduced(everyone=timed(9.4e9 / 8 / 2.99)),
    "just below a third": reduced(everyone=timed(9.4e9 / 8 / 3.01)),
    "a slow link is its own fault": reduced(SLOW, everyone=timed(0.1e9)),
    "ranks dealt out over nodes": reduced(dealt(), everyone=timed(0.2e9)),
    "ranks next to each other": reduced(facts(PAIR, each=2, told=TORCH), everyone=timed(0.2e9)),
    "a node alone": reduced(facts(FOUR[:1], each=2), network="", backend="nccl", everyone=timed(2e11)),
    "NCCL failed": reduced(backend="nccl", error="node2 (rank 1): DistBackendError: NCCL error"),
    "Gloo failed": reduced(error="node2 (rank 1): RuntimeError: Connection closed"),
    "left out": reduced(network="", left_out="torch is missing in this environment on node1"),
    "slow inside a node": reduced(backend="nccl", everyone=timed(1e9), inside=INSIDE),
    "slow inside a node by Gloo": reduced(everyone=timed(1e9), inside=INSIDE),
    "RDMA": by_nccl(IB, "any"),
    "sockets beside cards": by_nccl(SOCKET, "any"),
    "sockets without cards": by_nccl(SOCKET),
}


def test_verdicts_and_the_table_to_hand_on() -> None:
    """A failure of Gloo advises no TORCH_DISTRIBUTED_DEBUG: DETAIL is an error in torch 2.13's DDP."""
    sound = {summary_line(one) for found in (FOUR_RANKS, GPUS["sound GPUs"]) for one in judge(found)}
    told: list[str] = []
    for name, found in (SOFTWARE | GPUS | RATES | NETWORKS | PODS | ALL_REDUCES).items():
        verdicts = judge(found)
        assert all(one.mend for one in verdicts if one.level != "ok"), name
        lines = [line for line in map(summary_line, verdicts) if line not in sound or "sound" in name]
        told += [f"## {name}", *lines, *handover(verdicts).splitlines()[2:], ""]
    check_golden("check-verdicts.txt", "\n".join(told))


def test_every_fault_and_every_difference_of_gpus_is_planted() -> None:
    text = (GOLDEN / "check-verdicts.txt").read_text()
    said = [*(fault.text for fault in FAULTS), *(f"GPUs of one kind differ in {like.what}" for like in ALIKE)]
    assert [one for one in said if f" {one}: " not in text] == []


# ---------------------------------------------------------------- on any cluster


def faults(found: Facts) -> list[tuple[str, str, str]]:
    return [(one.level, one.topic, one.text) for one in judge(found) if one.level != "ok"]


@pytest.mark.parametrize("count", [3, 4, 5, 8, 16])
@pytest.mark.parametrize("seed", range(5))
def test_the_node_whose_links_are_all_slow_is_named_alone(count: int, seed: int) -> None:
    draw = random.Random(seed)
    slow = f"node{draw.randint(1, count)}"
    found = cluster(count, lambda a, b: (0.94 if slow in (a, b) else 9.4) * draw.uniform(0.9, 1.1))
    ((level, topic, text),) = faults(found)
    assert (level, topic) == ("error", "bandwidth")
    assert text.startswith(f"ib: {slow} is slow: it sends ") and " and receives " in text


@pytest.mark.parametrize("seed", range(5))
def test_noise_blames_nobody(seed: int) -> None:
    draw = random.Random(seed)
    assert faults(cluster(8, lambda *_: 9.4 * draw.uniform(0.87, 1.06))) == []


def test_gpus_shown_to_one_rank_each_are_counted_together() -> None:
    sound = facts(each=2)
    shown = [replace(one.host, gpus=(gpu(0, of=1, uuid=f"GPU-{n}"),)) for n, one in enumerate(sound.ranks)]
    told = tuple(replace(one, host=seen) for one, seen in zip(sound.ranks, shown, strict=True))
    assert faults(replace(sound, ranks=told)) == []


def test_each_card_is_looked_at_once_however_many_nodes_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()

    def interface(text: str) -> IPv4Interface:
        read[text] += 1
        return IPv4Interface(text)

    found = facts(tuple(f"node{number}" for number in range(1, 17)), each=2)
    monkeypatch.setattr(host, "IPv4Interface", interface)
    (verdict,) = links.name_verdicts(found)
    assert verdict.level == "ok"
    assert read == {
        "127.0.0.1/255.0.0.0": 16,
        **{f"10.{net}.0.{number}/255.255.255.0": 1 for net in (10, 20) for number in range(1, 17)},
    }


def test_a_card_without_a_netmask_is_on_a_network_of_its_own() -> None:
    tunnel = nic("tun0", "10.30.0.1", netmask="")
    cards = (nic("ib0", "10.10.0.1"), nic("eth0", "10.20.0.1"), tunnel)
    assert [verdict.level for verdict in links.name_verdicts(facts(hosts={"node1": {"nics": cards}}))] == ["ok"]
    assert str(tunnel.subnet) == "10.30.0.1/32"
