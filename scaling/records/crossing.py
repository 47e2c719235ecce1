"""How many bytes one step of an exchange must send from node to node. Pure.

With S the bytes of the gradients, N ranks and all of a step's messages counted on all nodes:

    ring      each rank sends 2 (N - 1) / N x S to the next one; what crosses is sent by the last rank of each node
              (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009)
    servers   each rank sends S, spread evenly over the servers, and they send S back (Li et al., "Scaling
              distributed machine learning with the parameter server", 2014)
    inside    one process exchanges on one node: nothing crosses

Of each strategy that sends something else, `Strategy.bytes_per_step` knows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.records.point import Pattern

# At least, at most.
Bounds = tuple[float, float]


def bytes_per_step(
    pattern: Pattern, gradient_bytes: int, hosts: Sequence[str], server_hosts: Sequence[str]
) -> Bounds | None:
    """Return what must cross nodes in one step; None where that is not known.

    `hosts[r]` is the host of rank r, `server_hosts[i]` that of server i.
    """
    if pattern == "ring" and hosts:
        exactly = gradient_bytes * ring_crossings(hosts)
    elif pattern == "servers" and server_hosts:
        exactly = gradient_bytes * server_crossings(hosts, server_hosts)
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


def server_crossings(hosts: Sequence[str], server_hosts: Sequence[str]) -> float:
    """Gradients' sizes that cross nodes on their way to the servers and, as parameters, back."""
    crossings = sum(at != host for host in hosts for at in server_hosts)
    return 2 * crossings / len(server_hosts)
