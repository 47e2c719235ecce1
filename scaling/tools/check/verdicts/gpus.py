"""The GPUs of the nodes: number, kind, and how they reach each other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from scaling.records.host import Gpu
from scaling.tools.check.facts import Facts, RankFacts, Verdict
from scaling.tools.check.verdicts.words import grouped, some

Gpus = Mapping[str, tuple[Gpu, ...]]  # by node


def gpus(facts: Facts) -> Iterator[Verdict]:
    """All that is said about GPUs."""
    found = {node: _every(facts.of(node)) for node in facts.nodes}
    drivers = {node: facts.host(node).gpu_driver for node in facts.nodes}
    broken = {node: text for node, text in drivers.items() if text.startswith("unusable")}
    if broken:
        text = f"the driver does not work: {grouped(broken)}"
        yield Verdict(level="error", topic="gpus", text=text, mend="nvidia-smi on that node shows the cause")
    if any(found.values()):
        yield _alike(found)
        yield from _shared(facts, found)
        yield from _walled(facts, found)
        yield from _peers(found)
    elif not broken:
        yield Verdict(level="ok", topic="gpus", text="none on any node")


def _every(ranks: tuple[RankFacts, ...]) -> tuple[Gpu, ...]:
    """A node's GPUs as the rank that sees most of them tells; a batch system may show each rank its own alone."""
    lists = sorted((rank.host.gpus for rank in ranks), key=len, reverse=True)
    found: dict[str, Gpu] = {}
    for gpu in (gpu for gpus in lists for gpu in gpus):
        found.setdefault(gpu.uuid, gpu)
    return tuple(found.values())


def _alike(found: Gpus) -> Verdict:
    kinds = {node: _kinds(every) for node, every in found.items()}
    if len(set(kinds.values())) == 1:
        text = f"{next(iter(kinds.values()))} on every node"
        if len({gpu.name for every in found.values() for gpu in every}) == 1:
            return Verdict(level="ok", topic="gpus", text=text)
        mend = "CUDA_VISIBLE_DEVICES with GPUs of one kind: the slowest holds up all, the first is the baseline"
        return Verdict(level="warning", topic="gpus", text=f"GPUs of several kinds: {text}", mend=mend)
    return Verdict(
        level="warning" if all(found.values()) else "error",
        topic="gpus",
        text=f"the nodes have different GPUs: {grouped(kinds)}",
        mend="equal nodes, or a CUDA_VISIBLE_DEVICES that makes them equal",
    )


def _kinds(every: tuple[Gpu, ...]) -> str:
    names = [gpu.name for gpu in every]
    return " + ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _shared(facts: Facts, found: Gpus) -> Iterator[Verdict]:
    ranks = {node: len(facts.of(node)) for node in found}
    crowded = {node: f"{ranks[node]} ranks on {len(every)}" for node, every in found.items() if every}
    crowded = {node: text for node, text in crowded.items() if ranks[node] > len(found[node])}
    if crowded:
        text = f"ranks share GPUs: {grouped(crowded)}"
        yield Verdict(
            level="warning", topic="gpus", text=text, mend="one rank per GPU: -np and the hostfile's slots"
        )
    on: dict[str, list[str]] = {}
    for node, every in found.items():
        for gpu in every:
            on.setdefault(gpu.uuid, []).append(node)
    if same := dict.fromkeys(some(nodes) for uuid, nodes in on.items() if uuid and len(nodes) > 1):
        text = f"nodes share GPUs, so that rows on them are OVERSUBSCRIBED: {'; '.join(same)}"
        mend = "give each node or container GPUs of its own, or measure on one of them"
        yield Verdict(level="warning", topic="gpus", text=text, mend=mend)


def _walled(facts: Facts, found: Gpus) -> Iterator[Verdict]:
    """Ranks that a batch system lets reach one GPU each: those of others do not exist for them, and peer access
    between processes needs both (NVIDIA/nccl issue 1066, open-mpi/ompi issue 11949)."""
    walled = {
        node: f"{len(facts.of(node))} ranks"
        for node, every in found.items()
        if len(facts.of(node)) > 1 and all(0 < rank.driver.reachable < len(every) for rank in facts.of(node))
    }
    if walled:
        text = f"each rank reaches its own GPU alone; NCCL fails or copies through host memory: {grouped(walled)}"
        mend = "Slurm: --gpus-per-node N with --gpu-bind=none, not --gpus-per-task (cgroups hide the others)"
        yield Verdict(level="warning", topic="gpus", text=text, mend=mend)


def _peers(found: Gpus) -> Iterator[Verdict]:
    """Which GPUs of a node reach each other directly; unknown where no rank sees several. GeForce cards without
    NVLink have no peer access, and nothing is broken there."""
    several = {node: every for node, every in found.items() if len(every) > 1 and len(every[0].p2p) == len(every)}
    apart = {node: some(_strangers(every)) for node, every in several.items()}
    apart = {node: text for node, text in apart.items() if text}
    if apart and all("GeForce" in gpu.name for node in apart for gpu in several[node]):
        text = "no peer access between GeForce cards, as they are made: NCCL copies through host memory"
        yield Verdict(level="ok", topic="gpu topology", text=text)
    elif apart:
        yield Verdict(
            level="warning",
            topic="gpu topology",
            text=f"no peer access, so that NCCL copies through host memory: GPUs {grouped(apart)}",
            mend="nvidia-smi topo -m shows the wiring; PCIe ACS and the IOMMU off let peers reach each other",
        )
    elif several:
        links = sorted({link for every in several.values() for gpu in every for link in gpu.links} - {"self"})
        text = f"every GPU reaches every other one of its node ({', '.join(links)})"
        yield Verdict(level="ok", topic="gpu topology", text=text)


def _strangers(every: tuple[Gpu, ...]) -> list[str]:
    """Pairs without peer access, with how they are linked: `0-2 (SYS)`."""
    pairs = combinations(range(len(every)), 2)
    return [f"{a}-{b} ({every[a].links[b]})" for a, b in pairs if not every[a].p2p[b]]
