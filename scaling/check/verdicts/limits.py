"""What each host grants: locked memory, shared memory, cores, and what others leave of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scaling.check.facts import Facts, RankFacts, Verdict
from scaling.check.verdicts.words import grouped, size, some
from scaling.hosts.info import cores_of, granted_cpus

# A buffer of NCCL between two ranks of a node is 9,637,888 bytes of /dev/shm (NVIDIA/nccl issue 1518), and a ring
# has two channels with a buffer each way at every rank.
NCCL_SEGMENT_BYTES = 9_637_888
NCCL_SEGMENTS_PER_RANK = 4
# What NCCL's troubleshooting guide ("Shared memory") and MXNet (apache/mxnet issue 18224) advise for containers;
# data loaders of torch and MXNet with worker processes hand their batches over through it too.
SHM_ADVISED_BYTES = 1 << 30
# What the kernel calls the link layer of a card that is neither InfiniBand nor Ethernet (its link_layer_show).
EFA = "Unknown"
BUSY_SHARE, BUSY_CORES = 0.1, 0.3
LARGER = "a larger quota: Kubernetes resources.limits.cpu, docker --cpus, systemd CPUQuota"


def memlock(facts: Facts) -> Iterator[Verdict]:
    """RDMA locks the memory that it reads and writes. Whoever has InfiniBand or EFA wants it used, and both fail
    without (of EFA: awslabs/awsome-distributed-ai issue 647); RoCE is what many Ethernet cards can do beside. A
    card without a cable locks nothing."""
    cards = {node: tuple(card for card in facts.host(node).hcas if card.active) for node in facts.nodes}
    cards = {node: active for node, active in cards.items() if active}
    limits = {node: _tightest(facts.of(node)) for node in facts.nodes}
    if not cards:
        text = f"no active RDMA card, so no limit matters ({grouped({n: size(one) for n, one in limits.items()})})"
        yield Verdict(level="ok", topic="memlock", text=text)
        return
    tight = {node: size(limits[node]) for node in cards if limits[node] is not None}
    if not tight:
        yield Verdict(level="ok", topic="memlock", text="unlimited wherever there is an RDMA card")
        return
    is_fatal = any(card.link_layer in ("InfiniBand", EFA) for node in tight for card in cards[node])
    yield Verdict(
        level="error" if is_fatal else "warning",
        topic="memlock",
        text=f"limited where there is an RDMA card, which must lock its buffers: {grouped(tight)}",
        mend="ulimit -l unlimited (limits.d: `* - memlock unlimited`; slurmd.service: LimitMEMLOCK=infinity; "
        "docker: --ulimit memlock=-1)",
    )


def _tightest(ranks: tuple[RankFacts, ...]) -> int | None:
    return min((rank.memlock_bytes for rank in ranks if rank.memlock_bytes is not None), default=None)


def shared_memory(facts: Facts) -> Iterator[Verdict]:
    """Free space of /dev/shm against what NCCL takes and loaders want."""
    free = {node: facts.of(node)[0].shm_free_bytes or 0 for node in facts.nodes}
    needed = {
        node: len(facts.of(node)) * NCCL_SEGMENTS_PER_RANK * NCCL_SEGMENT_BYTES if facts.host(node).gpus else 0
        for node in facts.nodes
    }
    short = {node: size(free[node]) for node in facts.nodes if free[node] < needed[node]}
    scarce = {n: size(free[n]) for n in facts.nodes if free[n] < SHM_ADVISED_BYTES and n not in short}
    mend = "docker --shm-size=1g or --ipc=host; Kubernetes: an emptyDir with medium Memory at /dev/shm; "
    mend += "else mount -o remount,size=50% /dev/shm"
    if short:
        text = f"/dev/shm has {grouped(short)} free; NCCL's buffers take {size(max(needed.values()))} a node"
        yield Verdict(level="error", topic="shared memory", text=text, mend=mend)
    if scarce:
        text = f"/dev/shm has {grouped(scarce)} free; NCCL's guide and data loaders want 1 GiB"
        yield Verdict(level="warning", topic="shared memory", text=text, mend=mend)
    if not short and not scarce:
        text = f"/dev/shm has at least {size(min(free.values()))} free; 1 GiB is advised"
        yield Verdict(level="ok", topic="shared memory", text=text)


# ---------------------------------------------------------------- processors


def cores(facts: Facts) -> Iterator[Verdict]:
    """Cores per rank, machine by machine: nodes with one boot id (a lab's, containers) share theirs."""
    crowded, starved, few, shares = {}, {}, {}, {}
    for nodes, ranks in _machines(facts):
        hosts = [rank.host for rank in ranks]
        usable, every, granted = len(cores_of(hosts)) / len(ranks), ranks[0].machine_cores, granted_cpus(hosts)
        share = min(usable, granted)
        shares[nodes] = f"{share:.3g}"
        if usable < 1:
            crowded[nodes] = f"{len(ranks)} ranks on {len(cores_of(hosts))} cores"
        elif granted < 1:
            starved[nodes] = f"{granted:.3g} of a core"
        elif share * len(ranks) < every / 2:
            few[nodes] = (granted < usable, f"{share * len(ranks):.3g} of {every} cores")
    if starved:
        text = f"a cgroup's CPU quota, shared by its ranks, grants each {grouped(starved)}; on cpu such rows are "
        yield Verdict(
            level="warning", topic="cores", text=f"{text}OVERSUBSCRIBED", mend=f"{LARGER}; or fewer ranks"
        )
    if crowded:
        text = f"ranks share cores: {grouped(crowded)}; on cpu such rows are OVERSUBSCRIBED"
        mend = "at most one rank per core; --device cuda or emulated needs less"
        yield Verdict(level="warning", topic="cores", text=text, mend=mend)
    yield from _few(few)
    if len(set(shares.values())) > 1:
        text = f"cores per rank differ, and every rank gets what the poorest has: {grouped(shares)}"
        mend = "equal nodes, or slots in proportion to cores"
        yield Verdict(level="warning", topic="cores", text=text, mend=mend)
    elif not crowded and not starved and not few:
        yield Verdict(level="ok", topic="cores", text=f"{next(iter(shares.values()))} per rank on every node")


def _few(found: Mapping[str, tuple[bool, str]]) -> Iterator[Verdict]:
    """Nodes whose ranks have few of the cores, and whether a quota is why."""
    granted = {nodes: text for nodes, (is_quota, text) in found.items() if is_quota}
    bound = {nodes: text for nodes, (is_quota, text) in found.items() if not is_quota}
    if granted:
        text = f"a cgroup's quota grants the ranks of a node the time of {grouped(granted)}"
        yield Verdict(level="warning", topic="cores", text=text, mend=LARGER)
    if bound:
        text = f"the launcher binds the ranks of a node to {grouped(bound)}"
        mend = "mpirun --bind-to none, or launch/mpirun, which knows each MPI's word; Slurm: --cpus-per-task"
        yield Verdict(level="warning", topic="cores", text=text, mend=mend)


def _machines(facts: Facts) -> Iterator[tuple[str, list[RankFacts]]]:
    """The machines, by the nodes on them, and all their ranks."""
    machines: dict[str, list[RankFacts]] = {}
    for rank in facts.ranks:
        machines.setdefault(rank.host.boot_id or rank.host.hostname, []).append(rank)
    for ranks in machines.values():
        nodes = list(dict.fromkeys(rank.host.hostname for rank in ranks))
        yield (nodes[0] if len(nodes) == 1 else f"{some(nodes)} (one machine)"), ranks


def load(facts: Facts) -> Iterator[Verdict]:
    """Who else computes, machine by machine: every node of one machine sees the same."""
    busy = False
    for nodes, ranks in _machines(facts):
        seen = facts.prepared[ranks[0].host.hostname].load
        if seen.other_cores <= max(BUSY_CORES, BUSY_SHARE * ranks[0].machine_cores):
            continue
        busy = True
        named = ", ".join(f"{name} {used:.1f}" for name, used in seen.by if used >= 0.05)
        yield Verdict(
            level="warning",
            topic="load",
            text=f"{nodes}: other processes use {seen.other_cores:.1f} of {ranks[0].machine_cores} cores"
            + (f" ({named})" if named else " (none that this rank can see)"),
            mend="end them, or take nodes for this job alone (Slurm: --exclusive)",
        )
    if not busy:
        yield Verdict(level="ok", topic="load", text="no other process of weight")
