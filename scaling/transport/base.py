"""What carries messages between ranks: `Cluster`, and its form inside one process."""

from __future__ import annotations

from collections import deque
from typing import Literal, Protocol

Box = Literal["agent", "sweep"]


class Cluster(Protocol):
    """Ranks that exchange small byte strings, never blocking.

    A message is delivered once, in order per sender and box. Rank 0 has two boxes: its agent's
    and the sweep's. Nothing may block in here: a waiting MPI rank burns a core (scaling/README.md).
    """

    rank: int
    size: int
    library: str

    def send(self, rank: int, box: Box, message: bytes) -> None:
        """Queue `message` for `rank`; returns at once."""

    def receive(self, box: Box) -> tuple[int, bytes] | None:
        """The next waiting message as (sender, message), or None."""

    def close(self) -> None:
        """Deliver what is queued and leave, together with all ranks."""

    def abort(self, code: int) -> None:
        """End all ranks of the launch with `code`, now."""


class Hub:
    """The post office of `size` ranks inside one process: it carries messages through queues, in a fixed order.

    It serves a run of one rank without MPI, and tests: agents take turns without threads, so that the order of
    events is the same each time.
    """

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
        self._hub.aborted = code
