"""Verdicts on facts: `judge` and the checks of drivers, RDMA, all-reduces, software and limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from scaling import __version__, frameworks
from scaling.analysis.measured.traffic import nccl_text
from scaling.frameworks.cuda import OLDEST_DRIVER
from scaling.hosts.info import cores_of, granted_cpus
from scaling.records.host import HostInfo
from scaling.records.network import GBIT, Network
from scaling.records.run import ZEROMQ
from scaling.records.task import Timed
from scaling.text import counted
from scaling.tools.check.facts import (
    AllReduce,
    Facts,
    Level,
    Look,
    RankFacts,
    Verdict,
    error,
    grouped,
    odd,
    of_nodes,
    ok,
    size,
    some,
    warning,
)
from scaling.tools.check.verdicts import devices, links
from scaling.tools.check.verdicts.links import gbit, slow_nodes

# ---------------------------------------------------------------- gpu driver


# First Linux release whose DMA-BUF supports RDMA cards.
DMA_BUF_KERNEL = (5, 12)
FRAMEWORK = frameworks.of_preflight().name


def driver(facts: Facts) -> Iterator[Verdict]:
    ranks = {node: facts.of(node)[0] for node in facts.nodes if facts.of(node)[0].driver.gpus}
    cpu_only = {node: "no CUDA" for node, rank in ranks.items() if rank.built_for_cuda == ""}
    text, mend = f"{FRAMEWORK} is built without CUDA on nodes with GPUs:", "there: it fits driver and GPUs"
    yield from of_nodes("warning", "gpu driver", text, cpu_only, f"run ./launch/install {FRAMEWORK} {mend}")
    old = {node: why for node, rank in ranks.items() if (why := _too_old(rank))}
    major = max((_major(rank.built_for_cuda) for rank in ranks.values() if rank.built_for_cuda), default=0)
    mend = (
        f"install driver {OLDEST_DRIVER.get(major, 'that CUDA release')} or newer, or {FRAMEWORK} for "
        f"the older CUDA: ./launch/install --cuda 12 {FRAMEWORK}"
    )
    yield from of_nodes("error", "gpu driver", f"too old for {FRAMEWORK}:", old, mend)
    if not cpu_only and not old and any(rank.driver.cuda for rank in ranks.values()):
        known = {node: f"{rank.host.gpu_driver}, CUDA {rank.driver.cuda}" for node, rank in ranks.items()}
        yield ok("gpu driver", grouped(known))


def _too_old(rank: RankFacts) -> str:
    wanted, runs = rank.built_for_cuda or "", rank.driver.cuda
    if not wanted or not runs or _major(wanted) <= _major(runs):
        return ""
    return f"{FRAMEWORK} needs CUDA {wanted}, driver {rank.host.gpu_driver} supports {runs}"


def _major(release: str) -> int:
    return int(release.partition(".")[0])


# ---------------------------------------------------------------- GPUDirect RDMA


def direct(facts: Facts) -> Iterator[Verdict]:
    """Check GPUDirect RDMA, which GeForce cards lack (docs.nvidia.com/cuda/gpudirect-rdma: Tesla and Quadro)."""
    if len(facts.nodes) < 2:
        return
    ranks = {node: facts.of(node)[0] for node in facts.nodes}
    ways = {
        node: _way(rank)
        for node, rank in ranks.items()
        if any("GeForce" not in gpu.name for gpu in rank.driver.gpus)
        and any(card.active for card in rank.host.hcas)
    }
    text = "RDMA cards cannot reach the GPUs, so NCCL copies through host memory:"
    mend = (
        "modprobe nvidia_peermem (part of the driver, needs the RDMA stack at its installation), or the "
        "driver's open kernel modules on Linux 5.12 or newer"
    )
    yield from of_nodes("warning", "gpu direct", text, {node: why for node, (_, why) in ways.items()}, mend)
    if ways and all(way for way, _ in ways.values()):
        text = grouped({node: way for node, (way, _) in ways.items()})
        yield ok("gpu direct", f"RDMA cards can reach the GPUs: {text}")


def _way(rank: RankFacts) -> tuple[str, str]:
    """The RDMA path to GPU memory, or "" and why it is missing. Both "" if /proc and /sys show nothing."""
    if rank.driver.peer_memory:
        return rank.driver.peer_memory, ""
    if rank.driver.is_open is None:
        return "", ""
    kernel = tuple(map(int, re.findall(r"\d+", rank.host.kernel)[:2]))
    if rank.driver.is_open and kernel >= DMA_BUF_KERNEL:
        return "DMA-BUF", ""
    closed = (
        f"the open kernel modules on Linux {rank.host.kernel}" if rank.driver.is_open else "closed kernel modules"
    )
    return "", f"no nvidia_peermem, {closed}"


# ---------------------------------------------------------------- all-reduce
# No busbw is right for every network. So a warning needs an all-reduce far below the measured links or other
# nodes.


TOPIC = "all-reduce"
# for the environment of the launch; without a file NCCL's output is lost
NCCL_LOG = "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%h.%p"
FAR_BELOW = 1 / 3  # of the slowest measured link
BITS = 8


def all_reduce(facts: Facts) -> Iterator[Verdict]:
    for one in facts.all_reduces:
        if one.left_out:
            yield ok(TOPIC, f"{_over(one)}not measured: {one.left_out}")
        elif one.error:
            look = (
                f"{NCCL_LOG} shows where it stopped" if one.backend == "nccl" else "look at that rank's node first"
            )
            text = f"{_over(one)}{FRAMEWORK}:{one.backend} failed: {one.error}"
            yield error(TOPIC, text, f"{look}; a sweep would fail too")
        elif one.everyone is not None:
            yield _judged(facts, one, one.everyone)
            yield from _without_rdma(facts, one)
            yield from _slow_nodes(one)


def _over(one: AllReduce) -> str:
    return f"{one.network}: " if one.network else ""


def _judged(facts: Facts, one: AllReduce, timed: Timed) -> Verdict:
    chosen = nccl_text(one.nccl) if one.nccl else ""
    by = f"{one.backend} ({chosen})" if chosen else one.backend
    said = f"{_over(one)}{counted(timed.ranks, 'rank')} by {by}, busbw {speed(timed.best_busbw_bytes_per_s)}"
    network = next((network for network in facts.networks if network.word == one.network), None)
    measured = facts.bandwidths(one.network)
    if network is None or not measured:
        return ok(TOPIC, said)
    reached, slowest = BITS * timed.best_busbw_bytes_per_s, min(measured.values())
    text = f"{said}, {_share(network, reached)}{100 * reached / slowest:.0f} % of its slowest measured link"
    if reached >= FAR_BELOW * slowest:
        return ok(TOPIC, text)
    text += f" ({gbit(slowest)} Gb/s)"
    return warning(TOPIC, text, _mend(facts, one))


def _without_rdma(facts: Facts, one: AllReduce) -> Iterator[Verdict]:
    """NCCL falls back to sockets silently if it cannot use the RDMA cards."""
    network = next((network for network in facts.networks if network.word == one.network), None)
    cards = network is not None and any(place.hca for place in network.places.values())
    if cards and one.nccl is not None and "NET/Socket" in one.nccl.transports:
        mend = f"{NCCL_LOG} shows why: NCCL needs libibverbs (rdma-core), locked memory, /dev/infiniband"
        yield warning(TOPIC, f"{_over(one)}NCCL used sockets although there are RDMA cards", mend)


def _share(network: Network, bits_per_s: float) -> str:
    rate = network.rate_bits_per_s
    return f"{100 * bits_per_s / rate:.0f} % of {network.word}'s {rate / GBIT:g} Gb/s, " if rate else ""


def speed(bytes_per_s: float) -> str:
    return f"{gbit(bytes_per_s)} GB/s ({gbit(BITS * bytes_per_s)} Gb/s)"


def _mend(facts: Facts, one: AllReduce) -> str:
    times = crossings(facts)
    if one.backend != "nccl" and times > 1:
        return f"neighbouring ranks on one node (mpirun --map-by slot): now each byte crosses a link {times} times"
    if one.backend == "nccl":
        return f"{NCCL_LOG} shows the transport (NET/IB, NET/Socket), GDRDMA and the rings that NCCL chose"
    return "Gloo computes on the ranks' cores: check their load and binding, then GLOO_SOCKET_IFNAME and mtu"


def crossings(facts: Facts) -> int:
    """Count how often a ring in rank order leaves the node that it leaves most often."""
    hosts = [rank.host.hostname for rank in facts.ranks]
    leaving = [here for here, there in pairwise([*hosts, hosts[0]]) if here != there]
    return max((leaving.count(host) for host in set(leaving)), default=0)


def _slow_nodes(one: AllReduce) -> Iterator[Verdict]:
    rates = {node: timed.best_busbw_bytes_per_s for node, timed in one.inside.items()}
    slow, usual = slow_nodes(rates)
    if slow and one.backend == "nccl":
        listed = some(f"{node} {speed(value)}" for node, value in slow.items())
        mend = "compare nvidia-smi topo -m and nvidia-smi nvlink -s with those of a healthy node"
        looks = (Look(node, "its GPUs alone", speed(value), speed(usual)) for node, value in slow.items())
        yield warning(TOPIC, f"slow inside {listed}; the others reach {speed(usual)}", mend, looks)


# ---------------------------------------------------------------- software


NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
# Differences in these are errors. NCCL refuses two versions ("Mismatched NCCL version detected").
ESSENTIAL = {"Python", "MPI", *(name for one in frameworks.LISTED for name in one.essential)}


def launch(facts: Facts) -> Iterator[Verdict]:
    counts = {node: f"{len(facts.of(node))} ranks" for node in facts.nodes}
    if len(set(counts.values())) == 1:
        each = counted(len(facts.of(facts.nodes[0])), "rank")
        yield ok("launch", f"{counted(len(counts), 'node')} with {each} each")
        return
    text = f"the nodes have different numbers of ranks: {grouped(counts)}"
    mend = "give every host the same slots in the hostfile, and -np a multiple of them"
    yield warning("launch", text, mend, odd(counts, "ranks"))


def code(facts: Facts) -> Iterator[Verdict]:
    hashes = {rank.host.hostname: rank.code for rank in facts.ranks}
    if len(set(hashes.values())) == 1:
        yield ok("code", f"scaling {__version__}, the same files on every node ({facts.ranks[0].code})")
        return
    text = f"the nodes run different files of scaling: {grouped(hashes)}"
    mend = "install the same version everywhere, or on a file system that all nodes share"
    yield error("code", text, mend, odd(hashes, "scaling"))


def versions(facts: Facts) -> Iterator[Verdict]:
    found = {node: _installed(facts.of(node)[0]) for node in facts.nodes}
    names = dict.fromkeys(name for one in found.values() for name in one)
    different = [name for name in names if len({one.get(name) for one in found.values()}) > 1]
    for name in different:
        of = {node: one.get(name, "missing") for node, one in found.items()}
        level: Level = "error" if name.partition(" (")[0] in ESSENTIAL else "warning"
        looks = tuple(odd(of, name))
        yield Verdict(level, "versions", f"{name}: {grouped(of)}", _same_version(name), looks)
    text = "two packages install libnccl.so.2, and frameworks load the last one:"
    mend = "use an environment for each framework, or frameworks built for one CUDA release"
    both = {node: _overwritten(facts.host(node)) for node in facts.nodes}
    yield from of_nodes("warning", "versions", text, both, mend)
    same = [f"{name} {found[facts.nodes[0]][name]}" for name in names if name not in different]
    where = "on every node" if len(found) > 1 else f"on {facts.nodes[0]}"
    yield ok("versions", f"{where}: {', '.join(same)}")


def _overwritten(host: HostInfo) -> str:
    """Packages of NCCL that share an environment, "" if none do."""
    others = [one.versions for one in host.interpreters]
    own = {name: text for name, text in host.versions.items() if all(one.get(name) != text for one in others)}
    every = ([f"{name} {of[name]}" for name in NCCL if name in of] for of in (own, *others))
    return next((" and ".join(names) for names in every if len(names) > 1), "")


def _installed(rank: RankFacts) -> dict[str, str]:
    host = rank.host
    driver = {"GPU driver": host.gpu_driver} if host.gpu_driver else {}
    packages = {name: text for name, text in host.versions.items() if name != "scaling"}
    library, _, release = rank.mpi.partition(" ")
    transport = {ZEROMQ: release} if library == ZEROMQ else {"MPI": rank.mpi}
    return {"Python": host.python, **transport, **driver, **packages}


def _same_version(name: str) -> str:
    if name in ("Python", "MPI", "GPU driver"):
        return f"install the same {name} on every node"
    if name == ZEROMQ:
        return "install the same pyzmq on every node"
    if "(" in name:
        return "run ./launch/install again on every node, or use one environment on a shared file system"
    return f"pip install {name}==VERSION on every node, or use one environment on a shared file system"


# ---------------------------------------------------------------- limits


# A buffer of NCCL between two ranks of a node takes 9,637,888 bytes of /dev/shm (NVIDIA/nccl issue 1518). A ring
# has two channels with one buffer in each direction at every rank.
NCCL_SEGMENT_BYTES = 9_637_888
NCCL_SEGMENTS_PER_RANK = 4
# Advice of NCCL's guide ("Shared memory") and MXNet (apache/mxnet issue 18224); data loaders use /dev/shm too.
SHM_ADVISED_BYTES = 1 << 30
# link_layer_show in the kernel: neither InfiniBand nor Ethernet
EFA = "Unknown"
BUSY_SHARE, BUSY_CORES = 0.1, 0.3
LARGER = "raise the quota: Kubernetes resources.limits.cpu, docker --cpus, systemd CPUQuota"


def memlock(facts: Facts) -> Iterator[Verdict]:
    """Check the limit of locked memory, which RDMA needs. InfiniBand and EFA fail without it (EFA:
    awslabs/awsome-distributed-ai issue 647). RoCE is optional on Ethernet cards, so it only warns. A card without
    a cable does not count."""
    cards = {node: [card for card in facts.host(node).hcas if card.active] for node in facts.nodes}
    limits = {
        node: [rank.memlock_bytes for rank in facts.of(node) if rank.memlock_bytes is not None]
        for node in facts.nodes
    }
    tight = {node: size(min(limits[node])) for node in facts.nodes if cards[node] and limits[node]}
    if not any(cards.values()):
        shown = grouped({node: size(min(own, default=None)) for node, own in limits.items()})
        yield ok("memlock", f"no active RDMA card, so no limit matters ({shown})")
    elif not tight:
        yield ok("memlock", "unlimited on every node with an RDMA card")
    is_fatal = any(card.link_layer in ("InfiniBand", EFA) for node in tight for card in cards[node])
    text = "limited on nodes with an RDMA card, which must lock its buffers:"
    mend = (
        "ulimit -l unlimited (limits.d: `* - memlock unlimited`; slurmd.service: LimitMEMLOCK=infinity; "
        "docker: --ulimit memlock=-1)"
    )
    yield from of_nodes("error" if is_fatal else "warning", "memlock", text, tight, mend)


def shared_memory(facts: Facts) -> Iterator[Verdict]:
    free = {node: facts.of(node)[0].shm_free_bytes or 0 for node in facts.nodes}
    needed = {
        node: len(facts.of(node)) * NCCL_SEGMENTS_PER_RANK * NCCL_SEGMENT_BYTES if facts.host(node).gpus else 0
        for node in facts.nodes
    }
    short = {node: size(free[node]) for node in facts.nodes if free[node] < needed[node]}
    scarce = {n: size(free[n]) for n in facts.nodes if free[n] < SHM_ADVISED_BYTES and n not in short}
    mend = "docker --shm-size=1g or --ipc=host; Kubernetes: an emptyDir with medium Memory at /dev/shm; "
    mend += "else mount -o remount,size=50% /dev/shm"
    after = f" free; NCCL's buffers take {size(max(needed.values()))} a node"
    yield from of_nodes("error", "shared memory", "/dev/shm has", short, mend, after)
    after = " free; NCCL's guide and data loaders want 1 GiB"
    yield from of_nodes("warning", "shared memory", "/dev/shm has", scarce, mend, after)
    if not short and not scarce:
        text = f"/dev/shm has at least {size(min(free.values()))} free; 1 GiB is advised"
        yield ok("shared memory", text)


def cores(facts: Facts) -> Iterator[Verdict]:
    crowded: dict[str, str] = {}
    starved, quota, bound, shares = crowded.copy(), crowded.copy(), crowded.copy(), crowded.copy()
    for nodes, ranks in _machines(facts):
        hosts = [rank.host for rank in ranks]
        usable, every, granted = len(cores_of(hosts)) / len(ranks), ranks[0].machine_cores, granted_cpus(hosts)
        share = min(usable, granted)
        shares[nodes] = f"{share:.3g}"
        if usable < 1:
            crowded[nodes] = f"{counted(len(ranks), 'rank')} on {counted(len(cores_of(hosts)), 'core')}"
        elif granted < 1:
            starved[nodes] = f"{granted:.3g} of a core"
        elif share * len(ranks) < every / 2:
            few = quota if granted < usable else bound
            few[nodes] = f"{share * len(ranks):.3g} of {counted(every, 'core')}"
    text, after = "a cgroup's CPU quota, shared by its ranks, grants each", "; on cpu such rows are OVERSUBSCRIBED"
    yield from of_nodes("warning", "cores", text, starved, f"{LARGER}; or start fewer ranks", after)
    mend = "start at most one rank per core; --device cuda or emulated needs less"
    yield from of_nodes("warning", "cores", "ranks share cores:", crowded, mend, after)
    text = "a cgroup's quota grants the ranks of a node the time of"
    yield from of_nodes("warning", "cores", text, quota, LARGER)
    mend = "mpirun --bind-to none, or launch/mpirun, which adds the flag of each MPI; Slurm: --cpus-per-task"
    yield from of_nodes("warning", "cores", "the launcher binds the ranks of a node to", bound, mend)
    if len(set(shares.values())) > 1:
        text = f"cores per rank differ, and every rank gets the smallest number: {grouped(shares)}"
        yield warning(
            "cores", text, "use equal nodes, or slots in proportion to cores", odd(shares, "cores per rank")
        )
    elif not (crowded or starved or quota or bound):
        yield ok("cores", f"{next(iter(shares.values()))} per rank on every node")


def _machines(facts: Facts) -> Iterator[tuple[str, list[RankFacts]]]:
    machines: dict[str, list[RankFacts]] = {}
    for rank in facts.ranks:
        machines.setdefault(rank.host.boot_id or rank.host.hostname, []).append(rank)
    for ranks in machines.values():
        nodes = list(dict.fromkeys(rank.host.hostname for rank in ranks))
        yield (nodes[0] if len(nodes) == 1 else f"{some(nodes)} (one machine)"), ranks


def load(facts: Facts) -> Iterator[Verdict]:
    busy = False
    for nodes, ranks in _machines(facts):
        seen, every = facts.prepared[ranks[0].host.hostname].load, ranks[0].machine_cores
        if seen.other_cores > max(BUSY_CORES, BUSY_SHARE * every):
            busy = True
            by = ", ".join(f"{name} {used:.1f}" for name, used in seen.by if used >= 0.05)
            used = f"{seen.other_cores:.1f} of {counted(every, 'core')} ({by or 'none that this rank can see'})"
            mend = "end them, or take nodes for this job alone (Slurm: --exclusive)"
            look = Look(nodes, "load of others", used, "")
            yield warning("load", f"{nodes}: other processes use {used}", mend, [look])
    if not busy:
        yield ok("load", "no other busy process")


# ---------------------------------------------------------------- verdicts

TOPICS: tuple[Callable[[Facts], Iterator[Verdict]], ...] = (
    launch, code, versions,
    cores, load, memlock, shared_memory,
    devices.gpus, driver, direct, devices.health, devices.device_rates,
    links.name_verdicts, links.clock_verdicts, links.membership, links.mtu, links.rdma,
    links.reached, links.latency, links.bandwidth,
    all_reduce,
)  # fmt: skip


def judge(facts: Facts) -> tuple[Verdict, ...]:
    return tuple(verdict for topic in TOPICS for verdict in topic(facts))
