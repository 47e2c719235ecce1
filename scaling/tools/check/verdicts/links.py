"""Latency and bandwidth of every pair: what failed, and which node is to blame. Pure.

A node whose links are all slow is slow itself, and its partners are not. So a node is judged by the upper quartile
of its links' bandwidths (the lower of its latencies), which slow partners do not reach, and compared with the
median node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, floor, log10
from statistics import median

from scaling.records.network import GBIT, Network
from scaling.tools.check.facts import Facts, Level, Link, Matrix, Pair, Verdict
from scaling.tools.check.verdicts.words import grouped, some

SLOW, VERY_SLOW = 0.7, 0.35  # of the median's bandwidth: a warning, an error
LATE, LATE_S = 3.0, 100e-6  # so many times the median's latency, and so much more
NOMINAL = 0.8  # TCP/IP leaves 0.95 of a link
# What one TCP flow surely reaches on a fast card with packets of 1500 bytes; beyond it the processor decides.
ONE_FLOW_BITS_PER_S = 10 * GBIT
LINK = "ethtool {0} (speed, duplex), ip -s link show {0} (errors), tc qdisc show dev {0} (shapers), cable, switch"

# ---------------------------------------------------------------- who is slow


def slow_senders(matrix: Matrix) -> dict[str, float]:
    """Nodes all of whose links are slow, with their bandwidth. `matrix` is by (sender, receiver); transposed it
    tells the slow receivers. Two nodes have one link, which does not show whose fault it is."""
    return slow_nodes(_nodes(matrix, 0.75))[0]


def slow_nodes(values: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """The nodes with much less than the median node, which follows; of two nodes nobody says which is right."""
    usual = _median(values.values())
    slow = {node: value for node, value in values.items() if value < SLOW * usual}
    return (slow if len(values) > 2 else {}), usual


def sound(matrix: Matrix) -> Matrix:
    """The links that no slow node spoils."""
    senders, receivers = slow_senders(matrix), slow_senders(transposed(matrix))
    return {(a, b): value for (a, b), value in matrix.items() if a not in senders and b not in receivers}


def slow_links(matrix: Matrix) -> dict[Pair, float]:
    """Slow links (sender, receiver) for which no slow node accounts."""
    rest = sound(matrix)
    usual = _median(rest.values())
    return {pair: value for pair, value in rest.items() if value < SLOW * usual}


def late_nodes(matrix: Matrix) -> dict[str, float]:
    """Nodes all of whose latencies are long, with theirs in seconds; not where there are two nodes."""
    values = _nodes(matrix, 0.25)
    usual = _median(values.values())
    late = {node: value for node, value in values.items() if value > max(LATE * usual, usual + LATE_S)}
    return late if len(values) > 2 else {}


def transposed(matrix: Matrix) -> Matrix:
    """By (receiver, sender)."""
    return {(b, a): value for (a, b), value in matrix.items()}


def _nodes(matrix: Matrix, quantile: float) -> dict[str, float]:
    """For each first node of the pairs this quantile of its values, rounded away from the middle."""
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


# ---------------------------------------------------------------- what failed


def reached(facts: Facts) -> Iterator[Verdict]:
    """Pairs that could not be measured, and those that there was no time for."""
    for network in facts.networks:
        for node, why in _deaf(facts, network).items():
            text = f"{network.word}: {node} cannot listen at {network.places[node].address}: {why}"
            yield Verdict(level="error", topic="links", text=text, mend="ip address shows what the node has")
        yield from _broken(network.word, [link for link in facts.links if link.network == network.word])
    if facts.left_out:
        pairs = some(f"{a}-{b} ({network})" for network, a, b in facts.left_out)
        text = f"no time for {len(facts.left_out)} pairs: {pairs}"
        mend = "fewer nodes at once, or one network: --interconnect NAME"
        yield Verdict(level="warning", topic="links", text=text, mend=mend)


def _deaf(facts: Facts, network: Network) -> dict[str, str]:
    """Nodes that cannot listen on their own address."""
    refused = {node: one.refused.get(network.word, "") for node, one in facts.prepared.items()}
    return {node: why for node, why in refused.items() if why}


def _broken(network: str, links: Sequence[Link]) -> Iterator[Verdict]:
    """A line per node that explains several failures, one for those that are left, a single one if all failed."""
    mend = "a firewall: open TCP between the nodes; ip route get ADDRESS; the card's and the switch port's state"
    failed = left = [link for link in links if link.error]
    if failed and len(failed) == len(links) > 1:
        text = f"{network}: no pair of nodes reaches each other: {some(map(_failure, failed))}"
        yield Verdict(level="error", topic="links", text=text, mend=mend)
        return
    while left:
        node = _worst(left)
        mine = [link for link in failed if node in (link.client, link.server)]
        if len(mine) < 2:
            text = f"{network}: {some(map(_failure, left))}"
            yield Verdict(level="error", topic="links", text=text, mend=mend)
            return
        every = sum(node in (link.client, link.server) for link in links)
        lost = "cut off" if every == len(mine) else f"cut off from {len(mine)} of {every} nodes"
        why = grouped({_other(link, node): link.error for link in mine})
        text = f"{network}: {node} is {lost} ({why})"
        yield Verdict(level="error", topic="links", text=text, mend=mend)
        left = [link for link in left if node not in (link.client, link.server)]


def _worst(failed: Sequence[Link]) -> str:
    """The node with the most failed links."""
    counts = Counter(node for link in failed for node in (link.client, link.server))
    return max(counts, key=counts.__getitem__)


def _other(link: Link, node: str) -> str:
    return link.server if link.client == node else link.client


def _failure(link: Link) -> str:
    """`node1-node2: timed out`."""
    large = "" if link.latency_s is None else " once packets were large (mtu?)"
    return f"{link.client}-{link.server}: {link.error}{large}"


# ---------------------------------------------------------------- how fast


def latency(facts: Facts) -> Iterator[Verdict]:
    """Half a round trip of small messages."""
    for network in facts.networks:
        matrix = facts.latencies(network.word)
        if not matrix:
            continue
        late = late_nodes(matrix)
        usual = _median(value for pair, value in matrix.items() if late.keys().isdisjoint(pair))
        for node, value in late.items():
            text = f"{network.word}: {node} answers after {_us(value)} us, the others after {_us(usual)} us"
            mend = "what keeps its processor busy or asleep: the load, cpupower frequency-set -g performance"
            yield Verdict(level="warning", topic="latency", text=text, mend=mend)
        if not late:
            text = f"{network.word}: {_us(usual)} us, {_us(min(matrix.values()))} to {_us(max(matrix.values()))}"
            yield Verdict(level="ok", topic="latency", text=text)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.0f}"


def bandwidth(facts: Facts) -> Iterator[Verdict]:
    """One TCP flow, each way."""
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
            yield Verdict(level="warning", topic="bandwidth", text=text + of, mend=_look(network, *network.places))
        elif not slow:
            of = f", {100 * usual / network.rate_bits_per_s:.0f} % of the link" if network.rate_bits_per_s else ""
            yield Verdict(level="ok", topic="bandwidth", text=text + of)


def _slow(network: Network, matrix: Matrix) -> Iterator[Verdict]:
    """A line per slow node, and one for the slow links between the others."""
    senders, receivers = slow_senders(matrix), slow_senders(transposed(matrix))
    usual = _median(sound(matrix).values())
    for node in dict.fromkeys((*senders, *receivers)):
        parts = [
            f"{word} {gbit(of[node])}" for word, of in (("sends", senders), ("receives", receivers)) if node in of
        ]
        worst = min(of[node] for of in (senders, receivers) if node in of)
        text = f"{network.word}: {node} is slow: it {' and '.join(parts)} Gb/s, the others carry {gbit(usual)}"
        yield Verdict(level=_level(worst, usual), topic="bandwidth", text=text, mend=_look(network, node))
    links = slow_links(matrix)
    if links:
        listed = some(f"{a} to {b} {gbit(value)}" for (a, b), value in links.items())
        text = f"{network.word}: slow links: {listed} Gb/s, the others carry {gbit(usual)}"
        mend = _look(network, *dict.fromkeys(node for pair in links for node in pair))
        yield Verdict(level=_level(min(links.values()), usual), topic="bandwidth", text=text, mend=mend)


def _look(network: Network, *nodes: str) -> str:
    """Where to look for what slows these nodes."""
    interfaces = dict.fromkeys(network.places[node].interface for node in nodes)
    where = f"on {some(nodes)}: " if len(nodes) < len(network.places) else ""
    return where + LINK.format(next(iter(interfaces)) if len(interfaces) == 1 else "INTERFACE")


def _level(value: float, usual: float) -> Level:
    return "error" if value < VERY_SLOW * usual else "warning"


def gbit(bits_per_s: float) -> str:
    """Three digits of Gb/s: `0.00956`, `0.381`, `9.41`, `38.2`, `102`."""
    value = bits_per_s / GBIT
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}" if value > 0 else "0"
