"""The connections between workers and parameter servers: one Gloo group of two for each pair."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore, Work

from scaling.frameworks.pytorch import store as torch_store
from scaling.records.task import Task

# Under this key rank 0 tells the servers how long the flat vector is.
ELEMENTS = "elements"
GONE = ("connection closed", "connection reset", "not connected", "broken pipe")


class Link:
    """One worker's connection to one server, from either end.

    A group for each pair has a thread of its own for its socket, needs no connections among the workers, and
    when one breaks the others live on. Messages are told apart by their tags; the receiver decides where they
    go: nothing is copied on the way but by the kernel.
    """

    def __init__(self, store: Store, *, server: int, worker: int, serves: bool, timeout: timedelta) -> None:
        """Connect, once the other end does the same; raises RuntimeError after `timeout`."""
        prefix = PrefixStore(f"server {server} worker {worker}", store)
        self._peer = 1 if serves else 0
        # Without dist.isend around it a message starts in 7 microseconds, with it in 57.
        # The stubs of its class lack the point-to-point calls.
        self._group: Any = ProcessGroupGloo(prefix, 1 - self._peer, 2, timeout)

    def send(self, tensor: Tensor, tag: int) -> Work:
        """Begin to send; the tensor must stay as it is until `wait()` of the result returns."""
        work: Work = self._group.send([tensor], self._peer, tag)
        return work

    def receive(self, tensor: Tensor, tag: int) -> Work:
        """Begin to receive; the tensor has arrived when `wait()` of the result returns."""
        work: Work = self._group.recv([tensor], self._peer, tag)
        return work


def open_store(task: Task, *, hosts: bool, timeout: timedelta) -> TCPStore:
    """The store in which the ends of links find each other: server 0 hosts it on its reserved port."""
    first = task.servers[0]
    return torch_store.open_store(first.address, first.port, hosts=hosts, timeout=timeout)


def gone(error: RuntimeError) -> bool:
    """Whether an error of `send`, `receive` or `wait()` says that the other end is no more."""
    return any(words in str(error).lower() for words in GONE)
