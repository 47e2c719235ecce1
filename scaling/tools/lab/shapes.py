"""The shape of a lab: flags of `up`, rates, and changes by `rate`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from ipaddress import IPv4Network

from msgspec.structs import replace

from scaling.errors import UsageError, near
from scaling.tools.lab.state import Lab, Nic

UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
LOWEST_BITS_PER_S, HIGHEST_BITS_PER_S = 1e4, 1e12
# Four nodes at 1 Gb/s kept 93 % in an all-reduce over Gloo, at 4 Gb/s 35 to 92 % with both cores busy (README.md).
CARRIED_BITS_PER_S_PER_CORE = 2e9
MOST_NODES, MOST_SLOTS, MOST_NICS = 64, 256, 8
# as in the studies; this machine cannot carry them, but emulated devices scale them down (README.md)
DEFAULT_NICS = ("ib0=100gbit,10.10.0.0/24", "eth0=10gbit,10.20.0.0/24")


def changed(lab: Lab, text: str) -> Lab:
    """Apply one word of `rate`: a network's declared rate, which resets its links' shares; one link's rate or
    share; or cards that go down or up."""
    target, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text}: must be CARD=RATE or NODE.CARD=RATE, with up or down or 10% for RATE")
    node, _, card = target.rpartition(".")
    if node and node not in lab.nodes:
        raise UsageError(f"{text}: lab {lab.name} has no node {node!r}; {near(node, lab.nodes)}")
    nic, links = lab.nic(card, text), links_of(lab, target)
    if value in ("up", "down"):
        others = tuple(link for link in lab.down if link not in links)
        return replace(lab, down=(*others, *links) if value == "down" else others)
    shares = {link: share for link, share in lab.links.items() if link not in links}
    if value.endswith("%"):
        share = _share(value, text, node)
    elif node:
        share = parse_rate(value, text) / nic.shaped_bits_per_s
    else:
        rate = parse_rate(value, text)
        renewed = replace(nic, rate_bits_per_s=rate, shaped_bits_per_s=rate)
        return replace(lab, nics=tuple(renewed if one is nic else one for one in lab.nics), links=shares)
    return replace(lab, links=shares if share == 1.0 else {**shares, target: share})


def links_of(lab: Lab, target: str) -> list[str]:
    """Return the links that a word is about: `node2.ib0`, or with `ib0` those of all nodes."""
    node, _, card = target.rpartition(".")
    return [f"{one}.{card}" for one in ([node] if node else lab.nodes)]


def _share(value: str, text: str, node: str) -> float:
    try:
        percent = float(value[:-1])
    except ValueError:
        percent = 0.0
    if not 0.01 <= percent <= 100 or not node:
        raise UsageError(f"{text}: a share is 0.01% to 100%, of one node's link; write for example node2.ib0=10%")
    return percent / 100


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


def shape(name: str, nodes: int, slots: int, nics: Sequence[str]) -> Lab:
    """Return the lab that the flags of `up` describe. Raises UsageError with the flag."""
    check_name(name)
    for flag, count, most in (("--nodes", nodes, MOST_NODES), ("--slots", slots, MOST_SLOTS)):
        if not 1 <= count <= most:
            raise UsageError(f"{flag} {count}: must be a number from 1 to {most}")
    if len(nics) > MOST_NICS:
        raise UsageError(f"--nic was given {len(nics)} times: a node has no more than {MOST_NICS} cards")
    found: list[Nic] = []
    for text in nics or DEFAULT_NICS:
        found.append(_nic(text, found, nodes))
    return Lab(name=name, nodes=tuple(f"node{one + 1}" for one in range(nodes)), slots=slots, nics=tuple(found))


def check_name(name: str) -> None:
    """Raise UsageError if a name cannot be a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
        raise UsageError(
            f"--name {name!r}: a lab's name is letters, digits, '_', '.', '-'; write for example lab2"
        )


def differences(lab: Lab, wanted: Lab) -> list[str]:
    """List differences like `--nodes 2 (asked for: --nodes 4)`."""
    has, asked = (
        (
            f"--nodes {len(one.nodes)}",
            f"--slots {one.slots}",
            " ".join(f"--nic {nic.name}={show_rate(nic.rate_bits_per_s)},{nic.subnet}" for nic in one.nics),
        )
        for one in (lab, wanted)
    )
    return [f"{one} (asked for: {other})" for one, other in zip(has, asked, strict=True) if one != other]


def _nic(text: str, others: Sequence[Nic], nodes: int) -> Nic:
    """Parse NAME=RATE[,SUBNET]. Default subnets are 10.10.0.0/24, 10.20.0.0/24, ..."""
    name, equals, rest = text.partition("=")
    if not equals:
        raise UsageError(f"--nic {text}: must be NAME=RATE[,SUBNET]; write for example ib0=10gbit,10.10.0.0/24")
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,14}", name) or name == "lo":
        raise UsageError(
            f"--nic {text}: {name!r} cannot name a card: 1 to 15 of a-z, 0-9, '_', '-', a letter first, not lo"
        )
    rate, comma, network = rest.partition(",")
    rate_bits_per_s = parse_rate(rate, f"--nic {text}")
    try:
        subnet = IPv4Network(network.strip() if comma else f"10.{10 * (len(others) + 1)}.0.0/24")
    except ValueError as error:
        raise UsageError(f"--nic {text}: not a subnet: {error}; write for example 10.10.0.0/24") from None
    if subnet.num_addresses - 2 < nodes:
        raise UsageError(f"--nic {name}: {subnet} has no addresses for {nodes} nodes; write a /24")
    if subnet.is_loopback or subnet.is_multicast or subnet.is_unspecified or subnet[0].is_reserved:
        raise UsageError(f"--nic {name}: {subnet} is not a subnet for hosts; write for example 10.10.0.0/24")
    for other in others:
        if other.name == name:
            raise UsageError(f"--nic {name} was given twice; name cards ib0, ib1, ...")
        if subnet.overlaps(IPv4Network(other.subnet)):
            raise UsageError(f"--nic {name}: {subnet} overlaps {other.subnet} of {other.name}")
    return Nic(name=name, subnet=str(subnet), rate_bits_per_s=rate_bits_per_s, shaped_bits_per_s=rate_bits_per_s)
