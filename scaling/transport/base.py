"""`Cluster`, the interface that carries messages between ranks, and its form inside one process."""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol

Box = Literal["agent", "sweep"]


class Cluster(Protocol):
    """Ranks that exchange small byte strings, each delivered once, in order per sender and box. No method blocks:
    a rank that waits in MPI uses a core (scaling/README.md). Rank 0 has two boxes: its agent's and the sweep's."""

    rank: int
    size: int
    library: str

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
        self.boxes: dict[tuple[int, Box], deque[tuple[int, bytes]]] = {}
        for rank in range(size):
            self.boxes[rank, "agent"] = deque()
            self.boxes[rank, "sweep"] = deque()

    def rank(self, rank: int) -> InlineCluster:
        """Return the cluster as `rank` sees it."""
        return InlineCluster(self, rank)


class InlineCluster:
    """A `Cluster` over a Hub."""

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
        del code  # the launch is this process, which ends with its own code
