"""How many bytes one collective of torch.distributed sends from node to node, at least and at most. Pure.

With S the bytes of the whole (what an all-gather completes, what a reduce-scatter takes from each rank), N ranks
on M nodes, all messages of all nodes counted:

    Gloo    sends in a ring of ranks, exactly: (N - 1) / N S over each edge for an all-gather, twice that for an
            all-reduce, and as much for a reduce-scatter, which is a whole all-reduce of which each rank keeps a
            part (github.com/pytorch/pytorch/issues/118911). A broadcast goes down a binomial tree from its root
            (github.com/pytorch/gloo, gloo/broadcast.cc), so that what crosses depends on where the root is.
    NCCL    chooses. All-gather and reduce-scatter go in a ring, in parallel trees of one rank per node (PAT), or
            through a network that multicasts and reduces (CollNet, SHARP); a broadcast goes along a ring only
            (github.com/NVIDIA/nccl, src/graph/tuning.cc). Every node must receive what the others have: a switch
            that multicasts is sent S, peers (M - 1) S, and a ring crosses M times with (N - 1) / N S; a switch
            that reduces is sent S by each node. From a root amid the ranks of its node a ring leaves that node
            and comes back. Not measured: bounds, by what the algorithms are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from scaling.records import crossing
from scaling.records.crossing import Bounds

NOTHING: Bounds = (0.0, 0.0)


def total(*bounds: Bounds) -> Bounds:
    """Of several collectives."""
    return sum(least for least, _ in bounds), sum(most for _, most in bounds)


def all_reduce(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """Of gradients of `size_bytes`; `hosts[r]` is that of rank r of the group."""
    if nccl:
        return crossing.nccl_bounds(size_bytes, hosts)
    exactly = size_bytes * crossing.ring_crossings(hosts)
    return exactly, exactly


def all_gather(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """To a whole of `size_bytes` on every rank."""
    if not nccl:
        exactly = size_bytes * crossing.ring_crossings(hosts) / 2
        return exactly, exactly
    nodes, ranks = len(set(hosts)), len(hosts)
    return (size_bytes, size_bytes * nodes * (ranks - 1) / ranks) if nodes > 1 else NOTHING


def reduce_scatter(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """Of gradients of `size_bytes` on every rank."""
    if not nccl:
        return all_reduce(size_bytes, hosts, nccl=False)
    nodes = len(set(hosts))
    return (size_bytes * (nodes - 1), size_bytes * nodes) if nodes > 1 else NOTHING


def broadcast(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """Of `size_bytes` in all, from roots of which nothing is known."""
    nodes = len(set(hosts))
    if nodes < 2:
        return NOTHING
    if nccl:
        return size_bytes * (nodes - 1), size_bytes * nodes
    crossings = tree_crossings(hosts)
    return size_bytes * min(crossings), size_bytes * max(crossings)


def tree_crossings(hosts: Sequence[str]) -> list[int]:
    """For each root, how many edges of Gloo's binomial tree cross nodes.

    Ranks counted from the root, rank v has what rank v - 2^i sends, where 2^i is the largest power up to v: of
    each power a run of edges of that length, one after the other, so that a running sum tells of every root.
    """
    count = len(hosts)
    crossings = [0] * count
    length = 1
    while length < count:
        edges = min(length, count - length)
        crosses = [hosts[rank % count] != hosts[(rank + length) % count] for rank in range(count + edges)]
        summed = [0, *accumulate(crosses)]
        crossings = [known + summed[root + edges] - summed[root] for root, known in enumerate(crossings)]
        length *= 2
    return crossings
