"""The samples of a rank's batches: a pure function of seed, rank, world size and step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Sampler:
    """An endless stream of one rank's shard of `count` samples, in a new order each epoch, in full batches. Shards
    (`shard`: indices) are disjoint and cover all samples, if there are no more ranks than samples."""

    def __init__(self, count: int, *, batch_size: int, seed: int, rank: int, world_size: int) -> None:
        everything = np.random.default_rng(seed).permutation(count)
        self.shard = everything[rank % count :: world_size]
        self._batch_size = batch_size
        self._order = lru_cache(maxsize=2)(
            lambda epoch: np.random.default_rng((seed, rank, epoch)).permutation(self.shard)
        )

    def __len__(self) -> int:
        return len(self.shard)

    def indices(self, step: int) -> Indices:
        positions = step * self._batch_size + np.arange(self._batch_size)
        epochs, offsets = np.divmod(positions, len(self.shard))
        return np.concatenate(
            [self._order(epoch)[offsets[epochs == epoch]] for epoch in range(epochs[0], epochs[-1] + 1)]
        )


def once(count: int, *, batch_size: int, rank: int, world_size: int) -> Iterator[Indices]:
    """Yield batches of one rank's shard of `count` samples, each once, in order. The last may be smaller."""
    shard = np.arange(rank, count, world_size)
    for first in range(0, len(shard), batch_size):
        yield shard[first : first + batch_size]
