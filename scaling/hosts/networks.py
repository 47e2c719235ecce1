"""Resolve a word of --interconnect to each host's address, interface and card."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import msgspec
from msgspec.structs import replace

from scaling import files
from scaling.errors import LaunchError, UsageError, near, told_by
from scaling.records import network
from scaling.records.host import Hca, HostInfo, Nic, Route
from scaling.records.network import ALONE, ANY, AUTO, Network, Place
from scaling.records.point import Record

# ---------------------------------------------------------------- routes
# Longest prefix in the main table, /proc/net/route (net/ipv4/fib_trie.c, fib_route_seq_show). Rules (`ip rule`)
# are not read; connections prove the way (`hosts/connections.py`).


ROUTES = Path("/")
FIELDS = 8  # Iface Destination Gateway Flags RefCnt Use Metric Mask, and more
# Routes kept per host, the most general first: Kubernetes nodes may have one to each other node.
MOST = 256


def read_routes(interfaces: Collection[str], root: Path = ROUTES) -> tuple[Route, ...]:
    """Return the routes by these interfaces, without those to a Kubernetes node's own pods; none if unknown."""
    # Netlink has the same, but importing pyroute2 is slow.
    lines: list[list[str]] = []
    with suppress(OSError):
        lines = [line.split() for line in (root / "proc/net/route").read_text().splitlines()[1:]]
    found = [_route(line) for line in lines if len(line) >= FIELDS and line[0] in interfaces]
    return tuple(sorted(found, key=lambda route: int(route.destination.partition("/")[2]))[:MOST])


def _route(line: list[str]) -> Route:
    mask = int(line[7], 16).bit_count()
    address = IPv4Address(struct.pack("=I", int(line[1], 16)))  # 0000F40A: 10.244.0.0 in this machine's order
    return Route(destination=f"{address}/{mask}", interface=line[0], metric=int(line[6]))


def leads(host: HostInfo, address: str) -> str:
    """Return the interface by which packets to an address leave a host; "" if unknown."""
    number = int(IPv4Address(address))
    fitting = [(*_shape(route.destination), route) for route in host.routes]
    found = [(mask, -route.metric, route) for first, mask, route in fitting if number & mask == first]
    return max(found, key=lambda one: one[:2])[2].interface if found else ""


@lru_cache(maxsize=4096)
def _shape(destination: str) -> tuple[int, int]:
    network = IPv4Network(destination)
    return int(network.network_address), int(network.netmask)


def both_ways(one: HostInfo, nic: Nic, other: HostInfo, theirs: Nic) -> bool:
    """Return whether routes lead between two hosts by these interfaces.
    Without a routing table, interfaces of the same name are assumed to be connected."""
    if nic.address == theirs.address:
        return False
    there = leads(one, theirs.address) == nic.name if one.routes else nic.name == theirs.name
    back = leads(other, nic.address) == theirs.name if other.routes else nic.name == theirs.name
    return there and back


# ---------------------------------------------------------------- cards
# NCCL's verbs use InfiniBand and Ethernet ports (nccl/src/transport/net_ib/init.cc). It reaches EFA and Slingshot
# by a plugin, which NCCL_NET=IB would exclude (nccl/src/transport/net.cc).


INFINIBAND = "InfiniBand"
VERBS = (INFINIBAND, "Ethernet")


def card_behind(host: HostInfo, interface: str) -> tuple[Hca, ...]:
    """Return the InfiniBand ports of an interface, up or not.
    Ethernet cards use RDMA only if a fabric file names them: networks without RoCE settings lose packets."""
    return tuple(hca for hca in host.hcas if interface in hca.interfaces and hca.link_layer == INFINIBAND)


def cards_up(ports: Iterable[Hca]) -> tuple[Hca, ...]:
    """Return the ports that are active and may be opened."""
    return tuple(port for port in ports if port.active and port.opens)


def cards_named(host: HostInfo, ports: Iterable[Hca]) -> tuple[str, ...]:
    """Return NCCL_IB_HCA's names of ports: `mlx5_0`, or `mlx4_0:2` if the card has several."""
    all_ports = [hca.name for hca in host.hcas]
    called = (hca.name if all_ports.count(hca.name) == 1 else f"{hca.name}:{hca.port}" for hca in ports)
    return tuple(dict.fromkeys(called))


def cards_of_hosts(hosts: Iterable[HostInfo]) -> dict[str, float | None]:
    """Return the active ports of all hosts, with the slowest rate of each name."""
    found: dict[str, float | None] = {}
    for host in hosts:
        for port in cards_up(host.hcas):
            (name,) = cards_named(host, [port])
            known = [rate for rate in (found.get(name), port.rate_bits_per_s) if rate]
            found[name] = min(known, default=None)
    return found


def need_plugin(hosts: Mapping[str, HostInfo], wanted: Mapping[str, str]) -> bool:
    """Return whether NCCL needs a plugin for any of these cards (by host, with commas)."""
    return any(
        card.link_layer not in VERBS
        for name, cards in wanted.items()
        for card in hosts[name].hcas
        if card.link_layer and _is_among(card, cards)
    )


def _is_among(card: Hca, cards: str) -> bool:
    return (
        bool(cards_up([card]))
        if cards == ANY
        else card.name in {one.partition(":")[0] for one in cards.split(",")}
    )


def rate_bits_per_s(host: HostInfo, nic: Nic) -> float | None:
    """Return the rate of an interface, or of its card's port.
    Many kernels report no speed for IPoIB (openshift/assisted-installer-agent pull request 1492)."""
    if nic.speed_bits_per_s is not None:
        return nic.speed_bits_per_s
    rates = [hca.rate_bits_per_s for hca in host.hcas if nic.name in hca.interfaces and hca.active]
    return min((rate for rate in rates if rate), default=None)


# ---------------------------------------------------------------- fabric
# The fabric file:
#
# [ib]
# interface = "ib0"          # on every node
# hca = "mlx5_0"             # RDMA over this card; without it, sockets over the interface
# rate_gbit = 100            # per node; default: the kernel's value
# subnet = "10.10.0.0/24"    # in place of `interface`, if names differ; may be wider than the nodes' masks
#
# hca also takes a list or commas, a port ("mlx4_0:2"), "any" (NCCL chooses), or a table by node:
# hca = { node1 = "mlx5_0", "gpu-*" = ["mlx5_2", "mlx5_3"] }; the first matching pattern counts.


VARIABLE = "SCALING_FABRIC"
CARD = re.compile(r"[\w.-]+(:\d+)?")

Cards = str | tuple[str, ...]


class Entry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network of the fabric file, by `interface`, by `subnet`, or by both."""

    interface: str = ""
    subnet: str = ""
    hca: str | tuple[str, ...] | dict[str, Cards] = ""
    rate_gbit: float | None = None

    def cards(self, host: str) -> str | None:
        """Return the cards of a host, with commas; "" without `hca`, None if it names only other hosts."""
        if not isinstance(self.hca, dict):
            return _joined_cards(self.hca)
        fitting = (_joined_cards(cards) for pattern, cards in self.hca.items() if fnmatchcase(host, pattern))
        return next(fitting, None)


def _joined_cards(cards: Cards) -> str:
    listed = cards.split(",") if isinstance(cards, str) else cards
    return ",".join(card.strip() for card in listed)


def read_fabric(path: str | None) -> dict[str, Entry]:
    """Read a fabric file. Raises UsageError with file and key."""
    if path is None:
        return {}
    source = told_by("--fabric", VARIABLE, path)
    entries = {name: _entry(source, name, table) for name, table in files.toml(Path(path), source).items()}
    for name, entry in entries.items():
        _check_entry(source, name, entry)
    return entries


def _entry(source: str, name: str, table: object) -> Entry:
    try:
        return msgspec.convert(table, Entry)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        key = where.strip("`").removeprefix("$").replace(".", " ")
        raise UsageError(f"{source}: [{name}]{key}: {what[0].lower()}{what[1:]}") from None


def _check_entry(source: str, name: str, entry: Entry) -> None:
    if not entry.interface and not entry.subnet:
        raise UsageError(f'{source}: [{name}] has neither interface nor subnet; write interface = "ib0"')
    if entry.rate_gbit is not None and not 0 < entry.rate_gbit < float("inf"):
        raise UsageError(f"{source}: [{name}] rate_gbit = {entry.rate_gbit:g}: must be a number above 0")
    if name == AUTO:
        raise UsageError(f"{source}: [auto] means the fastest network; take another name")
    listed = list(entry.hca.values()) if isinstance(entry.hca, dict) else [entry.hca] if entry.hca else []
    if wrong := [card for cards in listed for card in _joined_cards(cards).split(",") if not CARD.fullmatch(card)]:
        raise UsageError(f'{source}: [{name}] hca: {wrong[0]!r} is no card; write "mlx5_0" or "mlx5_0:1"')
    if entry.subnet:
        subnet_of(entry.subnet, f"{source}: [{name}] subnet")


def subnet_of(text: str, source: str) -> IPv4Network:
    """Parse an IPv4 network. Raises UsageError that begins with `source`."""
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise UsageError(f"{source} {text}: {error}; write for example 10.10.0.0/24") from None


# ---------------------------------------------------------------- which network

Hosts = Mapping[str, HostInfo]
Nics = Mapping[str, Nic]  # by host


def choose(hosts: Iterable[HostInfo], word: str = AUTO, named: Mapping[str, Entry] | None = None) -> Network:
    """Return the network that `word` means: `auto`, a name of the fabric file (`named`), an interface or a subnet.
    Raises UsageError if a host does not have it, LaunchError if hosts share no network."""
    by_name, entries = {host.hostname: host for host in hosts}, named or {}
    if word == AUTO:
        return _fastest(by_name, entries)
    entry = entries.get(word) or described(word)
    nics = _nics(by_name, {name: _fitting(host, word, entry, entries) for name, host in by_name.items()})
    if (same := same_address(nics)) and not _is_one_machine(by_name[one] for one in same):
        raise UsageError(
            f"--interconnect {word}: {' and '.join(same)} have the same address there, {nics[same[0]].address}, "
            "so it reaches no other host; name another network"
        )
    wide = entry.subnet
    if word not in entries:  # the file may know it by another name
        entry = _entry_of(next(iter(nics.values())), entries)
    hca = cards(by_name, nics, entry)
    if bare := next((name for name, found in hca.items() if found is None), None):
        raise UsageError(
            f"--interconnect {word}: the fabric file's hca names no card of {bare}; "
            'write "*" = "any" for the rest'
        )
    return network_of(word, f"--interconnect {word}", by_name, nics, entry=entry, hca=hca, wide=wide)


def network_of(
    word: str, why: str, hosts: Hosts, nics: Nics, *, entry: Entry, hca: Mapping[str, str | None], wide: str = ""
) -> Network:
    """Describe a network. `wide` is the subnet that was given, which may be wider than the interfaces' masks."""
    subnets = {nic.subnet for nic in nics.values()}
    found, own = cards_of_hosts(hosts.values()), {name: wanted or "" for name, wanted in hca.items()}
    plugin = need_plugin(hosts, own)
    rates = [rate for rate in found.values() if rate]
    silent = (
        card.name for name in nics for card in hosts[name].hcas if not card.counts and _is_among(card, own[name])
    )
    return Network(
        word=word,
        why=why,
        subnet=str(next(iter(subnets))) if len(subnets) == 1 else wide,
        rate_bits_per_s=network_rate(hosts, nics, entry),
        places={
            name: Place(address=nic.address, interface=nic.name, hca=own[name], plugin=plugin)
            for name, nic in nics.items()
        },
        routed=len(subnets) > 1,
        cards=tuple(found),
        card_bits_per_s=min(rates, default=None),
        uncounted=tuple(dict.fromkeys(silent)),
    )


def described(word: str) -> Entry:
    """Return the Entry of an interface or subnet."""
    if "/" in word:
        return Entry(subnet=str(subnet_of(word, "--interconnect")))
    return Entry(interface=word)


def _nics(hosts: Hosts, fitting: Mapping[str, Sequence[Nic]]) -> dict[str, Nic]:
    """Choose each host's interface, if possible with an address in a subnet that all hosts share."""
    shared = set.intersection(*({nic.subnet for nic in nics} for nics in fitting.values()))
    subnet = next((nic.subnet for nic in next(iter(fitting.values())) if nic.subnet in shared), None)
    found: dict[str, Nic] = {}
    for name, every in fitting.items():
        nics = [nic for nic in every if nic.subnet == subnet] or every
        found[name] = next((nic for nic in nics if _is_taken(hosts[name], nic)), nics[0])
    return found


def _fitting(host: HostInfo, word: str, entry: Entry, entries: Mapping[str, Entry]) -> Sequence[Nic]:
    nics = usable(host)
    if fitting := [nic for nic in nics if matches(nic, entry)]:
        return sorted(fitting, key=is_link_local)
    if down := next((nic for nic in host.nics if nic.name == entry.interface and not nic.up), None):
        raise UsageError(
            f"--interconnect {word}: {down.name} is down on {host.hostname}; ip link set {down.name} up"
        )
    if entry.interface in host.ipv6_only:
        raise UsageError(
            f"--interconnect {word}: {entry.interface} on {host.hostname} has only IPv6 addresses, and scaling "
            "uses IPv4; give it an IPv4 address"
        )
    names = [*entries, *dict.fromkeys(nic.name for nic in nics)]
    listed = ", ".join(f"{nic.name} {nic.address}" for nic in nics) or "none with an IPv4 address"
    hint = f"; {near(word, names)}" if word not in entries and names else ""
    raise UsageError(f"--interconnect {word}: not on {host.hostname}, which has {listed}{hint}")


def matches(nic: Nic, entry: Entry) -> bool:
    """Return whether an interface has the entry's name and is in its subnet, if it has these."""
    is_in = not entry.subnet or IPv4Address(nic.address) in IPv4Network(entry.subnet)
    return entry.interface in ("", nic.name) and is_in


def cards(hosts: Hosts, nics: Nics, entry: Entry) -> dict[str, str | None]:
    """Return each host's cards with commas: the fabric file's, None if it names only other hosts; else the
    InfiniBand ports behind its interface that are up, "" for all hosts if one has none."""
    if entry.hca:
        return {name: entry.cards(name) for name in nics}
    up = {name: cards_up(card_behind(hosts[name], nic.name)) for name, nic in nics.items()}
    are_on_all = all(up.values())
    return {name: ",".join(cards_named(hosts[name], ports)) if are_on_all else "" for name, ports in up.items()}


# ---------------------------------------------------------------- the fastest


def _fastest(hosts: Hosts, entries: Mapping[str, Entry]) -> Network:
    if len(hosts) == 1:
        return Network(word=AUTO, why="one host: its ranks use the loopback", places=dict.fromkeys(hosts, ALONE))
    shared = _shared(hosts)
    routed = _routed(hosts, shared)
    found = [*shared, *routed]
    if not found:
        raise LaunchError(
            f"the hosts {', '.join(sorted(hosts))} share no IPv4 network, and no interface of each leads to the "
            "others; --interconnect NAME chooses one anyway"
        )
    entered = [(nics, _entry_of(next(iter(nics.values())), entries)) for nics in found]
    rated = [(network_rate(hosts, nics, entry), nics, entry) for nics, entry in entered]
    # At equal or unknown rates, prefer a common subnet: it needs no gateway.
    rate, nics, entry = max(
        rated, key=lambda one: (one[0] or 0.0, one[1] in shared, str(next(iter(one[1].values())).subnet))
    )
    has_cards = all(cards_up(host.hcas) for host in hosts.values())
    hca = dict.fromkeys(nics, ANY if has_cards else "")
    made = network_of(AUTO, _why(len(shared), len(routed), rate), hosts, nics, entry=entry, hca=hca)
    plugins = tuple(dict.fromkeys(file for host in hosts.values() for file in host.nccl_plugins))
    if has_cards or not plugins:
        return made
    return replace(
        made, plugins=plugins, places={name: replace(one, plugin=True) for name, one in made.places.items()}
    )


def _why(shared: int, routed: int, rate_bits_per_s: float | None) -> str:
    count = shared + routed
    over = "that all hosts share" if shared else "that are routed between all hosts, which share no subnet"
    if shared and routed:
        over = "that all hosts share or that are routed between them"
    if count == 1:
        alone = "the hosts share no subnet; their routes to each other take this interface"
        return f"the only network {over}" if shared else alone
    if rate_bits_per_s is None:
        return f"one of {count} networks {over}, of unknown speed; --interconnect chooses"
    return f"the fastest of {count} networks {over}"


def _entry_of(nic: Nic, entries: Mapping[str, Entry]) -> Entry:
    return next((entry for entry in entries.values() if matches(nic, entry)), Entry())


def _shared(hosts: Hosts) -> list[Nics]:
    by_host = {name: by_subnet(host, general(host)) for name, host in hosts.items()}
    subnets = set.intersection(*(set(found) for found in by_host.values()))
    every = [{name: found[subnet] for name, found in by_host.items()} for subnet in subnets]
    return [nics for nics in every if not same_address(nics)]


def by_subnet(host: HostInfo, nics: Iterable[Nic]) -> dict[IPv4Network, Nic]:
    """Return one interface per subnet; of several (p4d instances have four) the one that packets take."""
    found: dict[IPv4Network, Nic] = {}
    for nic in nics:
        if nic.subnet not in found or _is_taken(host, nic):
            found[nic.subnet] = nic
    return found


def _is_taken(host: HostInfo, nic: Nic) -> bool:
    return leads(host, str(nic.subnet.network_address)) == nic.name


def _routed(hosts: Hosts, shared: Sequence[Nics]) -> list[Nics]:
    """Return networks routed between the first host and all others; connections prove the other pairs."""
    name, *others = hosts
    found: list[Nics] = []
    for nic in general(hosts[name]):
        if any(nics[name] == nic for nics in shared):
            continue
        nics = {name: nic}
        for other in others:
            if (theirs := _peer(hosts[name], nic, hosts[other])) is None:
                break
            nics[other] = theirs
        is_routed = len({one.subnet for one in nics.values()}) > 1
        if len(nics) == len(hosts) and is_routed and not same_address(nics):
            found.append(nics)
    return found


def _peer(first: HostInfo, nic: Nic, other: HostInfo) -> Nic | None:
    likely = sorted(general(other), key=lambda theirs: theirs.name != nic.name)
    return next((theirs for theirs in likely if both_ways(first, nic, other, theirs)), None)


def same_address(nics: Nics) -> tuple[str, str] | None:
    """Return two hosts with the same address, as of a bridge of virtual machines, which connects no hosts."""
    owner: dict[str, str] = {}
    for name, nic in nics.items():
        if (first := owner.setdefault(nic.address, name)) != name:
            return first, name
    return None


def _is_one_machine(hosts: Iterable[HostInfo]) -> bool:
    """Return whether all hosts have one kernel (nodes emulated on one machine); one address is then fine."""
    (first, *rest) = {host.boot_id for host in hosts}
    return bool(first) and not rest


def usable(host: HostInfo) -> list[Nic]:
    """Return the interfaces by which other hosts may be reached: those that are up, but for the loopback and
    for addresses that leave no host on any interface, as a VRF's."""
    return [nic for nic in host.nics if nic.up and nic.name != "lo" and not nic.address.startswith("127.")]


def general(host: HostInfo) -> list[Nic]:
    """Leave out link-local addresses, such as a service processor's."""
    return [nic for nic in usable(host) if not is_link_local(nic)]


def is_link_local(nic: Nic) -> bool:
    return nic.address.startswith("169.254.")


def network_rate(hosts: Hosts, nics: Nics, entry: Entry) -> float | None:
    """Return the rate of the slowest host; the fabric file has precedence over the kernel."""
    if entry.rate_gbit is not None:
        return entry.rate_gbit * network.GBIT
    rates = [rate_bits_per_s(hosts[name], nic) for name, nic in nics.items()]
    known = [rate for rate in rates if rate is not None]
    return min(known, default=None) if len(known) == len(rates) else None
