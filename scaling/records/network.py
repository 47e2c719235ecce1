"""A network as a sweep uses it: each host's place on it, and why it was taken."""

from __future__ import annotations

from scaling.records.point import Record

GBIT = 1e9
# The word of --interconnect for the fastest network that all hosts share.
AUTO = "auto"


class Place(Record, frozen=True, kw_only=True):
    """Where a host is on a network: its address and interface there, and the card that RDMA may take.

    hca: "mlx5_0", several with commas; "" for sockets alone; "any" where NCCL may choose for itself.
    """

    address: str
    interface: str
    hca: str = ""


# Of a host whose ranks meet on its loopback.
ALONE = Place(address="127.0.0.1", interface="lo")


class Network(Record, frozen=True, kw_only=True):
    """What a word of --interconnect was found to be: each host's place, and why this network.

    `rate_bits_per_s` is what one node's link carries, None where neither the kernel nor the fabric file knows;
    `subnet` is "" for one host alone, whose ranks meet on the loopback.
    """

    word: str
    why: str
    places: dict[str, Place]
    subnet: str = ""
    rate_bits_per_s: float | None = None


def describe(network: Network) -> str:
    """A network in words: `ib (ib0, 10.10.0.0/24, 100 Gb/s)`, or `ib0 (...): the fastest of 2 networks ...`."""
    interfaces = list(dict.fromkeys(place.interface for place in network.places.values()))
    cards = sorted({place.hca for place in network.places.values()} - {"", "any"})
    name = network.word
    if name == AUTO:
        name = interfaces.pop(0)
    parts = [*(nic for nic in interfaces if nic != name), network.subnet if network.subnet != name else ""]
    parts.append(f"{network.rate_bits_per_s / GBIT:g} Gb/s" if network.rate_bits_per_s else "")
    parts.append(f"RDMA by {', '.join(cards)}" if cards else "")
    details = ", ".join(filter(None, parts))
    why = f": {network.why}" if network.word == AUTO else ""
    return f"{name} ({details}){why}" if details else f"{name}{why}"
