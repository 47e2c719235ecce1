"""How many bytes one step of an exchange, or one collective, must send between nodes.

S is the bytes of the gradients, N the number of ranks, M of nodes; messages of all nodes are added:

    ring      each rank sends 2 (N - 1) / N x S to the next; the last rank of each node sends to another node
              (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009)
    servers   each rank sends S, spread evenly over the servers, and they send S back (Li et al., "Scaling
              distributed machine learning with the parameter server", 2014)
    inside    one process exchanges on one node: 0
    NCCL      orders nodes, not ranks, and chooses the algorithm. All of them send M S in the network
              (CollNet, SHARP), 2 (M - 1) S in trees, 2 M (N - 1) / N S in a ring (github.com/NVIDIA/nccl,
              src/graph/connect.cc). Two nodes mostly use trees (github.com/NVIDIA/nccl-tests/issues/196)

`Strategy.bytes_per_step` replaces this for strategies that send other amounts.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.records.point import Pattern

# Least and most bytes.
Bounds = tuple[float, float]
# Fractions of the gradients' bytes: sent by a rank, returned to it.
Parts = tuple[float, float]
WHOLE: Parts = (1.0, 1.0)


def bytes_per_step(
    pattern: Pattern,
    gradient_bytes: int,
    hosts: Sequence[str],
    server_hosts: Sequence[str],
    parts: Parts = WHOLE,
) -> Bounds | None:
    """Return the bytes that must cross nodes in one step; None if unknown.
    `hosts[r]` is the host of rank r, in ring order; `server_hosts[i]` the host of server i."""
    if pattern == "ring" and hosts:
        exactly = gradient_bytes * parts[0] * ring_crossings(hosts)
    elif pattern == "servers" and server_hosts:
        crossings = sum(at != host for host in hosts for at in server_hosts)
        exactly = gradient_bytes * (sum(parts) * crossings / len(server_hosts))
    elif pattern == "inside":
        exactly = 0.0
    else:
        return None
    return exactly, exactly


def ring_crossings(hosts: Sequence[str]) -> float:
    """Return how many times S one ring all-reduce sends between nodes."""
    count = len(hosts)
    crossings = sum(host != hosts[(rank + 1) % count] for rank, host in enumerate(hosts))
    return crossings * 2 * (count - 1) / count


def nccl_bounds(gradient_bytes: float, hosts: Sequence[str]) -> Bounds:
    """Return the least and most bytes that one all-reduce of NCCL sends between nodes, over its algorithms."""
    nodes, ranks = len(set(hosts)), len(hosts)
    if nodes < 2:
        return 0.0, 0.0
    ways = (nodes, 2 * (nodes - 1), 2 * nodes * (ranks - 1) / ranks)
    return gradient_bytes * min(ways), gradient_bytes * max(ways)


# ---------------------------------------------------------------- collectives of torch.distributed and XLA
#
# S is here the bytes of the whole: the result of an all-gather, or the input of a reduce-scatter on each rank.
#
# Gloo (exact):
# * all-gather: a ring of ranks, (N - 1) / N S over each edge
# * all-reduce: twice that
# * reduce-scatter: a whole all-reduce, of which a rank keeps a part (github.com/pytorch/pytorch/issues/118911)
# * broadcast: a binomial tree (github.com/pytorch/gloo, gloo/broadcast.cc); the bytes depend on its root
#
# NCCL (bounds derived from its algorithms, not measured; github.com/NVIDIA/nccl, src/graph/tuning.cc):
# * all-gather, reduce-scatter: a ring, parallel trees of one rank per node (PAT), or a network that multicasts and
#   reduces (CollNet, SHARP)
# * broadcast: a ring, which leaves the root's node and comes back if the root is amid its node's ranks
# * A multicasting switch receives S, peers receive (M - 1) S, a ring crosses M times with (N - 1) / N S. A
#   reducing switch receives S from each node.

NOTHING: Bounds = (0.0, 0.0)


def total(*bounds: Bounds) -> Bounds:
    return sum(least for least, _ in bounds), sum(most for _, most in bounds)


def all_reduce(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """Return the bounds for gradients of `size_bytes`; `hosts[r]` is the host of the group's rank r."""
    if nccl:
        return nccl_bounds(size_bytes, hosts)
    exactly = size_bytes * ring_crossings(hosts)
    return exactly, exactly


def all_gather(size_bytes: float, hosts: Sequence[str], *, nccl: bool) -> Bounds:
    """Return the bounds for a result of `size_bytes` on every rank."""
    if not nccl:
        exactly = size_bytes * ring_crossings(hosts) / 2
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
