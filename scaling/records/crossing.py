"""How many bytes one step of an exchange must send from node to node. Pure.

With S the bytes of the gradients, N ranks and all of a step's messages counted on all nodes:

    ring      each rank sends 2 (N - 1) / N x S to the next one; what crosses is sent by the last rank of each node
              (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009)
    servers   each rank sends S, spread evenly over the servers, and they send S back (Li et al., "Scaling
              distributed machine learning with the parameter server", 2014)
    inside    one process exchanges on one node: nothing crosses
    NCCL      orders nodes and not ranks, whatever their placement, and chooses by itself: in a network that
    reduces
              (CollNet, SHARP) each of M nodes sends S, in trees 2 (M - 1) S go over their edges, and in a ring
              2 M (N - 1) / N S (github.com/NVIDIA/nccl, src/graph/connect.cc; on two nodes it mostly takes trees:
              github.com/NVIDIA/nccl-tests/issues/196)

Gradients that are made smaller on their way send a part of that. Of each strategy that sends something else,
`Strategy.bytes_per_step` knows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.records.point import Pattern

# At least, at most.
Bounds = tuple[float, float]
# Of the gradients' bytes, what goes out of a rank and what comes back.
Parts = tuple[float, float]
WHOLE: Parts = (1.0, 1.0)


def bytes_per_step(
    pattern: Pattern,
    gradient_bytes: int,
    hosts: Sequence[str],
    server_hosts: Sequence[str],
    parts: Parts = WHOLE,
) -> Bounds | None:
    """Return what must cross nodes in one step; None where that is not known.

    `hosts[r]` is the host of rank r, in the order in which a ring goes, `server_hosts[i]` that of server i.
    """
    if pattern == "ring" and hosts:
        exactly = gradient_bytes * parts[0] * ring_crossings(hosts)
    elif pattern == "servers" and server_hosts:
        exactly = gradient_bytes * server_crossings(hosts, server_hosts, parts)
    elif pattern == "inside":
        exactly = 0.0
    else:
        return None
    return exactly, exactly


def ring_crossings(hosts: Sequence[str]) -> float:
    """Gradients' sizes that cross nodes in one all-reduce, in a ring in the order of ranks."""
    count = len(hosts)
    crossings = sum(host != hosts[(rank + 1) % count] for rank, host in enumerate(hosts))
    return crossings * 2 * (count - 1) / count


def server_crossings(hosts: Sequence[str], server_hosts: Sequence[str], parts: Parts = WHOLE) -> float:
    """Gradients' sizes that cross nodes on their way to the servers and, as parameters, back."""
    crossings = sum(at != host for host in hosts for at in server_hosts)
    return sum(parts) * crossings / len(server_hosts)


def nccl_bounds(gradient_bytes: float, hosts: Sequence[str]) -> Bounds:
    """What one all-reduce of NCCL sends from node to node, by the algorithm that sends least and the one that
    sends most."""
    nodes, ranks = len(set(hosts)), len(hosts)
    if nodes < 2:
        return 0.0, 0.0
    ways = (nodes, 2 * (nodes - 1), 2 * nodes * (ranks - 1) / ranks)
    return gradient_bytes * min(ways), gradient_bytes * max(ways)
