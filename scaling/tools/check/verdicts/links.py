"""Verdicts on the network between nodes: names, clocks, cards, and the links of every pair.

If all links of a node are slow, the node is slow, not its partners. So a node is judged by the upper quartile of
its bandwidths (lower quartile of its latencies), which slow partners do not affect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, floor, log10
from statistics import median, median_low

from scaling import frameworks
from scaling.hosts import networks
from scaling.plan import matrix
from scaling.records.host import Hca
from scaling.records.network import ANY, GBIT, Network, Place
from scaling.tools.check.facts import (
    Facts,
    Level,
    Link,
    Look,
    Matrix,
    Pair,
    Verdict,
    error,
    grouped,
    of_nodes,
    ok,
    some,
    warning,
)

# ---------------------------------------------------------------- names and clocks


CLOCK_S = 0.05  # beyond it the order of two nodes' log lines misleads
HOSTS_FILE = "a line `ADDRESS NAME` per node in every /etc/hosts, with addresses of a network that the nodes share"


def name_verdicts(facts: Facts) -> Iterator[Verdict]:
    """Check how each node resolves each node's name. Some frameworks use that address."""
    faults: dict[tuple[str, Level, str], list[str]] = {}
    for asker, name, level, text in _name_faults(facts):
        faults.setdefault((name, level, text), []).append(asker)
    for (name, level, text), askers in faults.items():
        where = "every node" if len(askers) == len(facts.nodes) > 1 else some(askers)
        looks = tuple(Look(asker, f"name {name}", text, "") for asker in askers)
        yield Verdict(level, "names", f"{name} {text}, asked on {where}", HOSTS_FILE, looks)
    listening = list(_listening(facts))
    yield from listening
    if not faults and not listening:
        several = "every node's name resolves on every node, to an address of a shared network"
        text = several if len(facts.nodes) > 1 else f"{facts.nodes[0]} resolves"
        yield ok("names", text)


def _name_faults(facts: Facts) -> Iterator[tuple[str, str, Level, str]]:
    """Yield the node that asked, the name, and the fault of its answer."""
    of = {node: {nic.address: nic.subnet for nic in facts.host(node).nics} for node in facts.nodes}
    owner = {address: node for node in reversed(facts.nodes) for address in of[node]}  # the first node that has it
    nodes = Counter(subnet for own in of.values() for subnet in set(own.values()))
    routed = {place.address for network in facts.networks if network.routed for place in network.places.values()}
    for asker, name in ((asker, name) for asker in facts.nodes for name in facts.nodes):
        if not (resolved := facts.prepared[asker].resolved.get(name, ())):
            yield asker, name, "warning", "does not resolve"
        elif len(facts.nodes) > 1:
            address, own = resolved[0], of[name]
            text = f"resolves to {address}"
            if address.startswith("127."):
                why = "which no other node can reach" if asker == name else "which is the asking node"
                yield asker, name, ("warning" if asker == name else "error"), f"{text}, {why}"
            elif address not in owner:
                yield asker, name, "warning", f"{text}, not one of its own addresses"
            elif address not in own:
                yield asker, name, "error", f"{text}, which is {owner[address]}'s"
            elif nodes[own[address]] == 1 and address not in routed:
                yield asker, name, "warning", f"{text}, on a network without other nodes"


def _listening(facts: Facts) -> Iterator[Verdict]:
    told = {rank.host.hostname: rank.name_addresses for rank in facts.ranks}
    names: dict[tuple[str | None, ...], list[str]] = {}  # bindings of one library have one address
    for name in dict.fromkeys(name for addresses in told.values() for name in addresses):
        names.setdefault(tuple(told[node].get(name) for node in facts.nodes), []).append(name)
    for addresses, alike in names.items():
        obeying = frameworks.load(alike[0]).obeying
        of, strategies = dict(zip(facts.nodes, addresses, strict=True)), ", ".join(alike)
        if lost := [node for node in facts.nodes if of[node] == ""]:
            text = f"{strategies}: listens at the address of the host's name, which is no address of {some(lost)}"
            mend = f"{HOSTS_FILE}; or {obeying}" if obeying else HOSTS_FILE
            yield error("names", text, mend)
            continue
        faults = {
            one.word: matrix.name_fault({node: of[node] for node in one.places}, one, "cpu", obeying)
            for one in facts.networks
        }
        level: Level = "error" if facts.asked or all(faults.values()) else "warning"
        for word, fault in faults.items():
            if fault:
                text = f"{strategies}: not measurable over {word}: {fault[0]}"
                yield Verdict(level, "names", text, fault[1])


def clock_verdicts(facts: Facts) -> Iterator[Verdict]:
    if len(facts.nodes) == 1:
        return
    ahead = offsets_s(facts)
    unknown = [node for node in facts.nodes if node not in ahead]
    usual_s = median_low(ahead.values())
    wrong = {node: value - usual_s for node, value in ahead.items() if abs(value - usual_s) > CLOCK_S}
    if wrong:
        said = {node: f"{abs(value):.2f} s {'ahead' if value > 0 else 'behind'}" for node, value in wrong.items()}
        text = f"{some(f'{node} is {off}' for node, off in said.items())}: times in their logs are not comparable"
        mend = "chronyc makestep (or timedatectl set-ntp true) on those nodes"
        yield warning("clocks", text, mend, (Look(node, "clock", off, "") for node, off in said.items()))
    elif len(ahead) > 1:
        spread_s = max(ahead.values()) - min(ahead.values())
        rest = f"; unknown on {some(unknown)}, which no link reaches" if unknown else ""
        yield ok("clocks", f"within {1e3 * spread_s:.2f} ms of each other{rest}")


def offsets_s(facts: Facts) -> dict[str, float]:
    """Return how far each node's wall clock is ahead of the first node's. Nodes without a measured path are left
    out."""
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


def membership(facts: Facts) -> Iterator[Verdict]:
    if len(facts.nodes) == 1:
        yield ok("network", "one node: there are no pairs to measure")
        return
    if not facts.networks:
        mend = "give every node an address in one subnet, or name the networks with --interconnect or --fabric"
        yield error("network", f"{some(facts.nodes)} share no IPv4 network", mend)
    for network in facts.networks:
        if missing := facts.absent.get(network.word):
            level: Level = "error" if facts.named or len(network.places) < 2 else "warning"
            mend = "there: ip address, ip link set INTERFACE up; if the name is wrong: --fabric, --interconnect"
            yield from of_nodes(level, "network", f"{network.word} is not on every node:", missing, mend)
        else:
            rate = f", {network.rate_bits_per_s / GBIT:g} Gb/s {network.why}" if network.rate_bits_per_s else ""
            yield ok("network", f"{network.word}: {where(network)} on every node{rate}")


def where(network: Network) -> str:
    return ", ".join(filter(None, [network.subnet, "routed" if network.routed else ""]))


def mtu(facts: Facts) -> Iterator[Verdict]:
    for network in facts.networks:
        sizes = {node: facts.nic(node, network).mtu for node in network.places}
        largest = max(sizes.values(), default=0)
        if len(set(sizes.values())) > 1:
            listed = grouped({node: str(size) for node, size in sizes.items()})
            mend = f"ip link set dev INTERFACE mtu {largest} on every node, and at least that on the switch"
            text = f"{network.word}: {listed}: large packets are cut or silently lost"
            smaller = (
                Look(node, _card(network, node), f"mtu {size}", f"mtu {largest}")
                for node, size in sizes.items()
                if size < largest
            )
            yield warning("mtu", text, mend, smaller)
        elif len(sizes) > 1:
            yield ok("mtu", f"{network.word}: {largest} on every node")


def rdma(facts: Facts) -> Iterator[Verdict]:
    mend = "ibstat shows the cards; containers need /dev/infiniband (docker --device; Kubernetes: rdma/hca)"
    for network in facts.networks:
        missing = {node: _without(facts, node, place) for node, place in network.places.items()}
        yield from of_nodes("error", "rdma", f"{network.word}:", missing, mend)


def _without(facts: Facts, node: str, place: Place) -> str:
    """Faults of the cards of a network on a node, also of those behind its interface that a run leaves out.
    Those count only if the fabric file names no others."""
    host = facts.host(node)
    behind = networks.cards_named(host, networks.card_behind(host, place.interface))
    names = [name for name in place.hca.split(",") if name and name != ANY]
    if not place.hca or set(names) & set(behind):
        names = [*dict.fromkeys((*names, *behind))]
    here = host.hcas
    absent = [name for name in names if name not in _called(here)]
    alive = _called(card for card in here if card.active)
    dead = [name for name in names if name not in absent and name not in alive]
    open_ = _called(card for card in here if card.opens)
    closed = [name for name in names if name not in absent and name not in open_]
    said = (
        f"there is no {', '.join(absent)}" if absent else "",
        f"{', '.join(dead)} is not active" if dead else "",
        f"{', '.join(closed)} is not in /dev/infiniband, or this user cannot open it" if closed else "",
    )
    return " and ".join(filter(None, said))


def _called(ports: Iterable[Hca]) -> set[str]:
    return {name for port in ports for name in (port.name, f"{port.name}:{port.port}")}


# ---------------------------------------------------------------- links

SLOW, VERY_SLOW = 0.7, 0.35  # of the median bandwidth: a warning, an error
LATE, LATE_S = 3.0, 100e-6  # times the median latency, and seconds above it
NOMINAL = 0.8
# what one TCP flow certainly reaches on a fast card with packets of 1500 bytes
ONE_FLOW_BITS_PER_S = 10 * GBIT
LINK = "ethtool {0} (speed, duplex), ip -s link show {0} (errors), tc qdisc show dev {0} (shapers), cable, switch"


def slow_senders(matrix: Matrix) -> dict[str, float]:
    """Return nodes with only slow links, and their bandwidth. A transposed matrix gives the slow receivers. With
    two nodes none is returned."""
    return slow_nodes(_nodes(matrix, 0.75))[0]


def slow_nodes(values: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Return the nodes far below the median, and the median. With two nodes none is returned."""
    usual = _median(values.values())
    slow = {node: value for node, value in values.items() if value < SLOW * usual}
    return (slow if len(values) > 2 else {}), usual


def sound(matrix: Matrix) -> Matrix:
    senders, receivers = slow_senders(matrix), slow_senders(transposed(matrix))
    return {(a, b): value for (a, b), value in matrix.items() if a not in senders and b not in receivers}


def slow_links(matrix: Matrix) -> dict[Pair, float]:
    rest = sound(matrix)
    usual = _median(rest.values())
    return {pair: value for pair, value in rest.items() if value < SLOW * usual}


def late_nodes(matrix: Matrix) -> dict[str, float]:
    """Return nodes with only long latencies, in seconds. With two nodes none is returned."""
    values = _nodes(matrix, 0.25)
    usual = _median(values.values())
    late = {node: value for node, value in values.items() if value > max(LATE * usual, usual + LATE_S)}
    return late if len(values) > 2 else {}


def transposed(matrix: Matrix) -> Matrix:
    return {(b, a): value for (a, b), value in matrix.items()}


def _nodes(matrix: Matrix, quantile: float) -> dict[str, float]:
    rows: dict[str, list[float]] = {}
    for (node, _), value in matrix.items():
        rows.setdefault(node, []).append(value)
    return {node: _quantile(sorted(row), quantile) for node, row in rows.items()}


def _quantile(row: list[float], quantile: float) -> float:
    place = quantile * (len(row) - 1)
    return row[ceil(place) if quantile > 0.5 else int(place)]


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return median(found) if found else 0.0


def reached(facts: Facts) -> Iterator[Verdict]:
    for network in facts.networks:
        for node, why in ((node, one.refused.get(network.word)) for node, one in facts.prepared.items()):
            if why:
                address = network.places[node].address
                text = f"{network.word}: {node} cannot listen at {address}: {why}"
                look = Look(node, _card(network, node), why, f"it listens at {address}")
                yield error("links", text, "ip address shows what the node has", [look])
        yield from _broken(network.word, [link for link in facts.links if link.network == network.word])
    if facts.left_out:
        pairs = some(f"{a}-{b} ({network})" for network, a, b in facts.left_out)
        mend = "check fewer nodes at once, or one network: --interconnect NAME"
        yield warning("links", f"no time to measure {len(facts.left_out)} pairs: {pairs}", mend)


def _broken(network: str, links: Sequence[Link]) -> Iterator[Verdict]:
    mend = "open TCP between the nodes in the firewall; ip route get ADDRESS; state of the card and switch port"
    failed = left = [link for link in links if link.error]
    if failed and len(failed) == len(links) > 1:
        yield error(
            "links", f"{network}: no pair of nodes reaches each other: {some(map(_failure, failed))}", mend
        )
        return
    while left:
        counts = Counter(node for link in left for node in (link.client, link.server))
        node = max(counts, key=counts.__getitem__)
        mine = [link for link in failed if node in (link.client, link.server)]
        if len(mine) < 2:
            looks = (Look(one.client, f"{network} to {one.server}", one.error, "") for one in left)
            yield error("links", f"{network}: {some(map(_failure, left))}", mend, looks)
            return
        every = sum(node in (link.client, link.server) for link in links)
        lost = "cut off" if every == len(mine) else f"cut off from {len(mine)} of {every} nodes"
        why = grouped({link.server if link.client == node else link.client: link.error for link in mine})
        look = Look(node, network, why, f"{every} nodes reach it")
        yield error("links", f"{network}: {node} is {lost} ({why})", mend, [look])
        left = [link for link in left if node not in (link.client, link.server)]


def _failure(link: Link) -> str:
    large = "" if link.latency_s is None else " with large packets (mtu?)"
    return f"{link.client}-{link.server}: {link.error}{large}"


def latency(facts: Facts) -> Iterator[Verdict]:
    for network in facts.networks:
        matrix = facts.latencies(network.word)
        if not matrix:
            continue
        late = late_nodes(matrix)
        usual = _median(value for pair, value in matrix.items() if late.keys().isdisjoint(pair))
        for node, value in late.items():
            text = f"{network.word}: {node} answers after {_us(value)} us, the others after {_us(usual)} us"
            mend = "lower its load, or keep its processor awake: cpupower frequency-set -g performance"
            look = Look(node, network.word, f"{_us(value)} us", f"{_us(usual)} us")
            yield warning("latency", text, mend, [look])
        if not late:
            text = f"{network.word}: {_us(usual)} us, {_us(min(matrix.values()))} to {_us(max(matrix.values()))}"
            yield ok("latency", text)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.0f}"


def bandwidth(facts: Facts) -> Iterator[Verdict]:
    for network in facts.networks:
        matrix = facts.bandwidths(network.word)
        if not matrix:
            continue
        slow = list(_slow(network, matrix))
        yield from slow
        usual = _median(sound(matrix).values())
        expected = min(network.rate_bits_per_s or usual, max(usual, ONE_FLOW_BITS_PER_S))
        text = f"{network.word}: {gbit(usual)} Gb/s, {gbit(min(matrix.values()))} to {gbit(max(matrix.values()))}"
        if usual < NOMINAL * expected:
            of = f"; {gbit(network.rate_bits_per_s or 0)} Gb/s {network.why} should carry {gbit(expected)}"
            yield warning("bandwidth", text + of, _look(network, *network.places))
        elif not slow:
            of = f", {100 * usual / network.rate_bits_per_s:.0f} % of the link" if network.rate_bits_per_s else ""
            yield ok("bandwidth", text + of)


def _slow(network: Network, matrix: Matrix) -> Iterator[Verdict]:
    senders, receivers = slow_senders(matrix), slow_senders(transposed(matrix))
    usual = _median(sound(matrix).values())
    for node in dict.fromkeys((*senders, *receivers)):
        slow = {word: of[node] for word, of in (("sends", senders), ("receives", receivers)) if node in of}
        parts, worst = [f"{word} {gbit(value)}" for word, value in slow.items()], min(slow.values())
        text = f"{network.word}: {node} is slow: it {' and '.join(parts)} Gb/s, the others carry {gbit(usual)}"
        look = Look(node, _card(network, node), f"{' and '.join(parts)} Gb/s", f"{gbit(usual)} Gb/s")
        yield Verdict(_level(worst, usual), "bandwidth", text, _look(network, node), (look,))
    links = slow_links(matrix)
    if links:
        listed = some(f"{a} to {b} {gbit(value)}" for (a, b), value in links.items())
        text = f"{network.word}: slow links: {listed} Gb/s, the others carry {gbit(usual)}"
        mend = _look(network, *dict.fromkeys(node for pair in links for node in pair))
        looks = tuple(
            Look(a, f"{_card(network, a)} to {b}", f"{gbit(value)} Gb/s", f"{gbit(usual)} Gb/s")
            for (a, b), value in links.items()
        )
        yield Verdict(_level(min(links.values()), usual), "bandwidth", text, mend, looks)


def _card(network: Network, node: str) -> str:
    """Return `ib0`, or `ethernet (eth0)` for a network of another name."""
    interface = network.places[node].interface
    return interface if interface == network.word else f"{network.word} ({interface})"


def _look(network: Network, *nodes: str) -> str:
    interfaces = dict.fromkeys(network.places[node].interface for node in nodes)
    where = f"on {some(nodes)}: " if len(nodes) < len(network.places) else ""
    return where + LINK.format(next(iter(interfaces)) if len(interfaces) == 1 else "INTERFACE")


def _level(value: float, usual: float) -> Level:
    return "error" if value < VERY_SLOW * usual else "warning"


def gbit(bits_per_s: float) -> str:
    return digits(bits_per_s / GBIT)


def digits(value: float) -> str:
    """Format with three digits: `0.00956`, `9.41`, `102`."""
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}" if value > 0 else "0"
