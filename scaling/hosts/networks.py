"""From a word of --interconnect to each host's address, interface and card. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network

from scaling.errors import LaunchError, UsageError, near
from scaling.hosts import cards, fabric, routes
from scaling.hosts.fabric import Entry
from scaling.records import network
from scaling.records.host import HostInfo, Nic
from scaling.records.network import ALONE, ANY, AUTO, Network, Place

LOOPBACK = "127.0.0.1"
Hosts = Mapping[str, HostInfo]
Nics = Mapping[str, Nic]  # by host


def choose(hosts: Iterable[HostInfo], word: str = AUTO, named: Mapping[str, Entry] | None = None) -> Network:
    """The network that `word` means on these hosts: `auto`, a name from the fabric file, whose entries are
    `named`, an interface, or a subnet.

    Raises UsageError where a host does not have it, LaunchError where hosts share no network at all.
    """
    by_name, entries = {host.hostname: host for host in hosts}, named or {}
    if word == AUTO:
        return _fastest(by_name, entries)
    entry = entries.get(word) or _described(word)
    nics = _nics(by_name, {name: _fitting(host, word, entry, entries) for name, host in by_name.items()})
    if (same := _same_address(nics)) and not _is_one_machine(by_name[one] for one in same):
        raise UsageError(
            f"--interconnect {word}: {' and '.join(same)} have one address there, {nics[same[0]].address}, so it "
            "leads to no other host; name the network that does"
        )
    wide = entry.subnet
    if word not in entries:  # the file may know it by another name
        entry = _entry_of(next(iter(nics.values())), entries)
    hca = _hca(by_name, nics, entry, f"--interconnect {word}")
    return _network(word, f"--interconnect {word}", by_name, nics, entry=entry, hca=hca, wide=wide)


def _network(
    word: str, why: str, hosts: Hosts, nics: Nics, *, entry: Entry, hca: Mapping[str, str], wide: str = ""
) -> Network:
    """The network that these interfaces make; `wide` is the subnet that was asked for, which may be wider than
    their masks."""
    subnets = {nic.subnet for nic in nics.values()}
    found = cards.of_hosts(hosts.values())
    plugin = cards.need_plugin(hosts, hca)
    rates = [rate for rate in found.values() if rate]
    return Network(
        word=word,
        why=why,
        subnet=str(next(iter(subnets))) if len(subnets) == 1 else wide,
        rate_bits_per_s=_rate(hosts, nics, entry),
        places={
            name: Place(address=nic.address, interface=nic.name, hca=hca[name], plugin=plugin)
            for name, nic in nics.items()
        },
        routed=len(subnets) > 1,
        cards=tuple(found),
        card_bits_per_s=min(rates, default=None),
    )


# ---------------------------------------------------------------- by its name


def _described(word: str) -> Entry:
    """An interface or a subnet, as a fabric file would describe it."""
    if "/" in word:
        return Entry(subnet=str(fabric.subnet(word, "--interconnect")))
    return Entry(interface=word)


def _nics(hosts: Hosts, fitting: Mapping[str, Sequence[Nic]]) -> dict[str, Nic]:
    """Of each host the interface that packets take. Where interfaces have several addresses, in whatever order,
    those in a subnet that all hosts share."""
    shared = set.intersection(*({nic.subnet for nic in nics} for nics in fitting.values()))
    subnet = next((nic.subnet for nic in next(iter(fitting.values())) if nic.subnet in shared), None)
    found: dict[str, Nic] = {}
    for name, every in fitting.items():
        nics = [nic for nic in every if nic.subnet == subnet] or every
        found[name] = next((nic for nic in nics if _is_taken(hosts[name], nic)), nics[0])
    return found


def _fitting(host: HostInfo, word: str, entry: Entry, entries: Mapping[str, Entry]) -> Sequence[Nic]:
    """The addresses of this host that an entry means, link-local ones last."""
    usable = _usable(host)
    if fitting := [nic for nic in usable if entry.interface in ("", nic.name) and _within(nic, entry)]:
        return sorted(fitting, key=_is_link_local)
    if down := next((nic for nic in host.nics if nic.name == entry.interface and not nic.up), None):
        raise UsageError(
            f"--interconnect {word}: {down.name} is down on {host.hostname}; ip link set {down.name} up"
        )
    if entry.interface in host.ipv6_only:
        raise UsageError(
            f"--interconnect {word}: {entry.interface} on {host.hostname} has IPv6 addresses alone, and "
            "scaling uses IPv4; give it an IPv4 address"
        )
    names = [*entries, *dict.fromkeys(nic.name for nic in usable)]
    listed = ", ".join(f"{nic.name} {nic.address}" for nic in usable) or "none with an IPv4 address"
    hint = f"; {near(word, names)}" if word not in entries and names else ""
    raise UsageError(f"--interconnect {word}: not on {host.hostname}, which has {listed}{hint}")


def _within(nic: Nic, entry: Entry) -> bool:
    return not entry.subnet or IPv4Address(nic.address) in IPv4Network(entry.subnet)


def _hca(hosts: Hosts, nics: Nics, entry: Entry, source: str) -> dict[str, str]:
    """The cards of each host: those that the fabric file names, or else those behind its InfiniBand interface, if
    every host has some: NCCL does not mix them with sockets."""
    if entry.hca:
        named = {name: entry.cards(name) for name in nics}
        if bare := next((name for name, found in named.items() if found is None), None):
            raise UsageError(
                f'{source}: the fabric file\'s hca names no card of {bare}; write "*" = "any" for the rest'
            )
        return {name: found or "" for name, found in named.items()}
    behind = {name: cards.up(cards.behind(hosts[name], nic.name)) for name, nic in nics.items()}
    if not all(behind.values()):
        return dict.fromkeys(nics, "")
    return {name: ",".join(cards.named(hosts[name], found)) for name, found in behind.items()}


# ---------------------------------------------------------------- the fastest


def _fastest(hosts: Hosts, entries: Mapping[str, Entry]) -> Network:
    if len(hosts) == 1:
        return Network(
            word=AUTO, why="one host: its ranks meet on the loopback", places=dict.fromkeys(hosts, ALONE)
        )
    shared = _shared(hosts)
    routed = _routed(hosts, shared)
    found = [*shared, *routed]
    if not found:
        raise LaunchError(
            f"the hosts {', '.join(sorted(hosts))} share no IPv4 network, and no interface of each leads to the "
            "others; --interconnect NAME takes one all the same"
        )
    described = [(nics, _entry_of(next(iter(nics.values())), entries)) for nics in found]
    rated = [(_rate(hosts, nics, entry), nics, entry) for nics, entry in described]
    # Where rates are equal or unknown, a common subnet needs no gateway.
    rate, nics, entry = max(
        rated, key=lambda one: (one[0] or 0.0, one[1] in shared, str(next(iter(one[1].values())).subnet))
    )
    has_cards = all(cards.up(host.hcas) for host in hosts.values())
    hca = dict.fromkeys(nics, ANY if has_cards else "")
    return _network(AUTO, _why(len(shared), len(routed), rate), hosts, nics, entry=entry, hca=hca)


def _why(shared: int, routed: int, rate_bits_per_s: float | None) -> str:
    count = shared + routed
    over = "that all hosts share" if shared else "that are routed between all hosts, which share no subnet"
    if shared and routed:
        over = "between all hosts, whose subnet they share or that are routed"
    if count == 1:
        alone = "the hosts share no subnet; their routes to each other take this interface"
        return f"the only network {over}" if shared else alone
    if rate_bits_per_s is None:
        return f"one of {count} networks {over}, of unknown speed; --interconnect chooses"
    return f"the fastest of {count} networks {over}"


def _entry_of(nic: Nic, entries: Mapping[str, Entry]) -> Entry:
    """What the fabric file says of an interface."""
    fitting = (entry for entry in entries.values() if entry.interface in ("", nic.name) and _within(nic, entry))
    return next(fitting, Entry())


def _shared(hosts: Hosts) -> list[Nics]:
    """The networks whose subnet every host is on, with each host's interface there."""
    by_host = {name: _by_subnet(host) for name, host in hosts.items()}
    subnets = set.intersection(*(set(found) for found in by_host.values()))
    every = [{name: found[subnet] for name, found in by_host.items()} for subnet in subnets]
    return [nics for nics in every if not _same_address(nics)]


def _by_subnet(host: HostInfo) -> dict[IPv4Network, Nic]:
    """The interface on each subnet; of several on one (p4d instances have four) the one that packets take."""
    found: dict[IPv4Network, Nic] = {}
    for nic in _general(host):
        if nic.subnet not in found or _is_taken(host, nic):
            found[nic.subnet] = nic
    return found


def _is_taken(host: HostInfo, nic: Nic) -> bool:
    """Whether packets to its subnet leave by it, and not by another on the same subnet."""
    return routes.leads(host, str(nic.subnet.network_address)) == nic.name


def _routed(hosts: Hosts, shared: Sequence[Nics]) -> list[Nics]:
    """The other networks on which packets are routed between the first host and every other, both ways: pods and
    machines of clouds with a /32 each, a /24 per node, rails. That all reach each other, connections prove."""
    name, *others = hosts
    found: list[Nics] = []
    for nic in _general(hosts[name]):
        if any(nics[name] == nic for nics in shared):
            continue
        nics = {name: nic}
        for other in others:
            if (theirs := _peer(hosts[name], nic, hosts[other])) is None:
                break
            nics[other] = theirs
        is_routed = len({one.subnet for one in nics.values()}) > 1
        if len(nics) == len(hosts) and is_routed and not _same_address(nics):
            found.append(nics)
    return found


def _peer(first: HostInfo, nic: Nic, other: HostInfo) -> Nic | None:
    """The other host's interface that the first one's leads to and that leads back; one of the same name first."""
    likely = sorted(_general(other), key=lambda theirs: theirs.name != nic.name)
    return next((theirs for theirs in likely if routes.both_ways(first, nic, other, theirs)), None)


def _same_address(nics: Nics) -> tuple[str, str] | None:
    """Two hosts with one address: a bridge of virtual machines or containers, which leads nowhere."""
    owner: dict[str, str] = {}
    for name, nic in nics.items():
        if (first := owner.setdefault(nic.address, name)) != name:
            return first, name
    return None


def _is_one_machine(hosts: Iterable[HostInfo]) -> bool:
    """Whether hosts run on one kernel: with one address they then share a network, as nodes of a batch system that
    are played by one machine do."""
    (first, *rest) = {host.boot_id for host in hosts}
    return bool(first) and not rest


# ---------------------------------------------------------------- interfaces


def _usable(host: HostInfo) -> list[Nic]:
    return [nic for nic in host.nics if nic.up and not nic.address.startswith("127.")]


def _general(host: HostInfo) -> list[Nic]:
    """Those that may be taken without being named: not a service processor's, whose address is link-local."""
    return [nic for nic in _usable(host) if not _is_link_local(nic)]


def _is_link_local(nic: Nic) -> bool:
    return nic.address.startswith("169.254.")


def _rate(hosts: Hosts, nics: Nics, entry: Entry) -> float | None:
    """The rate of the slowest host; what the fabric file says goes before what the kernel does."""
    if entry.rate_gbit is not None:
        return entry.rate_gbit * network.GBIT
    rates = [cards.rate_bits_per_s(hosts[name], nic) for name, nic in nics.items()]
    known = [rate for rate in rates if rate is not None]
    return min(known) if len(known) == len(rates) else None
