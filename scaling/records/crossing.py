"""How many bytes one step of an exchange must send between nodes.

S is the bytes of the gradients, N the number of ranks; messages of all nodes are added:

    ring      each rank sends 2 (N - 1) / N x S to the next; the last rank of each node sends to another node
              (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009)
    servers   each rank sends S, spread evenly over the servers, and they send S back (Li et al., "Scaling
              distributed machine learning with the parameter server", 2014)
    inside    one process exchanges on one node: 0
    NCCL      orders nodes, not ranks, and chooses the algorithm. With M nodes all of them send M S in the network
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
