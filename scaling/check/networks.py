"""Which networks to measure, and who is on them. Pure.

A sweep refuses a network that a host lacks (`scaling.network`); the preflight measures between those that have it
and says who has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from scaling.check.facts import RankFacts
from scaling.errors import UsageError, near
from scaling.hosts import fabric
from scaling.hosts.fabric import Entry
from scaling.records import network
from scaling.records.host import HostInfo, Nic
from scaling.records.network import Network, Place

Cards = dict[str, Nic]  # by host name
AUTO = "auto"


class Found(NamedTuple):
    """The networks, and for each the hosts that are not on it, with the reason."""

    networks: tuple[Network, ...]
    absent: dict[str, dict[str, str]]


def find(ranks: Sequence[RankFacts], words: Sequence[str], known: Mapping[str, Entry]) -> Found:
    """The networks that `words` name (`--interconnect`: names of the fabric file, interfaces, subnets); without
    any, those of the fabric file; without that, all that at least two hosts share.

    Raises UsageError for a word that means no network of any host.
    """
    hosts = {rank.host.hostname: rank.host for rank in ranks}
    hardware = {(rank.host.hostname, name) for rank in ranks for name in rank.hardware}
    entries = _wanted(hosts, [word for word in words if word != AUTO], known)
    chosen = {word: _on(hosts, entry) for word, entry in entries.items()}
    for word, cards in chosen.items():
        if word in words and not cards:
            raise UsageError(f"--interconnect {word}: on no host; {near(word, _names(hosts, known))}")
    networks = [_network(word, entries[word], cards, hardware) for word, cards in chosen.items()]
    absent = {
        word: {name: _why_not(host, entries[word]) for name, host in hosts.items() if name not in cards}
        for word, cards in chosen.items()
    }
    return Found(tuple(networks), {word: missing for word, missing in absent.items() if missing})


def _wanted(hosts: Mapping[str, HostInfo], words: Sequence[str], known: Mapping[str, Entry]) -> dict[str, Entry]:
    if words:
        return {word: known.get(word) or _described(word) for word in words}
    return dict(known) or _shared(hosts)


def _described(word: str) -> Entry:
    if "/" in word:
        return Entry(subnet=str(fabric.subnet(word, "--interconnect")))
    return Entry(interface=word)


def _names(hosts: Mapping[str, HostInfo], known: Mapping[str, Entry]) -> list[str]:
    return [*known, *dict.fromkeys(nic.name for host in hosts.values() for nic in _usable(host))]


# ---------------------------------------------------------------- without any word


def _shared(hosts: Mapping[str, HostInfo]) -> dict[str, Entry]:
    """Every subnet that two hosts or more share, by the interface's name where it is one everywhere."""
    subnets: dict[IPv4Network, Cards] = {}
    for name, host in hosts.items():
        for nic in _usable(host):
            subnets.setdefault(nic.subnet, {}).setdefault(name, nic)
    found: dict[str, Entry] = {}
    for subnet, cards in subnets.items():
        if len(cards) > 1 and _reaches(cards):
            names = {nic.name for nic in cards.values()}
            word = names.pop() if len(names) == 1 else str(subnet)
            found[str(subnet) if word in found else word] = Entry(subnet=str(subnet))
    return found


def _reaches(cards: Cards) -> bool:
    """Not a bridge of virtual machines or containers, which has the same address on every host."""
    addresses = [nic.address for nic in cards.values()]
    return len(set(addresses)) == len(addresses)


# ---------------------------------------------------------------- one network


def _on(hosts: Mapping[str, HostInfo], entry: Entry) -> Cards:
    """The cards that an entry means; where these lie in several subnets, those of the largest."""
    subnets: dict[IPv4Network, Cards] = {}
    for name, host in hosts.items():
        for nic in _usable(host):
            if _is(nic, entry):
                subnets.setdefault(nic.subnet, {}).setdefault(name, nic)
    return max(subnets.values(), key=len, default={})


def _network(word: str, entry: Entry, cards: Cards, hardware: set[tuple[str, str]]) -> Network:
    speeds = [nic.speed_bits_per_s for name, nic in cards.items() if (name, nic.name) in hardware]
    known = [speed for speed in speeds if speed is not None]
    rate_bits_per_s = min(known) if known and len(known) == len(cards) else None
    why = "by the cards"
    if entry.rate_gbit is not None:
        rate_bits_per_s, why = entry.rate_gbit * network.GBIT, "by the fabric file"
    return Network(
        word=word,
        why=why if rate_bits_per_s else "of unknown speed",
        places={
            name: Place(address=nic.address, interface=nic.name, hca=entry.hca) for name, nic in cards.items()
        },
        subnet=next((str(nic.subnet) for nic in cards.values()), entry.subnet),
        rate_bits_per_s=rate_bits_per_s,
    )


def _why_not(host: HostInfo, entry: Entry) -> str:
    """Why a host is not on a network."""
    wanted = entry.interface or entry.subnet
    for nic in host.nics:
        if _is(nic, entry):
            return f"{nic.name} has {nic.address}, another subnet" if nic.up else f"{nic.name} is down"
    return f"{entry.interface} has no IPv4 address, or is not there" if entry.interface else f"no card in {wanted}"


def _is(nic: Nic, entry: Entry) -> bool:
    inside = not entry.subnet or IPv4Address(nic.address) in IPv4Network(entry.subnet)
    return inside and entry.interface in ("", nic.name)


def _usable(host: HostInfo) -> list[Nic]:
    return [nic for nic in host.nics if nic.up and nic.name != "lo"]
