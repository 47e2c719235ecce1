"""The shape of a lab: flags of `up`, rates, and changes by `rate`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from ipaddress import IPv4Network

from msgspec.structs import replace

from scaling.errors import UsageError, near
from scaling.records.point import Record
from scaling.tools.lab import wires
from scaling.tools.lab.state import Lab, Nic


class Change(Record, frozen=True, kw_only=True):
    """One word of `rate`, for a network or for one node's link. `value` is "up", "down" or "" for a rate or a
    share."""

    text: str
    nic: Nic
    node: str = ""
    value: str = ""
    rate_bits_per_s: float = 0.0
    share: float = 0.0


def parse(lab: Lab, text: str) -> Change:
    target, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text}: must be CARD=RATE or NODE.CARD=RATE, with up or down or 10% for RATE")
    node, _, card = target.rpartition(".")
    if node and node not in lab.nodes:
        raise UsageError(f"{text}: lab {lab.name} has no node {node!r}; {near(node, lab.nodes)}")
    nic = wires.nic_of(lab, card, text)
    if value in ("up", "down"):
        return Change(text=text, nic=nic, node=node, value=value)
    if value.endswith("%"):
        return Change(text=text, nic=nic, node=node, share=_share(value, text, node))
    return Change(text=text, nic=nic, node=node, rate_bits_per_s=parse_rate(value, text))


def _share(value: str, text: str, node: str) -> float:
    try:
        percent = float(value[:-1])
    except ValueError:
        percent = 0.0
    if not 0.01 <= percent <= 100 or not node:
        raise UsageError(f"{text}: a share is 0.01% to 100%, of one node's link; write for example node2.ib0=10%")
    return percent / 100


def nodes_of(lab: Lab, one: Change) -> tuple[str, ...]:
    return (one.node,) if one.node else lab.nodes


def rated(lab: Lab, one: Change) -> Lab:
    """Change a network's declared rate, which resets its links' shares, or one link's share."""
    if one.node:
        nic = lab.nic(one.nic.name) or one.nic
        share = one.share or one.rate_bits_per_s / nic.shaped_bits_per_s
        links = {**lab.links, f"{one.node}.{nic.name}": share}
        return replace(lab, links={link: part for link, part in links.items() if part != 1.0})
    rate = one.rate_bits_per_s
    changed = replace(one.nic, rate_bits_per_s=rate, shaped_bits_per_s=rate)
    nics = tuple(changed if nic.name == changed.name else nic for nic in lab.nics)
    links = {link: share for link, share in lab.links.items() if link.partition(".")[2] != one.nic.name}
    return replace(lab, nics=nics, links=links)


def switched(lab: Lab, one: Change) -> Lab:
    cards = [f"{node}.{one.nic.name}" for node in nodes_of(lab, one)]
    others = tuple(card for card in lab.down if card not in cards)
    return replace(lab, down=(*others, *cards) if one.value == "down" else others)


UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
LOWEST_BITS_PER_S, HIGHEST_BITS_PER_S = 1e4, 1e12
# Four nodes at 1 Gb/s kept 93 % in an all-reduce over Gloo, at 4 Gb/s 35 to 92 % with both cores busy (README.md).
CARRIED_BITS_PER_S_PER_CORE = 2e9


def parse_rate(text: str, source: str) -> float:
    """Parse `2.5gbit` as bits/s. Raises UsageError with `source`, the flag and its word."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]+)", text.strip().lower())
    if found is None or found[2] not in UNITS:
        said = f"{text!r} is not a rate" if text else "a rate is missing"
        raise UsageError(f"{source}: {said}; write for example 10gbit (units: {', '.join(UNITS)})")
    rate_bits_per_s = float(found[1]) * UNITS[found[2]]
    if not LOWEST_BITS_PER_S <= rate_bits_per_s <= HIGHEST_BITS_PER_S:
        lowest, highest = show_rate(LOWEST_BITS_PER_S), show_rate(HIGHEST_BITS_PER_S)
        raise UsageError(f"{source}: {text} is out of range; write a rate from {lowest} to {highest}")
    return rate_bits_per_s


def show_rate(rate_bits_per_s: float) -> str:
    """Format a rate in its largest unit, with 6 digits: `2.5gbit`. `parse_rate` reads it."""
    unit = max((name for name in UNITS if UNITS[name] <= rate_bits_per_s), key=UNITS.__getitem__, default="bit")
    return f"{rate_bits_per_s / UNITS[unit]:.6g}{unit}"


def too_fast(name: str, rate_bits_per_s: float, nodes: int, cores: int | None = None) -> str:
    """Warn if this machine cannot carry the rate between so many nodes; "" if it can."""
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    carried = CARRIED_BITS_PER_S_PER_CORE * cores / nodes
    if rate_bits_per_s <= carried:
        return ""
    return (
        f"{name}={show_rate(rate_bits_per_s)} is set, but {cores} cores carry only about {show_rate(carried)} "
        f"a node between {nodes} nodes: measure with --device emulated, which scales rates down, "
        "or set a lower rate"
    )


MOST_NODES, MOST_SLOTS, MOST_NICS = 64, 256, 8
# as in the studies; this machine cannot carry them, but emulated devices scale them down (README.md)
DEFAULT_NICS = ("ib0=100gbit,10.10.0.0/24", "eth0=10gbit,10.20.0.0/24")


def shape(name: str, nodes: int, slots: int, nics: Sequence[str]) -> Lab:
    """Return the lab that the flags of `up` describe. Raises UsageError with the flag."""
    check_name(name)
    _check_count("--nodes", nodes, MOST_NODES)
    _check_count("--slots", slots, MOST_SLOTS)
    names = tuple(f"node{number}" for number in range(1, nodes + 1))
    return Lab(name=name, nodes=names, slots=slots, nics=_nics(nics or DEFAULT_NICS, nodes))


def check_name(name: str) -> None:
    """Raise UsageError if a name cannot be a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
        raise UsageError(
            f"--name {name!r}: a lab's name is letters, digits, '_', '.', '-'; write for example lab2"
        )


def differences(lab: Lab, wanted: Lab, changing: Collection[str] = ()) -> list[str]:
    """List differences like `--nodes 2 (asked for: --nodes 4)`. Rates of cards in `changing` may differ."""
    has, asked = (
        (
            f"--nodes {len(one.nodes)}",
            f"--slots {one.slots}",
            " ".join(_flag(nic, nic.name not in changing) for nic in one.nics),
        )
        for one in (lab, wanted)
    )
    return [f"{one} (asked for: {other})" for one, other in zip(has, asked, strict=True) if one != other]


def _flag(nic: Nic, has_rate: bool) -> str:
    return f"--nic {nic.name}={show_rate(nic.rate_bits_per_s) if has_rate else 'RATE'},{nic.subnet}"


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
    """Parse NAME=RATE[,SUBNET]. Default subnets are 10.10.0.0/24, 10.20.0.0/24, ..."""
    name, equals, rest = text.partition("=")
    if not equals:
        raise UsageError(f"--nic {text}: must be NAME=RATE[,SUBNET]; write for example ib0=10gbit,10.10.0.0/24")
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,14}", name) or name == "lo":
        raise UsageError(
            f"--nic {text}: {name!r} cannot name a card: 1 to 15 of a-z, 0-9, '_', '-', a letter first, not lo"
        )
    rate, comma, subnet = rest.partition(",")
    rate_bits_per_s = parse_rate(rate, f"--nic {text}")
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
        raise UsageError(f"{source}: not a subnet: {error}; write for example 10.10.0.0/24") from None


def _check_subnet(nic: Nic, others: Sequence[Nic], nodes: int) -> None:
    subnet = IPv4Network(nic.subnet)
    if subnet.num_addresses - 2 < nodes:
        raise UsageError(f"--nic {nic.name}: {nic.subnet} has no addresses for {nodes} nodes; write a /24")
    if subnet.is_loopback or subnet.is_multicast or subnet.is_unspecified or subnet[0].is_reserved:
        raise UsageError(
            f"--nic {nic.name}: {nic.subnet} is not a subnet for hosts; write for example 10.10.0.0/24"
        )
    for other in others:
        if other.name == nic.name:
            raise UsageError(f"--nic {nic.name} was given twice; name cards ib0, ib1, ...")
        if subnet.overlaps(IPv4Network(other.subnet)):
            raise UsageError(f"--nic {nic.name}: {nic.subnet} overlaps {other.subnet} of {other.name}")
