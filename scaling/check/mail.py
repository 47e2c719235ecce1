"""Rank 0's mail in the preflight: orders out, news in, taking turns with its own prober."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from scaling.check.messages import ENCODER, LEAD_DECODER, Signalled, ToLead, ToRank
from scaling.errors import Interrupted
from scaling.transport.base import Cluster


class Mail:
    """`turn` lets this rank's prober work (in tests: all of them), `wait` sleeps until there may be news."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        turn: Callable[[], None],
        wait: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = cluster.size
        self.clock = clock
        self._cluster = cluster
        self._turn = turn
        self._wait = wait

    def order(self, rank: int, order: ToRank) -> None:
        """Send an order; returns at once."""
        self._cluster.send(rank, "agent", ENCODER.encode(order))

    def news(self, within_s: float) -> Iterator[tuple[int, ToLead]]:
        """What arrives within the time, as (rank, message). Raises Interrupted on a signal."""
        end_s = self.clock() + within_s
        while self.clock() < end_s:
            self._turn()
            while (message := self._cluster.receive("sweep")) is not None:
                said = LEAD_DECODER.decode(message[1])
                if isinstance(said, Signalled):
                    raise Interrupted(said.signal)
                yield message[0], said
            self._wait()
