"""Rank 0's side of the messages between the sweep and the agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from scaling.errors import Interrupted
from scaling.records.messages import ENCODER, SWEEP_DECODER, Dismiss, Enrol, Signalled, ToAgent, ToSweep
from scaling.transport.base import Cluster


class Mailbox:
    """Rank 0's side of the messages: orders out, reports in, taking turns with its own agent.

    `turn` lets the agent of this rank (in tests: of all ranks) work, `wait` sleeps until there may be news.
    """

    def __init__(self, cluster: Cluster, *, turn: Callable[[], None], wait: Callable[[], None]) -> None:
        self._cluster = cluster
        self._turn = turn
        self._wait = wait
        self.signalled: int | None = None

    def order(self, ranks: Sequence[int], order: ToAgent) -> None:
        """Send one order to the agents of `ranks`."""
        data = ENCODER.encode(order)
        for rank in ranks:
            self._cluster.send(rank, "agent", data)

    def news(self) -> Iterator[ToSweep]:
        """What has arrived; takes a turn first, and sleeps when there was nothing."""
        self._turn()
        found = False
        while (message := self._cluster.receive("sweep")) is not None:
            found = True
            for said in SWEEP_DECODER.decode(message[1]):
                if isinstance(said, Signalled):
                    self.signalled = self.signalled or said.signal
                yield said
        if not found:
            self._wait()

    def enrolled(self, within_s: float, clock: Callable[[], float] = time.monotonic) -> tuple[Enrol, ...]:
        """Wait for every rank's Enrol; those that came, by rank, when the time is over."""
        enrols: dict[int, Enrol] = {}
        deadline_s = clock() + within_s
        while len(enrols) < self._cluster.size and clock() < deadline_s:
            self._turn()
            while (message := self._cluster.receive("sweep")) is not None:
                for said in SWEEP_DECODER.decode(message[1]):
                    if isinstance(said, Enrol):
                        enrols[message[0]] = said
                    elif isinstance(said, Signalled):
                        raise Interrupted(said.signal)
            self._wait()
        return tuple(enrols[rank] for rank in sorted(enrols))

    def dismiss(self, size: int) -> None:
        """Tell every agent that the launch is over."""
        self.order(range(size), Dismiss())
