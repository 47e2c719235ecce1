"""What workers and parameter servers of torch:ps-sync and torch:ps-async agree on: buckets, tags, connections.

All parameters are in one flat vector in backward's order (the model's, reversed). It is cut every
`bucket_cap_mb`, also inside tensors. Only the last bucket is smaller: it has the model's first layers. Their
gradients come last and their parameters are needed first, so nothing hides its exchange. Sizes are in float32
elements.

Messages are those of c10d over Gloo, which receives in place. torch.distributed.rpc allocates and copies every
message, and used more CPU: 97 + 189 ms against 62 + 174 ms for 25.6 M floats (worker + server).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, TCPStore, Work

from scaling.frameworks.pytorch import group
from scaling.frameworks.pytorch.strategies import ParameterServer
from scaling.records.point import Point, Record
from scaling.records.task import Task

MIB = 1 << 20
FLOAT32_BYTES = 4
# 64 bytes, torch's alignment of tensors, so that computing is not slower.
ALIGNMENT = 16
# The key under which rank 0 stores the length of the flat vector.
ELEMENTS = "elements"
GONE = ("connection closed", "connection reset", "not connected", "broken pipe")


class Terms(NamedTuple):
    """MiB of a bucket on this device; whether gradients travel in half precision, and servers wait for all."""

    cap_mb: float
    half: bool
    synchronous: bool


def terms(point: Point) -> Terms:
    options = ParameterServer.options_of(point)
    cap_mb = options["bucket_cap_mb"] / point.hardware.shrink
    return Terms(cap_mb, options["compression"] == "fp16", ParameterServer().traits(point.strategy).synchronous)


class Bucket(Record, frozen=True, kw_only=True):
    """Elements `start` to `stop` of the flat vector, with its number `index`, on server `server`."""

    index: int
    start: int
    stop: int
    server: int


class Tags(Record, frozen=True, kw_only=True):
    """The tags of one connection's messages; `count` is the number of all buckets."""

    count: int

    def push(self, index: int) -> int:
        """Tag a gradient, to the server."""
        return index

    def pull(self, index: int) -> int:
        """Tag parameters, to a worker."""
        return self.count + index

    @property
    def behind(self) -> int:
        """Tag a step's staleness, summed over the server's buckets (float64), to a worker."""
        return 2 * self.count


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where each tensor starts in the flat vector, and its length. Gaps have up to 15 elements."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return starts, end


def cut(elements: int, cap_mb: float, servers: int) -> list[Bucket]:
    """Cut a flat vector into buckets, each for the least loaded server: loads differ by at most one bucket."""
    cap = max(1, int(cap_mb * MIB / FLOAT32_BYTES) // ALIGNMENT) * ALIGNMENT
    load = [0] * servers
    made: list[Bucket] = []
    for start in range(0, elements, cap):
        stop = min(start + cap, elements)
        server = load.index(min(load))
        load[server] += stop - start
        made.append(Bucket(index=len(made), start=start, stop=stop, server=server))
    return made


def touched(buckets: Sequence[Bucket], start: int, size: int) -> list[int]:
    """Return the buckets with some of the `size` elements from `start` on."""
    return [each.index for each in buckets if each.start < start + size and start < each.stop]


# ---------------------------------------------------------------- connections


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
    return group.open_store(first.address, first.port, hosts=hosts, timeout=timeout)


def gone(error: RuntimeError) -> bool:
    """Return whether an error of `send`, `receive` or `wait()` says that the other end has gone."""
    return any(words in str(error).lower() for words in GONE)
