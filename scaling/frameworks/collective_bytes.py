"""Bytes that one collective of torch.distributed sends between nodes, at least and at most.

S is the bytes of the whole: the result of an all-gather, or the input of a reduce-scatter on each rank. There are
N ranks on M nodes. Messages of all nodes are counted.

Gloo (exact):
* all-gather: a ring of ranks, (N - 1) / N S over each edge
* all-reduce: twice that
* reduce-scatter: a whole all-reduce, of which a rank keeps a part (github.com/pytorch/pytorch/issues/118911)
* broadcast: a binomial tree (github.com/pytorch/gloo, gloo/broadcast.cc); the bytes depend on its root

NCCL (bounds derived from its algorithms, not measured; github.com/NVIDIA/nccl, src/graph/tuning.cc):
* all-gather, reduce-scatter: a ring, parallel trees of one rank per node (PAT), or a network that multicasts and
  reduces (CollNet, SHARP)
* broadcast: a ring, which leaves the root's node and comes back if the root is amid its node's ranks
* A multicasting switch receives S, peers receive (M - 1) S, a ring crosses M times with (N - 1) / N S. A reducing
  switch receives S from each node.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.records import crossing
from scaling.records.crossing import Bounds

NOTHING: Bounds = (0.0, 0.0)


def total(*bounds: Bounds) -> Bounds:
    return sum(least for least, _ in bounds), sum(most for _, most in bounds)


def all_reduce(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """Return the bounds for gradients of `size_bytes`; `hosts[r]` is the host of the group's rank r."""
    if nccl:
        return crossing.nccl_bounds(size_bytes, hosts)
    exactly = size_bytes * crossing.ring_crossings(hosts)
    return exactly, exactly


def all_gather(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """Return the bounds for a result of `size_bytes` on every rank."""
    if not nccl:
        exactly = size_bytes * crossing.ring_crossings(hosts) / 2
        return exactly, exactly
    nodes, ranks = len(set(hosts)), len(hosts)
    return (size_bytes, size_bytes * nodes * (ranks - 1) / ranks) if nodes > 1 else NOTHING


def reduce_scatter(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """Return the bounds for gradients of `size_bytes` on every rank."""
    if not nccl:
        return all_reduce(size_bytes, hosts, nccl=False)
    nodes = len(set(hosts))
    return (size_bytes * (nodes - 1), size_bytes * nodes) if nodes > 1 else NOTHING


def broadcast(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """Return the bounds for `size_bytes` in all, whatever the roots are."""
    nodes = len(set(hosts))
    if nodes < 2:
        return NOTHING
    if nccl:
        return size_bytes * (nodes - 1), size_bytes * nodes
    crossings = tree_crossings(hosts)
    return size_bytes * min(crossings), size_bytes * max(crossings)


def tree_crossings(hosts: Sequence[str]) -> list[int]:
    """Return, for each root, how many edges of Gloo's binomial tree cross nodes. Counted from the root, rank v
    receives from rank v - 2^i, with 2^i the largest power up to v."""
    count, twice = len(hosts), [*hosts, *hosts]
    edges = [(rank, rank - (1 << rank.bit_length() - 1)) for rank in range(1, count)]
    return [sum(twice[root + rank] != twice[root + source] for rank, source in edges) for root in range(count)]
