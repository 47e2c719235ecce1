"""Which networks to measure, and who is on them. Pure.

A sweep refuses a network that a host lacks (`scaling.network`); the preflight measures between those that have it
and says who has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from msgspec.structs import replace

from scaling.check.facts import RankFacts
from scaling.errors import UsageError, near
from scaling.hosts import cards, fabric, routes
from scaling.hosts.fabric import Entry
from scaling.records import network
from scaling.records.host import HostInfo, Nic
from scaling.records.network import Network, Place

Nics = dict[str, Nic]  # by host name
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
    entries = _wanted(hosts, named(words), known)
    chosen = {word: _on(hosts, entry) for word, entry in entries.items()}
    for word, nics in chosen.items():
        if word in words and not nics:
            raise UsageError(f"--interconnect {word}: on no host; {near(word, _names(hosts, known))}")
    networks = [_network(word, entries[word], nics, hosts, hardware) for word, nics in chosen.items()]
    absent = {
        word: {name: _why_not(host, entries[word]) for name, host in hosts.items() if name not in nics}
        for word, nics in chosen.items()
    }
    return Found(tuple(networks), {word: missing for word, missing in absent.items() if missing})


def named(words: Sequence[str]) -> list[str]:
    """The words that name a network; `auto` leaves the choice."""
    return [word for word in words if word != AUTO]


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
    """Every subnet that two hosts or more share, by the interface's name where it is one everywhere; and the
    interfaces by which packets are routed between all, or more than share any."""
    subnets: dict[IPv4Network, Nics] = {}
    for name, host in hosts.items():
        for nic in _general(host):
            subnets.setdefault(nic.subnet, {}).setdefault(name, nic)
    reaching = {subnet: nics for subnet, nics in subnets.items() if len(nics) > 1 and _reaches(nics)}
    found: dict[str, Entry] = {}
    least = min(len(hosts), 1 + max([1, *map(len, reaching.values())]))
    common = [nic for nics in reaching.values() if len(nics) == len(hosts) for nic in nics.values()]
    for nic in _general(next(iter(hosts.values()))):
        if nic in common:
            continue
        routed = _on(hosts, Entry(interface=nic.name))
        if len(routed) >= least and len({one.subnet for one in routed.values()}) > 1 and _reaches(routed):
            found[nic.name] = Entry(interface=nic.name)
    for subnet, nics in reaching.items():
        names = {nic.name for nic in nics.values()}
        if names <= set(found):
            continue  # neighbours on one node of a network that is routed between all
        word = names.pop() if len(names) == 1 else str(subnet)
        found[str(subnet) if word in found else word] = Entry(subnet=str(subnet))
    return found


def _reaches(nics: Nics) -> bool:
    """Not a bridge of virtual machines or containers, which has the same address on every host."""
    addresses = [nic.address for nic in nics.values()]
    return len(set(addresses)) == len(addresses)


# ---------------------------------------------------------------- one network


def _on(hosts: Mapping[str, HostInfo], entry: Entry) -> Nics:
    """The interfaces that an entry means; where these lie in several subnets, those between which packets are
    routed, or those of the largest subnet if that has more."""
    subnets: dict[IPv4Network, Nics] = {}
    for name, host in hosts.items():
        for nic in _usable(host):
            if _is(nic, entry):
                subnets.setdefault(nic.subnet, {}).setdefault(name, nic)
    largest = max(subnets.values(), key=len, default={})
    groups = list(subnets.values())
    routed = _routed(hosts, groups) if len(groups) > 1 else {}
    return routed if len(routed) > len(largest) else largest


def _routed(hosts: Mapping[str, HostInfo], groups: Sequence[Nics]) -> Nics:
    """The first of these interfaces and those that packets to and from it take."""
    (first, nic), *_ = groups[0].items()
    found = {first: nic}
    for name, theirs in ((name, theirs) for nics in groups for name, theirs in nics.items()):
        ends = (hosts[first], nic, hosts[name], theirs)
        known = hosts[first].routes and hosts[name].routes
        if nic.subnet == theirs.subnet or (known and routes.both_ways(*ends)):
            found.setdefault(name, theirs)
    return {name: found[name] for name in hosts if name in found}


def _network(
    word: str, entry: Entry, nics: Nics, hosts: Mapping[str, HostInfo], hardware: set[tuple[str, str]]
) -> Network:
    speeds = [_rate(hosts[name], nic, (name, nic.name) in hardware) for name, nic in nics.items()]
    known = [speed for speed in speeds if speed is not None]
    rate_bits_per_s = min(known) if known and len(known) == len(nics) else None
    why = "by the cards"
    if entry.rate_gbit is not None:
        rate_bits_per_s, why = entry.rate_gbit * network.GBIT, "by the fabric file"
    subnets = {str(nic.subnet) for nic in nics.values()}
    return Network(
        word=word,
        why=why if rate_bits_per_s else "of unknown speed",
        places={
            name: Place(address=nic.address, interface=nic.name, hca=_cards(hosts[name], nic, entry))
            for name, nic in nics.items()
        },
        subnet=subnets.pop() if len(subnets) == 1 else entry.subnet,
        rate_bits_per_s=rate_bits_per_s,
        routed=len({nic.subnet for nic in nics.values()}) > 1,
    )


def _rate(host: HostInfo, nic: Nic, is_card: bool) -> float | None:
    """What is told of a veth's speed is not believed; a card's may be known by its RDMA port alone."""
    return cards.rate_bits_per_s(host, nic if is_card else replace(nic, speed_bits_per_s=None))


def _cards(host: HostInfo, nic: Nic, entry: Entry) -> str:
    """The cards of a host: those that the fabric file names, or else those behind an InfiniBand interface, up or
    not."""
    if entry.hca:
        return entry.cards(host.hostname) or ""
    return ",".join(cards.named(host, cards.behind(host, nic.name)))


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


def _general(host: HostInfo) -> list[Nic]:
    """Those that a sweep takes without being told to: not a service processor's, whose address is link-local."""
    return [nic for nic in _usable(host) if not nic.address.startswith("169.254.")]
