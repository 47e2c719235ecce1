"""Networks as a sweep uses them, and what NCCL chose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from scaling.records.point import Amount, Count, Index, Record

# ---------------------------------------------------------------- NCCL


class NcclChoice(Record, frozen=True, kw_only=True):
    """NCCL's log of one worker, or of several together.

    `network`: IB, Socket, or a plugin's name; `provider`: of libfabric under a plugin.
    `cards`: those that its connections use, else all that it listed.
    `transports`: connections by transport (NET/IB, P2P/CUMEM, SHM/direct).
    `gpu_direct`: connections over a network that access the GPU's memory directly.
    `algorithms`: bytes of all-reduces by algorithm and protocol ("ring simple"), of one rank of a point alone.
    `nvls`: whether NVLink SHARP was set up. `warnings`: the first ones.
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
        """How many connections use a network."""
        return sum(count for name, count in self.transports.items() if name.startswith(("NET/", "COLLNET/")))


# ---------------------------------------------------------------- network

GBIT = 1e9
AUTO = "auto"
ANY = "any"


class Place(Record, frozen=True, kw_only=True):
    """A host's place on a network: its address, its interface and its RDMA card.

    `hca`: "mlx5_0", several with commas, "mlx4_0:2" for one port; "" for sockets, "any" if NCCL chooses.
    `plugin`: NCCL reaches the card by a plugin (EFA, Slingshot), not by verbs. Without `hca`: it needs no card.
    """

    address: str
    interface: str
    hca: str = ""
    plugin: bool = False


ALONE = Place(address="127.0.0.1", interface="lo")


class Network(Record, frozen=True, kw_only=True):
    """The network that a word of --interconnect means; `why` is the reason.

    `rate_bits_per_s`: of one node's link; None if neither the kernel nor the fabric file knows.
    `subnet`: "" for one host, and for hosts without a common subnet: packets are then `routed`.
    `connections`: made between hosts as a proof; 0 before that and in older records.
    `cards`: RDMA cards or ports of all hosts that are up; `card_bits_per_s`: rate of the slowest, None if unknown.
    `plugins`: the files of NCCL's plugins, if these choose the network.
    `uncounted`: cards for NCCL whose drivers count no bytes: no receipt is possible.
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
    plugins: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()


def describe(network: Network, *, nccl: bool = True) -> str:
    """Describe a network: `ib (ib0, 10.10.0.0/24, 100 Gb/s)`; with `nccl` also NCCL's RDMA."""
    interfaces = list(dict.fromkeys(place.interface for place in network.places.values()))
    name = network.word
    if name == AUTO:
        name = interfaces.pop(0)
    parts = [*(nic for nic in interfaces if nic != name), network.subnet if network.subnet != name else ""]
    parts += [_routed(network), _rate(network.rate_bits_per_s), _nccl(network) if nccl else ""]
    if nccl and network.uncounted:
        parts.append(f"no byte counters: {spans(network.uncounted)}")
    details = ", ".join(filter(None, parts))
    why = f": {network.why}" if network.word == AUTO else ""
    return f"{name} ({details}){why}" if details else f"{name}{why}"


def _rate(bits_per_s: float | None) -> str:
    return f"{bits_per_s / GBIT:g} Gb/s" if bits_per_s else ""


def _routed(network: Network) -> str:
    if not network.routed:
        return ""
    return f"routed, proved by {network.connections} connections" if network.connections else "routed, not tried"


def _nccl(network: Network) -> str:
    wanted = {place.hca for place in network.places.values()} - {""}
    if network.plugins:
        return f"NCCL: its plugin {', '.join(network.plugins)} chooses"
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
    """Shorten runs of numbers in names: `mlx5_0..3, mlx5_5`."""
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
