"""The connections between workers and parameter servers: one Gloo group of two for each pair."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore, Work

from scaling.frameworks.pytorch import store as torch_store
from scaling.records.task import Task

# The key under which rank 0 stores the length of the flat vector.
ELEMENTS = "elements"
GONE = ("connection closed", "connection reset", "not connected", "broken pipe")


class Link:
    """One worker's connection to one server, from either end. A group for each pair has its own thread for its
    socket. Workers need no connections among them, and if one link breaks the others still work. Tags distinguish
    messages. The receiver gives the memory: only the kernel copies."""

    def __init__(self, store: Store, *, server: int, worker: int, serves: bool, timeout: timedelta) -> None:
        """Connect, once the other end does too. Raises RuntimeError after `timeout`."""
        prefix = PrefixStore(f"server {server} worker {worker}", store)
        self._peer = 1 if serves else 0
        # Called directly, a message starts in 7 microseconds, by dist.isend in 57.
        # The stubs lack the point-to-point calls.
        self._group: Any = ProcessGroupGloo(prefix, 1 - self._peer, 2, timeout)

    def send(self, tensor: Tensor, tag: int) -> Work:
        """Begin to send. The tensor must not change until `wait()` of the result returns."""
        work: Work = self._group.send([tensor], self._peer, tag)
        return work

    def receive(self, tensor: Tensor, tag: int) -> Work:
        """Begin to receive. The tensor has arrived when `wait()` of the result returns."""
        work: Work = self._group.recv([tensor], self._peer, tag)
        return work


def open_store(task: Task, *, hosts: bool, timeout: timedelta) -> TCPStore:
    """Open the store through which ends of links find each other. Server 0 hosts it on its reserved port."""
    first = task.servers[0]
    return torch_store.open_store(first.address, first.port, hosts=hosts, timeout=timeout)


def gone(error: RuntimeError) -> bool:
    """Return whether an error of `send`, `receive` or `wait()` says that the other end has gone."""
    return any(words in str(error).lower() for words in GONE)
