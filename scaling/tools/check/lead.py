"""The ranks of a preflight. Rank 0 leads: it finds networks, schedules links and collects all facts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Network
from itertools import count, zip_longest
from typing import NamedTuple

import psutil  # type: ignore[import-untyped, unused-ignore]
from msgspec.structs import replace

from scaling.errors import Interrupted, LaunchError, UsageError, near
from scaling.hosts import info, networks
from scaling.hosts.networks import Entry
from scaling.records.host import HostInfo, Nic
from scaling.records.network import Network
from scaling.records.point import Device
from scaling.tools.check.facts import (
    LEAD_DECODER,
    Facts,
    Leave,
    Left,
    Link,
    Measure,
    Pair,
    Prepare,
    Prepared,
    RankFacts,
    ToLead,
    ToRank,
    both,
)
from scaling.tools.check.measured import all_reduces, device_rates, first_answers
from scaling.tools.check.prober import Prober, rank_facts
from scaling.tools.check.verdicts.links import slow_links
from scaling.transport.base import ENROL_S, Cluster, Mailbox
from scaling.transport.launch import Signals

# ---------------------------------------------------------------- schedule
# A node measures one pair at a time, because pairs would share its link. Pairs without a common node measure in
# parallel. Networks take turns round by round, so a lack of time affects all networks evenly.


LATENCY_S = (0.02, 0.1)  # minimum and maximum for a pair's latency
BANDWIDTH_S = (0.08, 0.3)  # for one direction of a pair's bandwidth
OVERHEAD_S = 0.06  # orders, connections and answers of a round


class Round(NamedTuple):
    network: str
    pairs: tuple[Pair, ...]


class LinkPlan(NamedTuple):
    rounds: tuple[Round, ...]
    left_out: tuple[Round, ...]
    latency_s: float
    bandwidth_s: float

    @property
    def round_s(self) -> float:
        return OVERHEAD_S + self.latency_s + 2 * self.bandwidth_s

    @property
    def wall_s(self) -> float:
        return self.round_s * len(self.rounds)


def pair_rounds(nodes: Sequence[str]) -> tuple[tuple[Pair, ...], ...]:
    """Schedule every pair of nodes once, in the fewest rounds of disjoint pairs. It is a round-robin tournament
    (circle method). Any two consecutive rounds connect all nodes."""
    circle: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    half = len(circle) // 2
    found = []
    for turn in range(len(circle) - 1):
        order = [circle[0], *circle[1 + turn :], *circle[1 : 1 + turn]]
        facing = zip(order[:half], reversed(order[half:]), strict=True)
        found.append(tuple((one, other) for one, other in facing if one is not None and other is not None))
    return tuple(found)


def disjoint(pairs: Iterable[Pair]) -> tuple[tuple[Pair, ...], ...]:
    found: list[list[Pair]] = []
    for pair in pairs:
        free = (one for one in found if all(set(pair).isdisjoint(other) for other in one))
        if (fitting := next(free, None)) is None:
            found.append(fitting := [])
        fitting.append(pair)
    return tuple(map(tuple, found))


def plan_links(networks: Mapping[str, Sequence[str]], budget_s: float) -> LinkPlan:
    """Share `budget_s` among all pairs of each network. Rounds that do not fit into the budget are left out."""
    columns = [[Round(name, pairs) for pairs in pair_rounds(nodes) if pairs] for name, nodes in networks.items()]
    every = [one for row in zip_longest(*columns) for one in row if one is not None]
    least_s = OVERHEAD_S + LATENCY_S[0] + 2 * BANDWIDTH_S[0]
    fitting = min(len(every), int(budget_s / least_s))
    spare_s = budget_s / max(1, fitting) - OVERHEAD_S
    latency_s = _bounded(0.1 * spare_s, LATENCY_S)
    bandwidth_s = _bounded((spare_s - latency_s) / 2, BANDWIDTH_S)
    return LinkPlan(tuple(every[:fitting]), tuple(every[fitting:]), latency_s, bandwidth_s)


def _bounded(value: float, limits: tuple[float, float]) -> float:
    least, most = limits
    return max(least, min(most, value))


# ---------------------------------------------------------------- measured links
# Rank 0 measures the links round by round within its time. A node that is dead on a network costs no further
# timeouts there. A link that looks slow is measured twice before it is reported.


GRACE_S = 2.0
LATE_S = 1.0
SAID_EVERY_S = 1.0
DEAD_AFTER = 2  # consecutive failed links with nodes that others reach


def doubtful(facts: Facts) -> Iterator[Round]:
    for network in facts.networks:
        slow = slow_links(facts.bandwidths(network.word))
        mine = (both(link) for link in facts.links if link.network == network.word)
        for pairs in disjoint(forth for forth, back in mine if forth in slow or back in slow):
            yield Round(network.word, pairs)


def _place(link: Link) -> tuple[str, str, str]:
    return link.network, link.client, link.server


def hopeless(links: Iterable[Link], network: str) -> set[str]:
    """Return nodes whose last DEAD_AFTER links on a network failed, all with nodes that others reach."""
    mine = [link for link in links if link.network == network]
    alive = {node for link in mine if not link.error for node in (link.client, link.server)}
    failed: dict[str, int] = {}
    for link in mine:
        for node, other in both(link):
            if not link.error:
                failed[node] = 0
            elif other in alive:
                failed[node] = failed.get(node, 0) + 1
    return {node for node, count in failed.items() if count >= DEAD_AFTER}


def better(one: Link, other: Link) -> Link:
    """Combine two measurements, the faster one in every respect. `other` has no error."""
    return replace(
        one,
        error="",
        latency_s=min(one.latency_s or 0.0, other.latency_s or 0.0),
        forth_bits_per_s=max(one.forth_bits_per_s or 0.0, other.forth_bits_per_s or 0.0),
        back_bits_per_s=max(one.back_bits_per_s or 0.0, other.back_bits_per_s or 0.0),
    )


# ---------------------------------------------------------------- networks
# A sweep refuses a network that a host lacks. The preflight measures between the hosts that have it and reports
# the others.


Nics = dict[str, Nic]
AUTO = "auto"


def find_networks(ranks: Sequence[RankFacts], words: Sequence[str], known: Mapping[str, Entry]) -> Facts:
    """Return the facts of `ranks` and the networks to measure: of `words` (--interconnect), else of the fabric,
    else all that at least two hosts share. Raises UsageError for a word that matches no network."""
    hosts = {rank.host.hostname: rank.host for rank in ranks}
    asked = [word for word in words if word != AUTO]
    entries = {word: known.get(word) or networks.described(word) for word in asked} or known or _shared(hosts)
    chosen = {word: _on(hosts, entry) for word, entry in entries.items()}
    for word, nics in chosen.items():
        if word in words and not nics:
            names = {*known, *(nic.name for host in hosts.values() for nic in networks.usable(host))}
            raise UsageError(f"--interconnect {word}: no host is on it; {near(word, names)}")
    absent: dict[str, dict[str, str]] = {}
    for word, name in ((word, name) for word, nics in chosen.items() for name in hosts if name not in nics):
        absent.setdefault(word, {})[name] = _why_not(hosts[name], entries[word])
    return Facts(
        ranks=tuple(ranks),
        networks=tuple(_network(word, entries[word], nics, hosts) for word, nics in chosen.items()),
        absent=absent,
        named=bool(asked or known),
        asked=bool(asked),
    )


# ---------------------------------------------------------------- networks without --interconnect and fabric file


def _shared(hosts: Mapping[str, HostInfo]) -> dict[str, Entry]:
    """Subnets of at least two hosts, and interfaces between which packets are routed if these have more hosts."""
    general = {name: networks.general(host) for name, host in hosts.items()}
    subnets = _by_subnet(hosts, general)
    reaching = {
        subnet: nics for subnet, nics in subnets.items() if len(nics) > 1 and not networks.same_address(nics)
    }
    found: dict[str, Entry] = {}
    least = min(len(hosts), 1 + max([1, *map(len, reaching.values())]))
    common = [nic for nics in reaching.values() if len(nics) == len(hosts) for nic in nics.values()]
    for nic in next(iter(general.values())):
        if nic in common:
            continue
        routed = _on(hosts, Entry(interface=nic.name))
        is_routed = len({one.subnet for one in routed.values()}) > 1
        if len(routed) >= least and is_routed and not networks.same_address(routed):
            found[nic.name] = Entry(interface=nic.name)
    for subnet, nics in reaching.items():
        names = {nic.name for nic in nics.values()}
        if names <= set(found):
            continue  # both ends are on one node, inside a network that is routed between all
        word = names.pop() if len(names) == 1 else str(subnet)
        found[str(subnet) if word in found else word] = Entry(subnet=str(subnet))
    return found


def _on(hosts: Mapping[str, HostInfo], entry: Entry) -> Nics:
    """Interfaces that match an entry, by host: the largest subnet, or the routed ones if these have more hosts."""
    fitting = {
        name: [nic for nic in networks.usable(host) if networks.matches(nic, entry)]
        for name, host in hosts.items()
    }
    groups = list(_by_subnet(hosts, fitting).values())
    largest = max(groups, key=len, default={})
    routed = _routed(hosts, groups) if len(groups) > 1 else {}
    return routed if len(routed) > len(largest) else largest


def _routed(hosts: Mapping[str, HostInfo], groups: Sequence[Nics]) -> Nics:
    (first, nic), *_ = groups[0].items()
    found = {first: nic}
    for name, theirs in ((name, theirs) for nics in groups for name, theirs in nics.items()):
        ends = (hosts[first], nic, hosts[name], theirs)
        known = hosts[first].routes and hosts[name].routes
        if nic.subnet == theirs.subnet or (known and networks.both_ways(*ends)):
            found.setdefault(name, theirs)
    return {name: found[name] for name in hosts if name in found}


def _network(word: str, entry: Entry, nics: Nics, hosts: Mapping[str, HostInfo]) -> Network:
    why = "by the cards" if entry.rate_gbit is None else "by the fabric file"
    hca = networks.cards(hosts, nics, entry)
    made = networks.network_of(word, why, hosts, nics, entry=entry, hca=hca, wide=entry.subnet)
    return made if made.rate_bits_per_s else replace(made, why="of unknown speed")


def _why_not(host: HostInfo, entry: Entry) -> str:
    wanted = entry.interface or entry.subnet
    for nic in host.nics:
        if networks.matches(nic, entry):
            return f"{nic.name} has {nic.address}, another subnet" if nic.up else f"{nic.name} is down"
    return f"{entry.interface} is missing or has no IPv4 address" if entry.interface else f"no card in {wanted}"


def _by_subnet(hosts: Mapping[str, HostInfo], nics: Mapping[str, Iterable[Nic]]) -> dict[IPv4Network, Nics]:
    """Return one interface of each host in each subnet."""
    found: dict[IPv4Network, Nics] = {}
    for name, own in nics.items():
        for subnet, nic in networks.by_subnet(hosts[name], own).items():
            found.setdefault(subnet, {})[name] = nic
    return found


# ---------------------------------------------------------------- lead

PREPARE_S = 10.0
LINKS_S = (3.0, 9.0)  # minimum and maximum for all links
OVERRUN_S = 0.25


class Lead:
    """Rank 0 of the preflight. Set `say` to print progress."""

    def __init__(self, mailbox: Mailbox[ToRank, ToLead]) -> None:
        self._mailbox = mailbox
        self._token = secrets.token_bytes(16)
        self._numbers = count()
        self.say: Callable[[str], None] = lambda _: None

    def enrolled(self, within_s: float = ENROL_S) -> tuple[RankFacts, ...]:
        """Collect the facts of all ranks. Raises LaunchError if a rank is silent or two machines have one name."""
        size = self._mailbox.size
        told = self._mailbox.answers(RankFacts, range(size), within_s)
        if silent := ", ".join(str(rank) for rank in range(size) if rank not in told):
            raise LaunchError(f"only {len(told)} of {size} ranks reported within {within_s:g} s; silent: {silent}")
        info.check_names([told[rank].host for rank in range(size)])
        return tuple(told[rank] for rank in range(size))

    def found(self, ranks: Sequence[RankFacts], words: Sequence[str], known: Mapping[str, Entry]) -> Facts:
        """Find the networks. Raises UsageError for a word without one."""
        facts = find_networks(ranks, words, known)
        self.say(_opening(facts))
        return facts

    def linked(self, facts: Facts, until_s: float) -> Facts:
        """Prepare all nodes and measure their links until `until_s`."""
        names = [rank.host.hostname for rank in facts.ranks]
        first = {node: names.index(node) for node in facts.nodes}
        facts = replace(facts, prepared=self._prepared(facts, first))
        budget_s = max(LINKS_S[0], min(until_s - self._mailbox.clock(), LINKS_S[1]))
        plan = plan_links(_listening(facts), budget_s)
        if plan.rounds:
            self.say(f"{len(plan.rounds)} rounds of links, about {plan.wall_s:.0f} s")
        measure = partial(self._measured, facts, first, plan)
        return self._toured(facts, plan, measure, self._mailbox.clock() + budget_s + OVERRUN_S)

    def _toured(self, facts: Facts, plan: LinkPlan, measure: Callable[[Round], list[Link]], end_s: float) -> Facts:
        links: dict[tuple[str, str, str], Link] = {}
        left_out, said_s = [], self._mailbox.clock()
        for number, one in enumerate(plan.rounds, 1):
            if self._mailbox.clock() + plan.round_s > end_s:
                left_out.append(one)
                continue
            if self._mailbox.clock() - said_s >= SAID_EVERY_S:
                said_s = self._mailbox.clock()
                self.say(f"links: round {number} of {len(plan.rounds)}, {one.network}")
            dead = hopeless(links.values(), one.network)
            for link in measure(Round(one.network, tuple(pair for pair in one.pairs if dead.isdisjoint(pair)))):
                links[_place(link)] = link
        for one in doubtful(replace(facts, links=tuple(links.values()))):
            for link in measure(one) if self._mailbox.clock() + plan.round_s <= end_s else ():
                if not link.error:
                    links[_place(link)] = better(links[_place(link)], link)
        late = tuple((one.network, *pair) for one in (*left_out, *plan.left_out) for pair in one.pairs)
        return replace(facts, links=tuple(links.values()), left_out=late)

    def _measured(self, facts: Facts, first: Mapping[str, int], plan: LinkPlan, one: Round) -> list[Link]:
        """Links of a round. A pair that does not answer gets an error; its late answer is ignored."""
        (network,) = (network for network in facts.networks if network.word == one.network)
        for client, server in one.pairs:
            order = Measure(
                network=network.word, client=client, server=server, source=network.places[client],
                address=network.places[server].address, port=facts.prepared[server].ports[network.word],
                token=self._token, latency_s=plan.latency_s, bandwidth_s=plan.bandwidth_s,
                limit_s=plan.round_s + GRACE_S,
            )  # fmt: skip
            self._mailbox.order([first[client]], order)

        wanted = [(network.word, *pair) for pair in one.pairs]
        wait_s = plan.round_s + GRACE_S + LATE_S
        found = dict(first_answers(self._mailbox, wanted, Link, lambda _, link: _place(link), wait_s))
        lost = sorted(set(wanted) - set(found))
        return [
            *found.values(),
            *(Link(network=word, client=a, server=b, error="no answer") for word, a, b in lost),
        ]

    def rated(self, facts: Facts, device: Device | None = None) -> Facts:
        """Measure each device alone, all at the same time. `device`: the kind for all ranks; None: a rank's GPU if
        the framework can use it, else its CPUs. A device that fails or is silent has an `error`."""
        rates = device_rates(self._mailbox, facts.ranks, next(self._numbers), self.say, device)
        return replace(facts, device_rates=rates)

    def all_reduced(self, facts: Facts) -> Facts:
        return replace(facts, all_reduces=tuple(all_reduces(self._mailbox, facts, self.say, self._numbers)))

    def dismiss(self, exit_code: int = 0) -> None:
        self._mailbox.order_all(Leave(exit_code=exit_code))

    def _prepared(self, facts: Facts, first: Mapping[str, int]) -> dict[str, Prepared]:
        for node, rank in first.items():
            places = {network.word: network.places[node] for network in facts.networks if node in network.places}
            order = Prepare(places=places, names=facts.nodes, mine=_neighbours(facts, node), token=self._token)
            self._mailbox.order([rank], order)
        answers = self._mailbox.answers(Prepared, first.values(), PREPARE_S)
        if silent := ", ".join(node for node, rank in first.items() if rank not in answers):
            raise LaunchError(f"{silent}: no answer within {PREPARE_S:g} s")
        return {node: answers[rank] for node, rank in first.items()}


def _listening(facts: Facts) -> dict[str, list[str]]:
    return {
        network.word: [node for node in network.places if network.word in facts.prepared[node].ports]
        for network in facts.networks
    }


def _neighbours(facts: Facts, node: str) -> tuple[int, ...]:
    """A lab's nodes and containers share a machine, so its boot id decides."""
    boot_id = facts.host(node).boot_id
    return tuple(
        rank.pid
        for rank in facts.ranks
        if rank.host.hostname == node or (boot_id and rank.host.boot_id == boot_id)
    )


def _opening(facts: Facts) -> str:
    counts = f"{len(facts.ranks)} ranks on {len(facts.nodes)} nodes" if len(facts.nodes) > 1 else "one node"
    words = ", ".join(network.word for network in facts.networks)
    return f"{counts}; networks: {words}" if words else f"{counts}; no network between nodes"


# ---------------------------------------------------------------- the ranks of a preflight

LEAVE_S = 20.0


def age_s() -> float:
    """Return the seconds since this process started."""
    started_unix_s: float = psutil.Process().create_time()
    return time.time() - started_unix_s


def begin(cluster: Cluster, signals: Signals) -> Prober:
    """Report this rank to rank 0, and pass on its signals; then all ranks but 0 `serve`."""
    noted: list[int] = []
    signals.hand_to(noted.append, lambda: bool(noted))
    prober = Prober(cluster, signals=noted)
    prober.say(rank_facts(cluster.library))
    return prober


@contextmanager
def leading(cluster: Cluster, prober: Prober, *, goes_on: bool = False) -> Iterator[Lead]:
    """Lead the preflight and release the other ranks at its end, except after a LaunchError (silent ranks).
    If the launch `goes_on`, wait until all have left: their later messages are of another kind."""
    mailbox = Mailbox[ToRank, ToLead](cluster, LEAD_DECODER, turn=prober.turn, wait=prober.wait)
    lead = Lead(mailbox)
    try:
        yield lead
    except LaunchError:
        raise
    except BaseException as error:
        code = error.exit_code if isinstance(error, Interrupted) else 0
        _release(lead, mailbox, prober, code, goes_on=goes_on)
        raise
    else:
        _release(lead, mailbox, prober, 0, goes_on=goes_on)


def _release(
    lead: Lead, mailbox: Mailbox[ToRank, ToLead], prober: Prober, exit_code: int, *, goes_on: bool
) -> None:
    if not goes_on:
        lead.dismiss(exit_code)
        prober.serve()
        return
    order, others = Leave(exit_code=exit_code, answer=True), range(1, mailbox.size)
    prober.leave(order)
    mailbox.order(others, order)
    mailbox.signalled = None  # it was obeyed, or the launch's next part obeys it
    left = mailbox.answers(Left, others, LEAVE_S) if others else {}
    if silent := ", ".join(str(rank) for rank in others if rank not in left):
        raise LaunchError(f"no answer within {LEAVE_S:g} s after the preflight from ranks {silent}")
    mailbox.order(others, order)
