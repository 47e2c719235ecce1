"""A network as a sweep uses it: each host's place on it, and why it was taken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from scaling.records.point import Amount, Count, Index, Record

# ---------------------------------------------------------------- NCCL


class NcclChoice(Record, frozen=True, kw_only=True):
    """What NCCL's own log tells of one worker, or of several together.

    `network` is what it calls its network: IB, Socket, or a plugin's name; `provider` that of libfabric under a
    plugin. `cards` are those that its connections took, else all that it listed. `transports` counts connections
    by what carries them (NET/IB, P2P/CUMEM, SHM/direct), `gpu_direct` those over a network that read and write the
    GPU's memory. `algorithms` are the bytes of all-reduces by algorithm and protocol ("ring simple"), told by one
    rank of a point alone. `nvls`: NVLink SHARP was set up. `warnings` are its first ones.
    """

    version: str = ""
    network: str = ""
    provider: str = ""
    cards: tuple[str, ...] = ()
    transports: dict[str, Count] = {}
    gpu_direct: Count = 0
    algorithms: dict[str, Count] = {}
    nvls: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def over_network(self) -> int:
        """How many of its connections went over a network."""
        return sum(count for name, count in self.transports.items() if name.startswith(("NET/", "COLLNET/")))


# ---------------------------------------------------------------- network

GBIT = 1e9
# The word of --interconnect for the fastest network that all hosts share.
AUTO = "auto"
# Cards of a place among which NCCL may choose for itself.
ANY = "any"


class Place(Record, frozen=True, kw_only=True):
    """Where a host is on a network: its address and interface there, and the card that RDMA may take.

    hca: "mlx5_0", several with commas, "mlx4_0:2" for one port of several; "" for sockets alone; "any" where NCCL
    may choose for itself. `plugin`: NCCL reaches the card by a network plugin and not by verbs (EFA, Slingshot).
    """

    address: str
    interface: str
    hca: str = ""
    plugin: bool = False


# Of a host whose ranks meet on its loopback.
ALONE = Place(address="127.0.0.1", interface="lo")


class Network(Record, frozen=True, kw_only=True):
    """What a word of --interconnect was found to be: each host's place, and why this network.

    `rate_bits_per_s` is what one node's link carries, None where neither the kernel nor the fabric file knows;
    `subnet` is "" for one host alone, whose ranks meet on the loopback, and where hosts share none: then packets
    are `routed`. `connections` between hosts were made to prove that they meet, 0 before and in older records.
    `cards` are the RDMA cards (or ports) of all hosts that are up, `card_bits_per_s` is the slowest's rate, None
    where it is not known.
    """

    word: str
    why: str
    places: dict[str, Place]
    subnet: str = ""
    rate_bits_per_s: Amount | None = None
    routed: bool = False
    connections: Index = 0
    cards: tuple[str, ...] = ()
    card_bits_per_s: Amount | None = None


def describe(network: Network, *, nccl: bool = True) -> str:
    """A network in words: `ib (ib0, 10.10.0.0/24, 100 Gb/s)`, or `ib0 (...): the fastest of 2 networks ...`; with
    `nccl` the RDMA that NCCL does beside it."""
    interfaces = list(dict.fromkeys(place.interface for place in network.places.values()))
    name = network.word
    if name == AUTO:
        name = interfaces.pop(0)
    parts = [*(nic for nic in interfaces if nic != name), network.subnet if network.subnet != name else ""]
    parts += [_routed(network), _rate(network.rate_bits_per_s), _nccl(network) if nccl else ""]
    details = ", ".join(filter(None, parts))
    why = f": {network.why}" if network.word == AUTO else ""
    return f"{name} ({details}){why}" if details else f"{name}{why}"


def _rate(bits_per_s: float | None) -> str:
    return f"{bits_per_s / GBIT:g} Gb/s" if bits_per_s else ""


def _routed(network: Network) -> str:
    """How far it is known that hosts which share no subnet reach each other."""
    if not network.routed:
        return ""
    return f"routed, proved by {network.connections} connections" if network.connections else "routed, not tried"


def _nccl(network: Network) -> str:
    """What NCCL takes instead of the interface: `NCCL: RDMA by mlx5_0, 1 of 8 cards`."""
    wanted = {place.hca for place in network.places.values()} - {""}
    if not wanted:
        return ""
    how = "its plugin" if any(place.plugin for place in network.places.values()) else "RDMA"
    if ANY in wanted:
        each = f" at {_rate(network.card_bits_per_s)} each" if network.card_bits_per_s else ""
        return f"NCCL: {how}, its own choice of {spans(network.cards)}{each}" if network.cards else ""
    taken = dict.fromkeys(card for cards in sorted(wanted) for card in cards.split(","))
    few = max(len(cards.split(",")) for cards in wanted)
    most = len(network.cards)
    rest = f", {few} of {most} cards" if 0 < few < most and set(taken) <= set(network.cards) else ""
    return f"NCCL: {how} by {spans(taken)}{rest}"


def spans(names: Iterable[str]) -> str:
    """Names with runs of numbers in short: `mlx5_0..3, mlx5_5`."""
    return ", ".join(_runs(list(dict.fromkeys(names))))


def _runs(names: list[str]) -> Iterator[str]:
    parted = [(match[1], int(match[2])) for name in names if (match := re.fullmatch(r"(.*?)(0|[1-9]\d*)", name))]
    if len(parted) < len(names):
        yield from names
        return
    ordered = sorted(parted)
    for (stem, _), group in groupby(enumerate(ordered), key=lambda one: (one[1][0], one[1][1] - one[0])):
        numbers = [number for _, (_, number) in group]
        yield f"{stem}{numbers[0]}" + (f"..{numbers[-1]}" if len(numbers) > 1 else "")
