"""A part of the samples of a split: always the same ones, of each class as many as there can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scaling.workloads.feeds.batches import Batch, Samples
from scaling.workloads.feeds.sampler import Indices

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
