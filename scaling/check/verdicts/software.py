"""Who was started, and whether all run the same software. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scaling import __version__
from scaling.check.facts import Facts, RankFacts, Verdict
from scaling.check.verdicts.words import grouped
from scaling.records.host import HostInfo

# NCCL's packages: each installs the same libnccl.so.2.
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
# Without these being equal, ranks cannot work together or do different work; other packages only warn. NCCL
# refuses to start between two versions of itself ("Mismatched NCCL version detected").
ESSENTIAL = ("Python", "MPI", "torch", "tensorflow", "mxnet", "horovod", *NCCL)


def launch(facts: Facts) -> Iterator[Verdict]:
    """Ranks per node."""
    counts = {node: len(facts.of(node)) for node in facts.nodes}
    if len(set(counts.values())) == 1:
        each = next(iter(counts.values()))
        many = "nodes" if len(counts) > 1 else "node"
        yield Verdict(
            level="ok", topic="launch", text=f"{len(counts)} {many} with {each} rank{'s'[: each > 1]} each"
        )
        return
    listed = grouped({node: f"{count} ranks" for node, count in counts.items()})
    yield Verdict(
        level="warning",
        topic="launch",
        text=f"the nodes have different numbers of ranks: {listed}",
        mend="the same slots for every host in the hostfile, and -np a multiple of them",
    )


def code(facts: Facts) -> Iterator[Verdict]:
    """Every rank runs the same files."""
    hashes = {rank.host.hostname: rank.code for rank in facts.ranks}
    if len(set(hashes.values())) == 1:
        text = f"scaling {__version__}, the same files on every node ({facts.ranks[0].code})"
        yield Verdict(level="ok", topic="code", text=text)
        return
    yield Verdict(
        level="error",
        topic="code",
        text=f"the nodes run different files of scaling: {grouped(hashes)}",
        mend="install the same version everywhere, or on a file system that all nodes share",
    )


def versions(facts: Facts) -> Iterator[Verdict]:
    """Every package, Python and MPI."""
    found = {node: _installed(facts.of(node)[0]) for node in facts.nodes}
    names = dict.fromkeys(name for one in found.values() for name in one)
    different = [name for name in names if len({one.get(name) for one in found.values()}) > 1]
    for name in different:
        essential = name.partition(" (")[0] in ESSENTIAL
        yield Verdict(
            level="error" if essential else "warning",
            topic="versions",
            text=f"{name}: {grouped({node: one.get(name, 'missing') for node, one in found.items()})}",
            mend=_same_version(name),
        )
    yield from _overwritten(facts)
    same = [f"{name} {found[facts.nodes[0]][name]}" for name in names if name not in different]
    where = "on every node" if len(found) > 1 else f"on {facts.nodes[0]}"
    yield Verdict(level="ok", topic="versions", text=f"{where}: {', '.join(same)}")


def _overwritten(facts: Facts) -> Iterator[Verdict]:
    """Two packages of one file: whichever was installed last is what every framework loads."""
    both = {}
    for node in facts.nodes:
        for versions in _environments(facts.of(node)[0].host):
            names = [name for name in NCCL if name in versions]
            if len(names) > 1:
                both[node] = " and ".join(f"{name} {versions[name]}" for name in names)
    if both:
        yield Verdict(
            level="warning",
            topic="versions",
            text=f"two packages install one libnccl.so.2, and frameworks load the last: {grouped(both)}",
            mend="an environment for each framework, or frameworks built for one CUDA release",
        )


def _environments(host: HostInfo) -> Iterator[Mapping[str, str]]:
    """The packages of each environment of a host: the agent's own, and those of other interpreters."""
    others = [one.versions for one in host.interpreters]
    yield {name: text for name, text in host.versions.items() if all(one.get(name) != text for one in others)}
    yield from others


def _installed(rank: RankFacts) -> dict[str, str]:
    host = rank.host
    driver = {"GPU driver": host.gpu_driver} if host.gpu_driver else {}
    packages = {name: text for name, text in host.versions.items() if name != "scaling"}
    return {"Python": host.python, "MPI": rank.mpi, **driver, **packages}


def _same_version(name: str) -> str:
    if name in ("Python", "MPI", "GPU driver"):
        return f"install the same {name} on every node"
    if "(" in name:
        return "./launch/install anew on every node, or one environment on a shared file system"
    return f"pip install {name}==VERSION on every node, or one environment on a shared file system"
