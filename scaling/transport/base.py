"""`Cluster`, which carries messages between ranks, its form inside one process, and the mailbox of rank 0."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from scaling.errors import Interrupted, SilentRanks
from scaling.records.messages import ENCODER, Signalled
from scaling.text import several

Box = Literal["agent", "sweep"]


class Cluster(Protocol):
    """Ranks that exchange small byte strings, each delivered once, in order per sender and box. No method blocks:
    a rank that waits in MPI uses a core (scaling/README.md). Rank 0 has two boxes: its agent's and the sweep's."""

    rank: int
    size: int
    library: str
    said: str  # how the ranks are known: by torchrun (RANK, WORLD_SIZE)

    def send(self, rank: int, box: Box, message: bytes) -> None:
        """Queue `message` for `rank` and return at once."""

    def receive(self, box: Box) -> tuple[int, bytes] | None:
        """Return the next message as (sender, message), or None."""

    def close(self) -> None:
        """Deliver queued messages and leave, together with all ranks."""

    def abort(self, code: int) -> None:
        """End all ranks of the launch with `code`, at once."""


class Hub:
    """Queues for `size` ranks inside one process, for a run of one rank without MPI, and for tests. Agents take
    turns without threads, so events always have the same order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.boxes: defaultdict[tuple[int, Box], deque[tuple[int, bytes]]] = defaultdict(deque)

    def rank(self, rank: int) -> InlineCluster:
        """Return the cluster as `rank` sees it."""
        return InlineCluster(self, rank)


class InlineCluster:
    """A `Cluster` over a Hub."""

    library, said = "none (one process)", ""

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub, self.rank, self.size = hub, rank, hub.size

    def send(self, rank: int, box: Box, message: bytes) -> None:
        self._hub.boxes[rank, box].append((self.rank, message))

    def receive(self, box: Box) -> tuple[int, bytes] | None:
        queue = self._hub.boxes[self.rank, box]
        return queue.popleft() if queue else None

    def close(self) -> None:
        return None

    def abort(self, code: int) -> None:
        del code  # the launch is this process, which ends with its own code


# ---------------------------------------------------------------- mailbox
# Orders to the ranks and news from them, as MessagePack.

Order = TypeVar("Order")
News = TypeVar("News")
Answer = TypeVar("Answer")
ENROL_S = 60.0
# Limit of a rank's silence, longer than any order keeps an agent busy. At most LOOK_S between two looks counts,
# because rank 0 or the machine may have been suspended.
SILENT_S, LOOK_S = 120.0, 1.0


def send_news(cluster: Cluster, *news: msgspec.Struct) -> None:
    cluster.send(0, "sweep", ENCODER.encode(news))


class Mailbox(Generic[Order, News]):
    """Rank 0's side of the messages of a command: orders to the ranks and news from them.

    `decoder`: reads a tuple of news, of which `Signalled` is one.
    `turn`, `wait`: let this rank (in tests: all ranks) work; sleep until there may be news.
    `silent_s`: seconds that a rank may be silent.
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
        self.size, self.clock = cluster.size, clock
        self.signalled: int | None = None  # the first signal that asked any rank to end
        self.hosts: Sequence[str] = ()
        self._cluster, self._decoder, self._turn, self._wait = cluster, decoder, turn, wait
        self._silent_s = silent_s
        self._looked_s, self._awake_s, self._due_s = clock(), 0.0, LOOK_S
        self._heard_s = [0.0] * cluster.size  # `_awake_s` at the last message of each rank

    def order(self, ranks: Sequence[int], order: Order) -> None:
        data = ENCODER.encode(order)
        for rank in ranks:
            self._cluster.send(rank, "agent", data)

    def order_all(self, order: Order) -> None:
        self.order(range(self.size), order)

    def news(self) -> Iterator[tuple[int, News]]:
        """Take a turn and yield news as (rank, message); sleep if there is none. Raises SilentRanks."""
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
            what = "the process, its node or its network is stuck; mend it, then continue with --resume"
            raise SilentRanks(f"no message from {several(list(named))} for {self._silent_s:g} s: {what}", silent)

    def answers(self, kind: type[Answer], ranks: Collection[int], within_s: float) -> dict[int, Answer]:
        """Return the newest message of this kind from each of `ranks` that answers in time; others are dropped.
        Raises Interrupted on a signal."""
        answers: dict[int, Answer] = {}
        for rank, said in self.news_within(within_s):
            if isinstance(said, kind) and rank in ranks:
                answers[rank] = said
            if len(answers) == len(ranks):
                break
        self._obey_signal()
        return answers

    def news_within(self, within_s: float) -> Iterator[tuple[int, News]]:
        """Yield what arrives within the time, as (rank, message). Raises Interrupted on a signal."""
        end_s = self.clock() + within_s
        while self.clock() < end_s:
            yield from self.news()
            self._obey_signal()

    def look(self) -> None:
        """Take a turn and drop what has arrived. Raises Interrupted on a signal."""
        for _ in self.news():
            pass
        self._obey_signal()

    def _obey_signal(self) -> None:
        if self.signalled is not None:
            raise Interrupted(self.signalled)
