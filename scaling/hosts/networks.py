"""From a word of --interconnect to each host's address, interface and card. Pure."""

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

from scaling import files
from scaling.errors import LaunchError, UsageError, near, told_by
from scaling.records import network
from scaling.records.host import Hca, HostInfo, Nic, Route
from scaling.records.network import ALONE, ANY, AUTO, Network, Place
from scaling.records.point import Record

# ---------------------------------------------------------------- routes
# Which interface leads to an address: the kernel's main routing table, and the longest prefix that fits.
#
#     /proc/net/route     a route per line, addresses in hexadecimal (net/ipv4/fib_trie.c, fib_route_seq_show)
#
# Rules that look at more than the destination (`ip rule`) are not seen here: that packets go this way is proved by
# connecting (`hosts/connections.py`).


ROUTES = Path("/")
FIELDS = 8  # Iface Destination Gateway Flags RefCnt Use Metric Mask, and more
# Of a host, the most general first: on a node of Kubernetes each other node may have one to its pods.
MOST = 256


def read_routes(interfaces: Collection[str], root: Path = ROUTES) -> tuple[Route, ...]:
    """The routes by these interfaces; none where the kernel does not tell.

    A node of Kubernetes has a route to each of its pods, by interfaces without an address: nobody else goes there.
    """
    # Netlink tells the same, but importing pyroute2 takes longer than all else that a rank tells of its host.
    lines: list[list[str]] = []
    with suppress(OSError):
        lines = [line.split() for line in (root / "proc/net/route").read_text().splitlines()[1:]]
    found = [_route(line) for line in lines if len(line) >= FIELDS and line[0] in interfaces]
    return tuple(sorted(found, key=lambda route: int(route.destination.partition("/")[2]))[:MOST])


def _route(line: list[str]) -> Route:
    mask = int(line[7], 16).bit_count()
    return Route(destination=f"{_route_address(line[1])}/{mask}", interface=line[0], metric=int(line[6]))


def _route_address(text: str) -> IPv4Address:
    """`0000F40A` as 10.244.0.0: the four bytes as this machine orders a number's."""
    return IPv4Address(struct.pack("=I", int(text, 16)))


# ---------------------------------------------------------------- pure


def leads(host: HostInfo, address: str) -> str:
    """The interface by which packets to an address leave a host; "" where no route fits, or none is known."""
    number = int(IPv4Address(address))
    fitting = [(*_shape(route.destination), route) for route in host.routes]
    found = [(mask, -route.metric, route) for first, mask, route in fitting if number & mask == first]
    return max(found, key=lambda one: one[:2])[2].interface if found else ""


@lru_cache(maxsize=4096)
def _shape(destination: str) -> tuple[int, int]:
    network = IPv4Network(destination)
    return int(network.network_address), int(network.netmask)


def both_ways(one: HostInfo, nic: Nic, other: HostInfo, theirs: Nic) -> bool:
    """Whether two hosts reach each other by these interfaces, as their tables say; where a table is not known, an
    interface is taken to lead to those of its name."""
    if nic.address == theirs.address:
        return False
    there = leads(one, theirs.address) == nic.name if one.routes else nic.name == theirs.name
    back = leads(other, nic.address) == theirs.name if other.routes else nic.name == theirs.name
    return there and back


# ---------------------------------------------------------------- cards
# Which RDMA cards stand behind a network's interfaces, and how fast they are. Pure.
#
# NCCL's own verbs take ports whose link layer is InfiniBand or Ethernet (nccl/src/transport/net_ib/init.cc);
# others (EFA, Slingshot) it reaches by a plugin, which NCCL_NET=IB would exclude (nccl/src/transport/net.cc).


INFINIBAND = "InfiniBand"
VERBS = (INFINIBAND, "Ethernet")


def card_behind(host: HostInfo, interface: str) -> tuple[Hca, ...]:
    """The InfiniBand ports behind an interface, up or not. An Ethernet card does RDMA only where a fabric file
    says so: networks that are not set up for RoCE lose packets with it."""
    return tuple(hca for hca in host.hcas if interface in hca.interfaces and hca.link_layer == INFINIBAND)


def cards_up(ports: Iterable[Hca]) -> tuple[Hca, ...]:
    """Those that are active and open."""
    return tuple(port for port in ports if port.active and port.opens)


def cards_named(host: HostInfo, ports: Iterable[Hca]) -> tuple[str, ...]:
    """As NCCL_IB_HCA calls ports: `mlx5_0`, or `mlx4_0:2` for one of several that the card has."""
    all_ports = [hca.name for hca in host.hcas]
    called = (hca.name if all_ports.count(hca.name) == 1 else f"{hca.name}:{hca.port}" for hca in ports)
    return tuple(dict.fromkeys(called))


def cards_of_hosts(hosts: Iterable[HostInfo]) -> dict[str, float | None]:
    """The active ports of all hosts and the rate of the slowest of each name."""
    found: dict[str, float | None] = {}
    for host in hosts:
        for port in cards_up(host.hcas):
            (name,) = cards_named(host, [port])
            known = [rate for rate in (found.get(name), port.rate_bits_per_s) if rate]
            found[name] = min(known, default=None)
    return found


def need_plugin(hosts: Mapping[str, HostInfo], wanted: Mapping[str, str]) -> bool:
    """Whether NCCL reaches any of these cards (by host, with commas) by a plugin alone; cards that no host tells
    of are taken to have verbs."""
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
    """What an interface carries: as the kernel says, or else its card's port. IPoIB tells of no speed on many
    kernels (openshift/assisted-installer-agent pull request 1492)."""
    if nic.speed_bits_per_s is not None:
        return nic.speed_bits_per_s
    rates = [hca.rate_bits_per_s for hca in host.hcas if nic.name in hca.interfaces and hca.active]
    return min((rate for rate in rates if rate), default=None)


# ---------------------------------------------------------------- fabric
# The fabric file, which describes networks by name.
#
# [ib]
# interface = "ib0"          # on every node
# hca = "mlx5_0"             # RDMA over this card; without it, sockets over the interface
# rate_gbit = 100            # per node; where it is not given, what the kernel says
# subnet = "10.10.0.0/24"    # instead of `interface` where its name differs from node to node; may be wider
#                            # than the nodes' own masks: 10.244.0.0/16 over a /24 or a /32 per node
#
# hca = ["mlx5_0", "mlx5_1"] and hca = "mlx5_0,mlx5_1" are several cards, "mlx4_0:2" is one port of a card, "any"
# leaves the choice to NCCL, and hca = { node1 = "mlx5_0", "gpu-*" = ["mlx5_2", "mlx5_3"] } names them by node,
# where the first pattern counts that fits the host's name.


VARIABLE = "SCALING_FABRIC"
CARD = re.compile(r"[\w.-]+(:\d+)?")

# One card, several with commas or as a list.
Cards = str | tuple[str, ...]


class Entry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A network as the fabric file describes it: by `interface`, by `subnet`, or by both."""

    interface: str = ""
    subnet: str = ""
    hca: str | tuple[str, ...] | dict[str, Cards] = ""
    rate_gbit: float | None = None

    def cards(self, host: str) -> str | None:
        """The cards of a host, with commas; "" where the file names none, None where it does for others alone."""
        if not isinstance(self.hca, dict):
            return _joined_cards(self.hca)
        fitting = (_joined_cards(cards) for pattern, cards in self.hca.items() if fnmatchcase(host, pattern))
        return next(fitting, None)


def _joined_cards(cards: Cards) -> str:
    listed = cards.split(",") if isinstance(cards, str) else cards
    return ",".join(card.strip() for card in listed)


def read_fabric(path: str | None) -> dict[str, Entry]:
    """The networks of a fabric file, none without one; every mistake is a UsageError that names file and key."""
    if path is None:
        return {}
    source = told_by("--fabric", VARIABLE, path)
    try:
        data = msgspec.toml.decode(files.read(Path(path)))
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    entries = {name: _entry(source, name, table) for name, table in data.items()}
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
    """An IPv4 network; UsageError naming `source` for any other text."""
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise UsageError(f"{source} {text}: {error}; write for example 10.10.0.0/24") from None


# ---------------------------------------------------------------- which network

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
    entry = entries.get(word) or described(word)
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
    found = cards_of_hosts(hosts.values())
    plugin = need_plugin(hosts, hca)
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


def described(word: str) -> Entry:
    """An interface or a subnet, as a fabric file describes it."""
    if "/" in word:
        return Entry(subnet=str(subnet_of(word, "--interconnect")))
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
    if fitting := [nic for nic in usable if entry.interface in ("", nic.name) and within(nic, entry)]:
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


def within(nic: Nic, entry: Entry) -> bool:
    """Whether an interface is in the entry's subnet, if it has one."""
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
    behind = {name: cards_up(card_behind(hosts[name], nic.name)) for name, nic in nics.items()}
    if not all(behind.values()):
        return dict.fromkeys(nics, "")
    return {name: ",".join(cards_named(hosts[name], found)) for name, found in behind.items()}


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
    entered = [(nics, _entry_of(next(iter(nics.values())), entries)) for nics in found]
    rated = [(_rate(hosts, nics, entry), nics, entry) for nics, entry in entered]
    # Where rates are equal or unknown, a common subnet needs no gateway.
    rate, nics, entry = max(
        rated, key=lambda one: (one[0] or 0.0, one[1] in shared, str(next(iter(one[1].values())).subnet))
    )
    has_cards = all(cards_up(host.hcas) for host in hosts.values())
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
    fitting = (entry for entry in entries.values() if entry.interface in ("", nic.name) and within(nic, entry))
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
    return leads(host, str(nic.subnet.network_address)) == nic.name


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
    return next((theirs for theirs in likely if both_ways(first, nic, other, theirs)), None)


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
    rates = [rate_bits_per_s(hosts[name], nic) for name, nic in nics.items()]
    known = [rate for rate in rates if rate is not None]
    return min(known) if len(known) == len(rates) else None
