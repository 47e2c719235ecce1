"""Messages over MPI: what the library's probe says first is not believed."""

from __future__ import annotations

from collections import deque
from typing import Any

from scaling.transport.mpi import TAGS, MpiCluster


class Sluggish:
    """An MPI library, and its COMM_WORLD, whose probe looks at what has arrived before it looks for more."""

    ANY_SOURCE = ANY_TAG = -1
    BYTE = "byte"
    rank, size = 0, 2

    def __init__(self, *sent: bytes) -> None:
        self.COMM_WORLD = self
        self._sent = deque(sent)
        self._arrived: deque[bytes] = deque()

    def Get_library_version(self) -> str:
        return "Sluggish MPI 1.0, for tests"

    def Status(self) -> Sluggish:
        return self

    def Iprobe(self, source: int, tag: int, status: Any) -> bool:
        found = bool(self._arrived)
        self._arrived.extend(self._sent)
        self._sent.clear()
        return found

    def Get_source(self) -> int:
        return 1

    def Get_tag(self) -> int:
        return TAGS["agent"]

    def Get_count(self, kind: str) -> int:
        return len(self._arrived[0])

    def Recv(self, into: Any, source: int, tag: int) -> None:
        into[0][:] = self._arrived.popleft()


def test_what_came_during_a_sleep_is_found_at_the_first_look() -> None:
    """Else agents would sleep twice: Open MPI's first probe never finds it."""
    cluster = MpiCluster(Sluggish(b"order"))
    assert cluster.receive("agent") == (1, b"order")
    assert cluster.receive("agent") is None
