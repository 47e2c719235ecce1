"""How parameters are cut into buckets, and buckets dealt to servers: pure arithmetic on float32 elements.

All parameters stand in one flat vector, in the order in which backward makes their gradients (the model's,
reversed). The vector is cut every `bucket_cap_mb`, without regard to where parameters end: a tensor larger than
a bucket is cut too, and only the last bucket is smaller. That one holds the model's first layers, whose
gradients come last and whose parameters are wanted first: its way to the server and back nothing can hide.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.records.point import Record

MIB = 1 << 20
FLOAT32_BYTES = 4
# 64 bytes, as torch's allocator aligns tensors: the parameters are no slower to compute with.
ALIGNMENT = 16


class Bucket(Record, frozen=True, kw_only=True):
    """Elements `start` to `stop` of the flat vector; number `index`, on server `server`."""

    index: int
    start: int
    stop: int
    server: int


class Tags(Record, frozen=True, kw_only=True):
    """What tells the messages of one connection apart; `count` is the number of all buckets."""

    count: int

    def push(self, index: int) -> int:
        """A gradient, to the server."""
        return index

    def pull(self, index: int) -> int:
        """Parameters, to a worker."""
        return self.count + index

    @property
    def behind(self) -> int:
        """A step's staleness summed over the server's buckets (float64), to a worker."""
        return 2 * self.count


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each tensor of so many elements starts in the flat vector, and the vector's length.

    Between two tensors up to 15 elements may be unused.
    """
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return starts, end


def cut(elements: int, cap_mb: float, servers: int) -> list[Bucket]:
    """The buckets of a flat vector, each dealt to the server that has the fewest elements so far.

    No two servers then differ by more than one bucket.
    """
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
    """The buckets that hold some of the `size` elements from `start` on."""
    return [each.index for each in buckets if each.start < start + size and start < each.stop]
