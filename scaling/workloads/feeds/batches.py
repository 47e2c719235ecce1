"""Samples that a feed takes its batches from, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scaling.workloads.feeds.sampler import Indices, Sampler

# Float images (batch, channels, height, width) or tokens (batch, length), and their labels: (batch,), or
# (batch, length) where each place has one.
Inputs: TypeAlias = NDArray[np.float32] | NDArray[np.int64]
Batch: TypeAlias = tuple[Inputs, NDArray[np.int64]]


class Samples(Protocol):
    """All samples of a split."""

    def __len__(self) -> int:
        """How many there are."""

    def take(self, indices: Indices, seed: Sequence[int]) -> Batch:
        """These, and their labels. What is left to chance is drawn by the seed."""


class Batches(Protocol):
    """What gives a batch for each step."""

    def batch(self, step: int) -> Batch:
        """Samples and labels."""


class Shuffled:
    """The feed of one rank: its shard of the samples, in a new order each epoch."""

    fixed = False

    def __init__(self, samples: Samples, *, batch_size: int, seed: int, rank: int, world_size: int) -> None:
        self._samples = samples
        self._sampler = Sampler(len(samples), batch_size=batch_size, seed=seed, rank=rank, world_size=world_size)
        self._seed = (seed, rank)

    def indices(self, step: int) -> Indices:
        """Which samples the batch of a step holds."""
        return self._sampler.indices(step)

    def batch(self, step: int) -> Batch:
        """The samples and labels of a step."""
        return self._samples.take(self.indices(step), (*self._seed, step))


class Held:
    """The first batch of a feed in every step, so that nobody waits for the next one."""

    fixed = True

    def __init__(self, feed: Batches) -> None:
        self._batch = feed.batch(0)

    def batch(self, _step: int) -> Batch:
        """That of step 0."""
        return self._batch


# ---------------------------------------------------------------- parts
#
# A part of the samples of a split: always the same ones, of each class as many as there can be.


# The part is no repetition: seeds of a training share it, as they share what is held out.
DRAWN_BY = 0


@runtime_checkable
class Labelled(Protocol):
    """Samples whose classes are known without reading them: `labels` (count,), None where they are not."""

    @property
    def labels(self) -> NDArray[np.int64] | None: ...


class Part:
    """So many of the samples, in their order."""

    def __init__(self, samples: Samples, count: int) -> None:
        labels = samples.labels if isinstance(samples, Labelled) else None
        self._samples, self._chosen = samples, chosen(len(samples), count, labels)

    def __len__(self) -> int:
        return len(self._chosen)

    def take(self, indices: Indices, seed: Sequence[int]) -> Batch:
        """These of the part, and their labels."""
        return self._samples.take(self._chosen[indices], seed)


def chosen(samples: int, count: int, labels: NDArray[np.int64] | None) -> Indices:
    """Which of the samples are taken, ascending: drawn by chance, and where their `labels` (samples,) are known,
    one of each class in turn, so that classes differ by one at most while all last. More contain fewer."""
    drawn = np.random.default_rng(DRAWN_BY).permutation(samples)
    if labels is not None:
        order = np.argsort(labels[drawn], kind="stable")
        sizes = np.bincount(labels[drawn])
        turn = np.empty(samples, np.int64)
        turn[order] = np.concatenate([np.arange(size) for size in sizes])
        drawn = drawn[np.argsort(turn, kind="stable")]
    return np.sort(drawn[:count])
