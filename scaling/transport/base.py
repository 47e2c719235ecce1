"""What agents need of whatever carries their messages."""

from __future__ import annotations

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
