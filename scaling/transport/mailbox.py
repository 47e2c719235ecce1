"""Rank 0's mailbox: orders out to the other ranks, news in from them, as MessagePack."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from typing import Generic, TypeVar

import msgspec

from scaling.errors import Interrupted, SilentRanks
from scaling.records.messages import ENCODER, Signalled
from scaling.text import several
from scaling.transport.base import Cluster

Order = TypeVar("Order")
News = TypeVar("News")
Answer = TypeVar("Answer")
# How long ranks may take to say that they are there.
ENROL_S = 60.0
# How long no word may come from a rank, longer than any order keeps an agent from saying one; and how much of the
# time between two looks counts at most, since rank 0 or the whole machine may have been suspended.
SILENT_S, LOOK_S = 120.0, 1.0


def send_news(cluster: Cluster, *news: msgspec.Struct) -> None:
    """Send messages to rank 0's mailbox as one."""
    cluster.send(0, "sweep", ENCODER.encode(news))


class Mailbox(Generic[Order, News]):
    """Rank 0's side of the messages of a command: orders to the ranks, news from them, taking turns with its own.

    `decoder` reads a tuple of news, of which `Signalled` is one. `turn` lets this rank (in tests: all ranks) work,
    `wait` sleeps until there may be news. A rank on one of `hosts` may be silent for `silent_s`.
    """

    def __init__(
        self,
        cluster: Cluster,
        decoder: msgspec.msgpack.Decoder[tuple[News, ...]],
        *,
        turn: Callable[[], None],
        wait: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        silent_s: float = inf,
    ) -> None:
        self.size = cluster.size
        self.clock = clock
        self.signalled: int | None = None  # the first signal that any rank was told by to end
        self._cluster = cluster
        self._decoder = decoder
        self._turn = turn
        self._wait = wait
        self.hosts: Sequence[str] = ()
        self._silent_s = silent_s
        self._looked_s, self._awake_s, self._due_s = clock(), 0.0, LOOK_S
        self._heard_s = [0.0] * cluster.size  # when each rank was heard last, by `_awake_s`

    def order(self, ranks: Sequence[int], order: Order) -> None:
        """Send one order to `ranks`; returns at once."""
        data = ENCODER.encode(order)
        for rank in ranks:
            self._cluster.send(rank, "agent", data)

    def order_all(self, order: Order) -> None:
        """Send one order to every rank."""
        self.order(range(self.size), order)

    def news(self) -> Iterator[tuple[int, News]]:
        """What has arrived, as (rank, message); takes a turn first, and sleeps when there was nothing.

        Raises SilentRanks.
        """
        self._turn()
        now_s = self.clock()
        self._awake_s += min(now_s - self._looked_s, LOOK_S)
        self._looked_s = now_s
        arrived = False
        while (message := self._cluster.receive("sweep")) is not None:
            arrived = True
            self._heard_s[message[0]] = self._awake_s
            for said in self._decoder.decode(message[1]):
                if isinstance(said, Signalled):
                    self.signalled = self.signalled or said.signal
                else:
                    yield message[0], said
        if self._awake_s >= self._due_s:
            self._due_s = self._awake_s + LOOK_S
            self._check_silence()
        if not arrived:
            self._wait()

    def _check_silence(self) -> None:
        silent = [rank for rank, heard_s in enumerate(self._heard_s) if self._awake_s - heard_s > self._silent_s]
        if silent:
            named = (f"rank {rank} on {self.hosts[rank]}" if self.hosts else f"rank {rank}" for rank in silent)
            what = "the process, the node or its network stands still; mend it, then go on with --resume"
            raise SilentRanks(f"no word from {several(list(named))} for {self._silent_s:g} s: {what}", silent)

    def answers(self, kind: type[Answer], ranks: Collection[int], within_s: float) -> dict[int, Answer]:
        """The newest message of this kind from each of `ranks`; of those that came, when the time is over before.

        Other messages that arrive meanwhile are dropped. Raises Interrupted on a signal.
        """
        answers: dict[int, Answer] = {}
        for rank, said in self.news_within(within_s):
            if isinstance(said, kind) and rank in ranks:
                answers[rank] = said
            if len(answers) == len(ranks):
                break
        return answers

    def news_within(self, within_s: float) -> Iterator[tuple[int, News]]:
        """What arrives within the time, as (rank, message). Raises Interrupted on a signal."""
        end_s = self.clock() + within_s
        while self.clock() < end_s:
            yield from self.news()
            if self.signalled is not None:
                raise Interrupted(self.signalled)

    def look(self) -> None:
        """Take a turn, and drop what has arrived. Raises Interrupted on a signal."""
        for _ in self.news():
            pass
        if self.signalled is not None:
            raise Interrupted(self.signalled)
