"""How parameters are cut into buckets, and buckets are assigned to servers. Sizes are in float32 elements.

All parameters are in one flat vector in backward's order (the model's, reversed). It is cut every `bucket_cap_mb`,
also inside tensors. Only the last bucket is smaller: it has the model's first layers. Their gradients come last
and their parameters are needed first, so nothing hides its exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.records.point import Record

MIB = 1 << 20
FLOAT32_BYTES = 4
# 64 bytes, torch's alignment of tensors, so that computing is not slower.
ALIGNMENT = 16


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
