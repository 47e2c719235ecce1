"""A launch inside one process: `Hub(n)` carries messages through queues, in a fixed order.

Serves a run without any MPI (one rank), and tests, where every agent's turn is taken one after the
other: no threads, so that the order of events is the same each time.
"""

from __future__ import annotations

from collections import deque

from scaling.transport.base import Box


class Hub:
    """The post office of `size` inline ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.boxes: dict[tuple[int, Box], deque[tuple[int, bytes]]] = {}
        self.aborted: int | None = None
        for rank in range(size):
            self.boxes[rank, "agent"] = deque()
            self.boxes[rank, "sweep"] = deque()

    def rank(self, rank: int) -> InlineCluster:
        """The cluster as `rank` sees it."""
        return InlineCluster(self, rank)


class InlineCluster:
    """`cluster.base.Cluster` over a Hub."""

    library = "none (one process)"

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub = hub
        self.rank = rank
        self.size = hub.size

    def send(self, rank: int, box: Box, message: bytes) -> None:
        self._hub.boxes[rank, box].append((self.rank, message))

    def receive(self, box: Box) -> tuple[int, bytes] | None:
        queue = self._hub.boxes[self.rank, box]
        return queue.popleft() if queue else None

    def close(self) -> None:
        return None

    def abort(self, code: int) -> None:
        self._hub.aborted = code
