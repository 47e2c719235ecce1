"""What a lab shall look like: its flags, checked, before anything is made."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from ipaddress import IPv4Network

from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.tools.lab import rates
from scaling.tools.lab.state import Holder, Lab, Nic

MOST_NODES, MOST_SLOTS, MOST_NICS = 64, 256, 8
# EDR InfiniBand and 10 Gb Ethernet, both by 200: 16 workers that exchange gradients on 2 cores get what such
# links give (README.md). Declare others for emulated devices: the links are then shaped to what a run needs.
# What the studies compared. This machine cannot carry it, but emulated devices scale it down.
DEFAULT_NICS = ("ib0=100gbit,10.10.0.0/24", "eth0=10gbit,10.20.0.0/24")


class Shape(Record, frozen=True, kw_only=True):
    """A lab that is asked for."""

    name: str
    nodes: int
    slots: int
    nics: tuple[Nic, ...]

    @property
    def node_names(self) -> tuple[str, ...]:
        """node1, node2, ..."""
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))

    def lab(self, holder: Holder) -> Lab:
        """Such a lab, once its namespaces are there."""
        return Lab(name=self.name, nodes=self.node_names, slots=self.slots, nics=self.nics, holder=holder)


def shape(name: str, nodes: int, slots: int, nics: Sequence[str]) -> Shape:
    """Read the flags of `up`. Raises UsageError that names the flag."""
    check_name(name)
    _check_count("--nodes", nodes, MOST_NODES)
    _check_count("--slots", slots, MOST_SLOTS)
    return Shape(name=name, nodes=nodes, slots=slots, nics=_nics(nics or DEFAULT_NICS, nodes))


def check_name(name: str) -> None:
    """Raises UsageError for a name that would be no good folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
        raise UsageError(
            f"--name {name!r}: a lab's name is letters, digits, '_', '.', '-'; write for example lab2"
        )


def differences(lab: Lab, wanted: Shape, changing: Collection[str] = ()) -> list[str]:
    """What of a lab is not as `wanted` has it, each `--nodes 2 (asked for: --nodes 4)`; the rates of cards that
    are `changing` may differ."""
    has, asked = (
        (f"--nodes {nodes}", f"--slots {slots}", " ".join(_flag(nic, nic.name not in changing) for nic in nics))
        for nodes, slots, nics in (
            (len(lab.nodes), lab.slots, lab.nics),
            (wanted.nodes, wanted.slots, wanted.nics),
        )
    )
    return [f"{one} (asked for: {other})" for one, other in zip(has, asked, strict=True) if one != other]


def _flag(nic: Nic, has_rate: bool) -> str:
    """The flag that makes such a card."""
    return f"--nic {nic.name}={rates.show(nic.rate_bits_per_s) if has_rate else 'RATE'},{nic.subnet}"


def _check_count(name: str, count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise UsageError(f"{name} {count}: must be a number from 1 to {most}")


def _nics(texts: Sequence[str], nodes: int) -> tuple[Nic, ...]:
    if len(texts) > MOST_NICS:
        raise UsageError(f"--nic was given {len(texts)} times: a node has no more than {MOST_NICS} cards")
    found: list[Nic] = []
    for text in texts:
        nic = _nic(text, position=len(found))
        _check_subnet(nic, found, nodes)
        found.append(nic)
    return tuple(found)


def _nic(text: str, position: int) -> Nic:
    """Read NAME=RATE[,SUBNET]; the subnet is 10.10.0.0/24 for the first card, 10.20.0.0/24 for the next, ..."""
    name, equals, rest = text.partition("=")
    if not equals:
        raise UsageError(f"--nic {text}: must be NAME=RATE[,SUBNET]; write for example ib0=10gbit,10.10.0.0/24")
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,14}", name) or name == "lo":
        raise UsageError(
            f"--nic {text}: {name!r} cannot name a card: 1 to 15 of a-z, 0-9, '_', '-', a letter first, not lo"
        )
    rate, comma, subnet = rest.partition(",")
    rate_bits_per_s = rates.parse(rate, f"--nic {text}")
    default = f"10.{10 * (position + 1)}.0.0/24"
    return Nic(
        name=name,
        subnet=_subnet(subnet if comma else default, f"--nic {text}"),
        rate_bits_per_s=rate_bits_per_s,
        shaped_bits_per_s=rate_bits_per_s,
    )


def _subnet(text: str, source: str) -> str:
    try:
        return str(IPv4Network(text.strip()))
    except ValueError as error:
        raise UsageError(f"{source}: no subnet: {error}; write for example 10.10.0.0/24") from None


def _check_subnet(nic: Nic, others: Sequence[Nic], nodes: int) -> None:
    subnet = IPv4Network(nic.subnet)
    if subnet.num_addresses - 2 < nodes:
        raise UsageError(f"--nic {nic.name}: {nic.subnet} has no addresses for {nodes} nodes; write a /24")
    if subnet.is_loopback or subnet.is_multicast or subnet.is_unspecified or subnet[0].is_reserved:
        raise UsageError(f"--nic {nic.name}: {nic.subnet} is no subnet for hosts; write for example 10.10.0.0/24")
    for other in others:
        if other.name == nic.name:
            raise UsageError(f"--nic {nic.name} was given twice; name cards ib0, ib1, ...")
        if subnet.overlaps(IPv4Network(other.subnet)):
            raise UsageError(f"--nic {nic.name}: {nic.subnet} overlaps {other.subnet} of {other.name}")
