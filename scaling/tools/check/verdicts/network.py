"""Names, clocks, and who is on which network. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from ipaddress import IPv4Network
from statistics import median_low
from typing import NamedTuple

from scaling.frameworks.hvd import BUILD
from scaling.plan import name_address
from scaling.records.host import Hca
from scaling.records.network import ANY, GBIT, Network
from scaling.tools.check.facts import Facts, Level, Verdict
from scaling.tools.check.verdicts.words import grouped, some

CLOCK_S = 0.05  # beyond it the order of two nodes' log lines misleads
HOSTS_FILE = "a line `ADDRESS NAME` per node in every /etc/hosts, with addresses of a network that the nodes share"

# ---------------------------------------------------------------- names


def names(facts: Facts) -> Iterator[Verdict]:
    """Each node's name as each node resolves it: a framework that is told no address takes what this gives."""
    faults: dict[tuple[str, Level, str], list[str]] = {}
    addresses = _addresses(facts)
    for asker in facts.nodes:
        for name in facts.nodes:
            fault = _fault(facts, addresses, asker, name)
            if fault is not None:
                faults.setdefault((name, *fault), []).append(asker)
    for (name, level, text), askers in faults.items():
        where = "every node" if len(askers) == len(facts.nodes) > 1 else some(askers)
        yield Verdict(level=level, topic="names", text=f"{name} {text}, asked on {where}", mend=HOSTS_FILE)
    listening = list(_listening(facts))
    yield from listening
    if not faults and not listening:
        several = "every node's name resolves on every node, to an address that they share a network with"
        text = several if len(facts.nodes) > 1 else f"{facts.nodes[0]} resolves"
        yield Verdict(level="ok", topic="names", text=text)


def _listening(facts: Facts) -> Iterator[Verdict]:
    """Strategies that listen at the address of the host's name, on networks on which that is another."""
    told = {rank.host.hostname: rank.name_addresses for rank in facts.ranks}
    names: dict[tuple[str | None, ...], list[str]] = {}  # bindings of one library have one address
    for name in dict.fromkeys(name for addresses in told.values() for name in addresses):
        names.setdefault(tuple(told[node].get(name) for node in facts.nodes), []).append(name)
    for addresses, alike in names.items():
        of, strategies = dict(zip(facts.nodes, addresses, strict=True)), ", ".join(alike)
        if lost := [node for node in facts.nodes if of[node] == ""]:
            text = f"{strategies}: listens at the address of the host's name, which is none of {some(lost)}"
            yield Verdict(level="error", topic="names", text=text, mend=f"{HOSTS_FILE}; or {BUILD}")
            continue
        faults = {
            one.word: name_address.fault({node: of[node] for node in one.places}, one, "cpu")
            for one in facts.networks
        }
        level: Level = "error" if facts.asked or all(faults.values()) else "warning"
        for word, fault in faults.items():
            if fault:
                text = f"{strategies}: not measurable over {word}: {fault[0]}"
                yield Verdict(level=level, topic="names", text=text, mend=fault[1])


class _Addresses(NamedTuple):
    """Each node's addresses with their subnets, the first node that has each, the subnets of several nodes, and
    the addresses to which packets are routed from others."""

    of: Mapping[str, Mapping[str, IPv4Network]]
    owner: Mapping[str, str]
    shared: Set[IPv4Network]
    routed: Set[str]


def _addresses(facts: Facts) -> _Addresses:
    of = {node: {nic.address: nic.subnet for nic in facts.host(node).nics} for node in facts.nodes}
    owner: dict[str, str] = {}
    for node, own in of.items():
        for address in own:
            owner.setdefault(address, node)
    nodes = Counter(subnet for own in of.values() for subnet in set(own.values()))
    routed = {place.address for network in facts.networks if network.routed for place in network.places.values()}
    return _Addresses(of, owner, {subnet for subnet, count in nodes.items() if count > 1}, routed)


def _fault(facts: Facts, addresses: _Addresses, asker: str, name: str) -> tuple[Level, str] | None:
    """What is wrong with the address that a node's name resolves to; the first one, which is what is taken."""
    resolved = facts.prepared[asker].resolved.get(name, ())
    if not resolved:
        return "warning", "does not resolve"
    if len(facts.nodes) == 1:
        return None
    text, own = f"resolves to {resolved[0]}", addresses.of[name]
    if resolved[0].startswith("127."):
        itself = asker == name
        why = "which no other node can reach" if itself else "which is whoever asks"
        return ("warning" if itself else "error"), f"{text}, {why}"
    if resolved[0] not in addresses.owner:
        return "warning", f"{text}, not one of its own addresses"
    if resolved[0] not in own:
        return "error", f"{text}, which is {addresses.owner[resolved[0]]}'s"
    if own[resolved[0]] not in addresses.shared and resolved[0] not in addresses.routed:
        return "warning", f"{text}, on a network that no other node is on"
    return None


# ---------------------------------------------------------------- clocks


def clocks(facts: Facts) -> Iterator[Verdict]:
    """Wall clocks, by the offsets that the links saw."""
    if len(facts.nodes) == 1:
        return
    ahead = offsets_s(facts)
    unknown = [node for node in facts.nodes if node not in ahead]
    usual_s = median_low(ahead.values())
    wrong = {node: value - usual_s for node, value in ahead.items() if abs(value - usual_s) > CLOCK_S}
    if wrong:
        text = some(
            f"{node} is {abs(value):.2f} s {'ahead' if value > 0 else 'behind'}" for node, value in wrong.items()
        )
        mend = "chronyc makestep (or timedatectl set-ntp true) on those nodes"
        yield Verdict(level="warning", topic="clocks", text=f"{text}: log times of the nodes mislead", mend=mend)
    elif len(ahead) > 1:
        spread_s = max(ahead.values()) - min(ahead.values())
        rest = f"; unknown on {some(unknown)}, which no link reaches" if unknown else ""
        yield Verdict(level="ok", topic="clocks", text=f"within {1e3 * spread_s:.2f} ms of each other{rest}")


def offsets_s(facts: Facts) -> dict[str, float]:
    """How far each node's wall clock is ahead of the first node's, along the links that were measured."""
    ahead = {facts.nodes[0]: 0.0}
    known = [link for link in facts.links if link.offset_s is not None]
    reached = 0
    while reached < len(ahead):
        reached = len(ahead)
        for link in known:
            offset_s = link.offset_s or 0.0
            if link.client in ahead:
                ahead.setdefault(link.server, ahead[link.client] + offset_s)
            elif link.server in ahead:
                ahead[link.client] = ahead[link.server] - offset_s
    return ahead


# ---------------------------------------------------------------- networks


def membership(facts: Facts) -> Iterator[Verdict]:
    """Which nodes are on which network."""
    if len(facts.nodes) == 1:
        yield Verdict(level="ok", topic="network", text="one node: there are no pairs to measure")
        return
    if not facts.networks:
        mend = "addresses in one subnet on every node, or name the networks with --interconnect or --fabric"
        text = f"{some(facts.nodes)} share no IPv4 network"
        yield Verdict(level="error", topic="network", text=text, mend=mend)
    for network in facts.networks:
        missing = facts.absent.get(network.word, {})
        if missing:
            yield Verdict(
                level="error" if facts.named or len(network.places) < 2 else "warning",
                topic="network",
                text=f"{network.word} is not on every node: {grouped(missing)}",
                mend="ip address and ip link set INTERFACE up there; a wrong name: --fabric, --interconnect",
            )
        else:
            rate = f", {network.rate_bits_per_s / GBIT:g} Gb/s {network.why}" if network.rate_bits_per_s else ""
            text = f"{network.word}: {where(network)} on every node{rate}"
            yield Verdict(level="ok", topic="network", text=text)


def where(network: Network) -> str:
    """Its subnet, or that packets are routed between nodes that share none."""
    return ", ".join(filter(None, [network.subnet, "routed" if network.routed else ""]))


def mtu(facts: Facts) -> Iterator[Verdict]:
    """Packets of one size along each network."""
    for network in facts.networks:
        sizes = {node: str(facts.nic(node, network).mtu) for node in network.places}
        if len(set(sizes.values())) > 1:
            largest = max(int(text) for text in sizes.values())
            yield Verdict(
                level="warning",
                topic="mtu",
                text=f"{network.word}: {grouped(sizes)}: large packets are cut, or lost without a trace",
                mend=f"ip link set dev INTERFACE mtu {largest} on every node, and the switch no less",
            )
        elif len(sizes) > 1:
            yield Verdict(
                level="ok", topic="mtu", text=f"{network.word}: {next(iter(sizes.values()))} on every node"
            )


def rdma(facts: Facts) -> Iterator[Verdict]:
    """The cards that the fabric file names, and those behind InfiniBand's interfaces."""
    for network in facts.networks:
        missing = {node: _without(facts, node, place.hca) for node, place in network.places.items()}
        missing = {node: text for node, text in missing.items() if text}
        if missing:
            text = f"{network.word}: {grouped(missing)}"
            mend = (
                "ibstat shows the cards; containers need /dev/infiniband (docker --device; Kubernetes: rdma/hca)"
            )
            yield Verdict(level="error", topic="rdma", text=text, mend=mend)


def _without(facts: Facts, node: str, wanted: str) -> str:
    """What is wrong with the cards (`mlx5_0,mlx5_1`) on a node, "" if nothing."""
    names = [name for name in wanted.split(",") if name and name != ANY]
    here = facts.host(node).hcas
    absent = [name for name in names if name not in _called(here)]
    alive = _called(card for card in here if card.active)
    dead = [name for name in names if name not in absent and name not in alive]
    open_ = _called(card for card in here if card.opens)
    closed = [name for name in names if name not in absent and name not in open_]
    said = (
        f"there is no {', '.join(absent)}" if absent else "",
        f"{', '.join(dead)} is not active" if dead else "",
        f"{', '.join(closed)} is not in /dev/infiniband, or not for this user" if closed else "",
    )
    return " and ".join(filter(None, said))


def _called(ports: Iterable[Hca]) -> set[str]:
    """The names by which ports may be asked for."""
    return {name for port in ports for name in (port.name, f"{port.name}:{port.port}")}
