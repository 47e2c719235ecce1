"""Rank 0's tour of the links, round by round, within its time. A node that proves dead on a network costs no more
timeouts there, and a link that looks slow is measured once more before it is blamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from scaling.check.facts import Facts, Link, Pair
from scaling.check.messages import Measure, ToLead, ToRank
from scaling.check.schedule import Plan, Round, disjoint
from scaling.check.verdicts.links import slow_links
from scaling.transport.mailbox import Mailbox

GRACE_S = 2.0  # beyond its own time, for a pair whose link stalls
LATE_S = 1.0  # ... and for its answer
SAID_EVERY_S = 1.0
DEAD_AFTER = 2  # links in a row that failed with nodes that others reach


class Tour:
    """The links of prepared nodes. `first[node]` is the rank that measures there."""

    def __init__(
        self,
        mailbox: Mailbox[ToRank, ToLead],
        facts: Facts,
        first: Mapping[str, int],
        token: bytes,
        plan: Plan,
    ) -> None:
        self._mailbox = mailbox
        self._facts = facts
        self._first = first
        self._token = token
        self._plan = plan
        self._networks = {network.word: network for network in facts.networks}
        self.links: list[Link] = []
        self.left_out: list[tuple[str, str, str]] = []

    def take(self, end_s: float, say: Callable[[str], None]) -> None:
        """Measure what there is time for until `end_s` of the mailbox's clock."""
        said_s = self._mailbox.clock()
        for number, one in enumerate(self._plan.rounds, 1):
            if self._mailbox.clock() + self._plan.round_s > end_s:
                self._leave_out(one)
                continue
            if self._mailbox.clock() - said_s >= SAID_EVERY_S:
                said_s = self._mailbox.clock()
                say(f"links: round {number} of {len(self._plan.rounds)}, {one.network}")
            dead = hopeless(self.links, one.network)
            pairs = tuple(pair for pair in one.pairs if dead.isdisjoint(pair))
            self.links += self._measured(Round(network=one.network, pairs=pairs))
        for one in self._plan.left_out:
            self._leave_out(one)
        for one in self._doubtful():
            if self._mailbox.clock() + self._plan.round_s <= end_s:
                self._again(one)

    def _leave_out(self, one: Round) -> None:
        self.left_out += [(one.network, *pair) for pair in one.pairs]

    def _doubtful(self) -> list[Round]:
        """Rounds of the pairs of which a direction looks slow, though neither node does."""
        rounds = []
        for word in self._networks:
            mine = [link for link in self.links if link.network == word]
            slow = slow_links(replace(self._facts, links=tuple(mine)).bandwidths(word))
            pairs = [(link.client, link.server) for link in mine]
            doubted = [(a, b) for a, b in pairs if (a, b) in slow or (b, a) in slow]
            rounds += [Round(network=word, pairs=some) for some in disjoint(doubted)]
        return rounds

    def _again(self, one: Round) -> None:
        """Keep the better of two measurements: what passes disturbs a link once, what is broken stays."""
        second = {(link.client, link.server): link for link in self._measured(one) if not link.error}
        self.links = [
            better(link, second[link.client, link.server])
            if link.network == one.network and (link.client, link.server) in second
            else link
            for link in self.links
        ]

    # ------------------------------------------------------------ one round

    def _measured(self, one: Round) -> list[Link]:
        """The round's links; who does not answer is recorded so, and its late answer is not taken."""
        for pair in one.pairs:
            self._mailbox.order([self._first[pair[0]]], self._order(one.network, pair))
        missing = set(one.pairs)
        found = []
        for link in self._answers(one.network) if missing else ():
            if (link.client, link.server) in missing:
                missing.remove((link.client, link.server))
                found.append(link)
            if not missing:
                return found
        silent = (Link(network=one.network, client=a, server=b, error="no answer") for a, b in sorted(missing))
        return [*found, *silent]

    def _answers(self, network: str) -> Iterator[Link]:
        for _, said in self._mailbox.news_within(self._plan.round_s + GRACE_S + LATE_S):
            if isinstance(said, Link) and said.network == network:
                yield said

    def _order(self, word: str, pair: Pair) -> Measure:
        (client, server), network = pair, self._networks[word]
        return Measure(
            network=word,
            client=client,
            server=server,
            source=network.places[client],
            address=network.places[server].address,
            port=self._facts.prepared[server].ports[word],
            token=self._token,
            latency_s=self._plan.latency_s,
            bandwidth_s=self._plan.bandwidth_s,
            limit_s=self._plan.round_s + GRACE_S,
        )


def hopeless(links: Sequence[Link], network: str) -> set[str]:
    """Nodes whose last links on a network failed, all of them with nodes that others reach."""
    mine = [link for link in links if link.network == network]
    alive = {node for link in mine if not link.error for node in (link.client, link.server)}
    failed: dict[str, int] = {}
    for link in mine:
        for node, other in ((link.client, link.server), (link.server, link.client)):
            if not link.error:
                failed[node] = 0
            elif other in alive:
                failed[node] = failed.get(node, 0) + 1
    return {node for node, count in failed.items() if count >= DEAD_AFTER}


def better(one: Link, other: Link) -> Link:
    """The faster of two measurements in every respect; `other` had no error, so none stays."""
    return replace(
        one,
        error="",
        latency_s=min(one.latency_s or 0.0, other.latency_s or 0.0),
        forth_bits_per_s=max(one.forth_bits_per_s or 0.0, other.forth_bits_per_s or 0.0),
        back_bits_per_s=max(one.back_bits_per_s or 0.0, other.back_bits_per_s or 0.0),
    )
