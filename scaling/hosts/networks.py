"""From a word of --interconnect to each host's address, interface and card. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network

from scaling.errors import LaunchError, UsageError, near
from scaling.hosts import fabric
from scaling.hosts.fabric import Entry
from scaling.records import network
from scaling.records.host import HostInfo, Nic
from scaling.records.network import ALONE, AUTO, Network, Place

LOOPBACK = "127.0.0.1"
Nics = Mapping[IPv4Network, Nic]


def choose(hosts: Iterable[HostInfo], word: str = AUTO, named: Mapping[str, Entry] | None = None) -> Network:
    """The network that `word` means on these hosts: `auto`, a name from the fabric file, whose entries are
    `named`, an interface, or a subnet.

    Raises UsageError where a host does not have it, LaunchError where hosts share no network at all.
    """
    by_name, entries = {host.hostname: host for host in hosts}, named or {}
    if word == AUTO:
        return _fastest(by_name, entries)
    entry = entries.get(word) or _described(word)
    nics = {name: _nic(host, word, entry, entries) for name, host in by_name.items()}
    if word not in entries:  # the file may know it by another name
        entry = _entry_of(next(iter(nics.values())), entries)
    subnets = {nic.subnet for nic in nics.values()}
    if len(subnets) > 1:
        listed = ", ".join(f"{name} {nic.name} {nic.address}" for name, nic in nics.items())
        raise UsageError(f"--interconnect {word}: the hosts are not in one subnet there: {listed}")
    return Network(
        word=word,
        why=f"--interconnect {word}",
        subnet=str(subnets.pop()),
        rate_bits_per_s=_rate(nics.values(), entry),
        places={
            name: Place(address=nic.address, interface=nic.name, hca=entry.hca or _own_cards(by_name[name], nic))
            for name, nic in nics.items()
        },
    )


# ---------------------------------------------------------------- by its name


def _described(word: str) -> Entry:
    """An interface or a subnet, as a fabric file would describe it."""
    if "/" in word:
        return Entry(subnet=str(fabric.subnet(word, "--interconnect")))
    return Entry(interface=word)


def _nic(host: HostInfo, word: str, entry: Entry, entries: Mapping[str, Entry]) -> Nic:
    """The interface of this host that an entry means."""
    usable = _usable(host)
    for nic in usable:
        if entry.interface in ("", nic.name) and _within(nic, entry):
            return nic
    if down := next((nic for nic in host.nics if nic.name == entry.interface and not nic.up), None):
        raise UsageError(
            f"--interconnect {word}: {down.name} is down on {host.hostname}; ip link set {down.name} up"
        )
    names = [*entries, *dict.fromkeys(nic.name for nic in usable)]
    listed = ", ".join(f"{nic.name} {nic.address}" for nic in usable) or "none with an IPv4 address"
    hint = f"; {near(word, names)}" if word not in entries and names else ""
    raise UsageError(f"--interconnect {word}: not on {host.hostname}, which has {listed}{hint}")


def _within(nic: Nic, entry: Entry) -> bool:
    return not entry.subnet or IPv4Address(nic.address) in IPv4Network(entry.subnet)


def _own_cards(host: HostInfo, nic: Nic) -> str:
    """The InfiniBand cards behind an IPoIB interface, by name. An Ethernet card does RDMA only where a fabric file
    says so: networks that are not set up for RoCE lose packets with it."""
    cards = (hca for hca in host.hcas if nic.name in hca.interfaces and hca.active)
    return ",".join(dict.fromkeys(hca.name for hca in cards if hca.link_layer == "InfiniBand"))


# ---------------------------------------------------------------- the fastest


def _fastest(hosts: Mapping[str, HostInfo], entries: Mapping[str, Entry]) -> Network:
    if len(hosts) == 1:
        return Network(
            word=AUTO, why="one host: its ranks meet on the loopback", places=dict.fromkeys(hosts, ALONE)
        )
    by_host: list[Nics] = [{nic.subnet: nic for nic in _usable(host)} for host in hosts.values()]
    shared = [subnet for subnet in set.intersection(*map(set, by_host)) if _reaches(by_host, subnet)]
    if not shared:
        raise LaunchError(f"the hosts {', '.join(sorted(hosts))} share no IPv4 network")
    rates = {
        subnet: _rate([nics[subnet] for nics in by_host], _entry_of(by_host[0][subnet], entries))
        for subnet in shared
    }
    best = max(shared, key=lambda subnet: (rates[subnet] or 0.0, str(subnet)))
    cards = "any" if all(any(hca.active for hca in host.hcas) for host in hosts.values()) else ""
    return Network(
        word=AUTO,
        why=_why(len(shared), rates[best]),
        subnet=str(best),
        rate_bits_per_s=rates[best],
        places={
            name: Place(address=nics[best].address, interface=nics[best].name, hca=cards)
            for name, nics in zip(hosts, by_host, strict=True)
        },
    )


def _why(shared: int, rate_bits_per_s: float | None) -> str:
    if shared == 1:
        return "the only network that all hosts share"
    if rate_bits_per_s is None:
        return f"one of {shared} networks that all hosts share, of unknown speed; --interconnect chooses"
    return f"the fastest of {shared} networks that all hosts share"


def _entry_of(nic: Nic, entries: Mapping[str, Entry]) -> Entry:
    """What the fabric file says of an interface."""
    fitting = (entry for entry in entries.values() if entry.interface in ("", nic.name) and _within(nic, entry))
    return next(fitting, Entry())


def _reaches(by_host: Sequence[Nics], subnet: IPv4Network) -> bool:
    """Whether hosts reach each other there: a bridge of virtual machines or containers, which has the same
    address on every host, leads nowhere."""
    addresses = [nics[subnet].address for nics in by_host]
    return len(set(addresses)) == len(addresses)


# ---------------------------------------------------------------- interfaces


def _usable(host: HostInfo) -> list[Nic]:
    return [nic for nic in host.nics if nic.up and not nic.address.startswith("127.")]


def _rate(nics: Iterable[Nic], entry: Entry) -> float | None:
    """The rate of the slowest host; what the fabric file says goes before what the kernel does."""
    if entry.rate_gbit is not None:
        return entry.rate_gbit * network.GBIT
    speeds = [nic.speed_bits_per_s for nic in nics]
    known = [speed for speed in speeds if speed is not None]
    return min(known) if len(known) == len(speeds) else None
