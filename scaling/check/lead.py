"""Rank 0 leads the preflight: who is here, who listens, and the tour of the links between them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from scaling.check import networks, schedule
from scaling.check.all_reduce import AllReduces
from scaling.check.facts import Facts, Prepared, RankFacts
from scaling.check.messages import Leave, Prepare, ToLead, ToRank
from scaling.check.tour import Tour
from scaling.errors import LaunchError
from scaling.hosts import info
from scaling.hosts.fabric import Entry
from scaling.transport.mailbox import ENROL_S, Mailbox

PREPARE_S = 10.0
LINKS_S = (3.0, 9.0)  # least and most to spend on all links
OVERRUN_S = 0.25


class Lead:
    """Set `say` to print lines of progress."""

    def __init__(self, mailbox: Mailbox[ToRank, ToLead]) -> None:
        self._mailbox = mailbox
        self._token = secrets.token_bytes(16)
        self.say: Callable[[str], None] = lambda _: None

    def enrolled(self, within_s: float = ENROL_S) -> tuple[RankFacts, ...]:
        """What each rank tells, by rank. Raises LaunchError when one stays silent, and for two machines of one
        name."""
        size = self._mailbox.size
        told = self._mailbox.answers(RankFacts, range(size), within_s)
        if silent := ", ".join(str(rank) for rank in range(size) if rank not in told):
            raise LaunchError(f"only {len(told)} of {size} ranks reported within {within_s:g} s; silent: {silent}")
        info.check_names([told[rank].host for rank in range(size)])
        return tuple(told[rank] for rank in range(size))

    def measured(
        self,
        ranks: Sequence[RankFacts],
        words: Sequence[str],
        known: Mapping[str, Entry],
        until_s: float,
    ) -> Facts:
        """Prepare all nodes and measure the links between them, to be done by `until_s` of the clock. Raises
        UsageError for a word that means no network."""
        found = networks.find(ranks, words, known)
        asked = bool(networks.named(words))
        facts = Facts(
            ranks=tuple(ranks),
            networks=found.networks,
            absent=found.absent,
            named=asked or bool(known),
            asked=asked,
        )
        self.say(_opening(facts))
        first = {node: _first_rank(ranks, node) for node in facts.nodes}
        facts = replace(facts, prepared=self._prepared(facts, first))
        budget_s = max(LINKS_S[0], min(until_s - self._mailbox.clock(), LINKS_S[1]))
        plan = schedule.plan(_listening(facts), budget_s)
        if plan.rounds:
            self.say(f"{len(plan.rounds)} rounds of links, about {plan.wall_s:.0f} s")
        tour = Tour(self._mailbox, facts, first, self._token, plan)
        tour.take(self._mailbox.clock() + budget_s + OVERRUN_S, self.say)
        return replace(facts, links=tuple(tour.links), left_out=tuple(tour.left_out))

    def all_reduced(self, facts: Facts) -> Facts:
        """The facts with the timed all-reduces, over whichever links were found to work."""
        return replace(facts, all_reduces=AllReduces(self._mailbox, facts, self.say).take())

    def dismiss(self) -> None:
        """Let all ranks go."""
        self._mailbox.order_all(Leave())

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
    """The nodes that can take part, by network."""
    return {
        network.word: [node for node in network.places if network.word in facts.prepared[node].ports]
        for network in facts.networks
    }


def _first_rank(ranks: Sequence[RankFacts], node: str) -> int:
    return next(rank for rank, facts in enumerate(ranks) if facts.host.hostname == node)


def _neighbours(facts: Facts, node: str) -> tuple[int, ...]:
    """The launch's processes on the node's machine, on which other nodes may live too (a lab's, containers)."""
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
