"""The samples and batches of a feed: shuffled, held, or a part of a split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

# ---------------------------------------------------------------- sampler
#
# The samples of a rank's batches: a pure function of seed, rank, world size and step.


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


# Float images (batch, channels, height, width) or tokens (batch, length), and one label per sample or place.
Inputs: TypeAlias = NDArray[np.float32] | NDArray[np.int64]
Batch: TypeAlias = tuple[Inputs, NDArray[np.int64]]


class Samples(Protocol):
    """All samples of a split."""

    def __len__(self) -> int:
        """Return how many there are."""

    def take(self, indices: Indices, seed: Sequence[int]) -> Batch:
        """Return the samples at these indices, and their labels. The seed is for random choices."""


class Shuffled:
    """The feed of one rank: its shard of the samples, in a new order each epoch."""

    fixed = False

    def __init__(self, samples: Samples, *, batch_size: int, seed: int, rank: int, world_size: int) -> None:
        self._samples = samples
        self._sampler = Sampler(len(samples), batch_size=batch_size, seed=seed, rank=rank, world_size=world_size)
        self._seed = (seed, rank)

    def indices(self, step: int) -> Indices:
        return self._sampler.indices(step)

    def batch(self, step: int) -> Batch:
        return self._samples.take(self.indices(step), (*self._seed, step))


class Fixed:
    """One batch in every step, so that no step waits for a batch."""

    fixed = True

    def __init__(self, batch: tuple[Any, Any]) -> None:
        self._batch = batch

    def batch(self, _step: int) -> tuple[Any, Any]:
        return self._batch


# ---------------------------------------------------------------- parts


# Fixed: all seeds of a training share the part, as they share the held-out data.
DRAWN_BY = 0


class Part:
    """A fixed part of the samples, in their order."""

    def __init__(self, samples: Samples, count: int) -> None:
        labels = getattr(samples, "labels", None)  # their classes (count,), if known without reading them
        self._samples, self._chosen = samples, chosen(len(samples), count, labels)

    def __len__(self) -> int:
        return len(self._chosen)

    def take(self, indices: Indices, seed: Sequence[int]) -> Batch:
        return self._samples.take(self._chosen[indices], seed)


def chosen(samples: int, count: int, labels: NDArray[np.int64] | None) -> Indices:
    """Choose `count` samples at random and return their indices, ascending. A larger choice contains a smaller
    one. With known `labels` (samples,) classes take turns: counts differ by at most one until a class is used up.
    """
    drawn = np.random.default_rng(DRAWN_BY).permutation(samples)
    if labels is not None:
        order = np.argsort(labels[drawn], kind="stable")
        sizes = np.bincount(labels[drawn])
        turn = np.empty(samples, np.int64)
        turn[order] = np.concatenate([np.arange(size) for size in sizes])
        drawn = drawn[np.argsort(turn, kind="stable")]
    return np.sort(drawn[:count])
