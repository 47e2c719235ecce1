"""Which interface leads to an address: the kernel's main routing table, and the longest prefix that fits.

    /proc/net/route     a route per line, addresses in hexadecimal (linux/net/ipv4/fib_trie.c, fib_route_seq_show)

Rules that look at more than the destination (`ip rule`) are not seen here: that packets go this way is proved by
connecting (`hosts/reach.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from scaling.records.host import HostInfo, Nic, Route

ROOT = Path("/")
FIELDS = 8  # Iface Destination Gateway Flags RefCnt Use Metric Mask, and more
# Of a host, the most general first: on a node of Kubernetes each other node may have one to its pods.
MOST = 256


def read(interfaces: Collection[str], root: Path = ROOT) -> tuple[Route, ...]:
    """The routes by these interfaces; none where the kernel does not tell.

    A node of Kubernetes has a route to each of its pods, by interfaces without an address: nobody else goes there.
    """
    # Netlink tells the same, but importing pyroute2 takes longer than all else that a rank tells of its host.
    lines: list[list[str]] = []
    with suppress(OSError):
        lines = [line.split() for line in (root / "proc/net/route").read_text().splitlines()[1:]]
    found = [_route(line) for line in lines if len(line) >= FIELDS and line[0] in interfaces]
    return tuple(sorted(found, key=lambda route: int(route.destination.partition("/")[2]))[:MOST])


def _route(line: list[str]) -> Route:
    """A line of the file."""
    mask = int(line[7], 16).bit_count()
    return Route(destination=f"{_address(line[1])}/{mask}", interface=line[0], metric=int(line[6]))


def _address(text: str) -> IPv4Address:
    """`0000F40A` as 10.244.0.0: the four bytes as this machine orders a number's."""
    return IPv4Address(struct.pack("=I", int(text, 16)))


# ---------------------------------------------------------------- pure


def leads(host: HostInfo, address: str) -> str:
    """The interface by which packets to an address leave a host; "" where no route fits, or none is known."""
    number = int(IPv4Address(address))
    fitting = [(*_shape(route.destination), route) for route in host.routes]
    found = [(mask, -route.metric, route) for first, mask, route in fitting if number & mask == first]
    return max(found, key=lambda one: one[:2])[2].interface if found else ""


@lru_cache(maxsize=4096)
def _shape(destination: str) -> tuple[int, int]:
    """First address and mask, as numbers."""
    network = IPv4Network(destination)
    return int(network.network_address), int(network.netmask)


def both_ways(one: HostInfo, nic: Nic, other: HostInfo, theirs: Nic) -> bool:
    """Whether two hosts reach each other by these interfaces, as their tables say; where a table is not known, an
    interface is taken to lead to those of its name."""
    if nic.address == theirs.address:
        return False
    there = leads(one, theirs.address) == nic.name if one.routes else nic.name == theirs.name
    back = leads(other, nic.address) == theirs.name if other.routes else nic.name == theirs.name
    return there and back
