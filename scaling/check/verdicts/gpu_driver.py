"""The NVIDIA driver: whether it runs the torch that is installed, and lets RDMA cards reach the GPUs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scaling.check.facts import Facts, RankFacts, Verdict
from scaling.check.verdicts.words import grouped

# The oldest driver that runs all releases of a major CUDA release (docs.nvidia.com/deploy/cuda-compatibility,
# "Minor Version Compatibility").
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
# Linux has what RDMA cards need of DMA-BUF since then.
DMA_BUF_KERNEL = (5, 12)


def driver(facts: Facts) -> Iterator[Verdict]:
    """The CUDA that torch was built with against the one that the driver runs."""
    ranks = {node: facts.of(node)[0] for node in facts.nodes if facts.of(node)[0].driver.gpus}
    built = {node: rank.torch_cuda for node, rank in ranks.items()}
    cpu_only = {node: "no CUDA" for node, release in built.items() if release == ""}
    if cpu_only:
        yield Verdict(
            level="warning",
            topic="gpu driver",
            text=f"torch is built without CUDA, and there are GPUs: {grouped(cpu_only)}",
            mend="./launch/install torch there, which takes the build for the driver and the GPUs",
        )
    old = {node: _too_old(rank) for node, rank in ranks.items()}
    old = {node: text for node, text in old.items() if text}
    if old:
        major = max(_major(release) for release in built.values() if release)
        yield Verdict(
            level="error",
            topic="gpu driver",
            text=f"too old for torch: {grouped(old)}",
            mend=f"a driver of {OLDEST_DRIVER.get(major, 'that CUDA release')} or newer, or torch for the older "
            "CUDA: ./launch/install --cuda 12 torch",
        )
    known = {node: f"{facts.host(node).gpu_driver}, CUDA {rank.driver.cuda}" for node, rank in ranks.items()}
    if known and not cpu_only and not old and any(rank.driver.cuda for rank in ranks.values()):
        yield Verdict(level="ok", topic="gpu driver", text=grouped(known))


def _too_old(rank: RankFacts) -> str:
    """`torch for CUDA 13.0, the driver 535.54 runs 12.2`, "" where it fits. Inside of a major release any fits."""
    wanted, runs = rank.torch_cuda or "", rank.driver.cuda
    if not wanted or not runs or _major(wanted) <= _major(runs):
        return ""
    return f"torch for CUDA {wanted}, driver {rank.host.gpu_driver} runs {runs}"


def _major(release: str) -> int:
    return int(release.partition(".")[0])


# ---------------------------------------------------------------- GPUDirect RDMA


def direct(facts: Facts) -> Iterator[Verdict]:
    """Whether RDMA cards read and write GPUs' memory themselves. GeForce cards do not offer it
    (docs.nvidia.com/cuda/gpudirect-rdma: Tesla and Quadro)."""
    if len(facts.nodes) < 2:
        return
    ways = {node: _way(facts.of(node)[0]) for node in facts.nodes if _has_both(facts.of(node)[0])}
    without = {node: why for node, (way, why) in ways.items() if not way and why}
    if without:
        yield Verdict(
            level="warning",
            topic="gpu direct",
            text=f"RDMA cards cannot reach the GPUs, so NCCL copies through host memory: {grouped(without)}",
            mend="modprobe nvidia_peermem (part of the driver, needs the RDMA stack at its installation), or the "
            "driver's open kernel modules on Linux 5.12 or newer",
        )
    elif ways and all(way for way, _ in ways.values()):
        text = grouped({node: way for node, (way, _) in ways.items()})
        yield Verdict(level="ok", topic="gpu direct", text=f"RDMA cards may reach the GPUs: {text}")


def _has_both(rank: RankFacts) -> bool:
    gpus = [gpu for gpu in rank.driver.gpus if "GeForce" not in gpu.name]
    return bool(gpus) and any(card.active for card in rank.host.hcas)


def _way(rank: RankFacts) -> tuple[str, str]:
    """The way for RDMA into GPUs' memory, and why there is none; "" and "" where /proc and /sys do not tell."""
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
