"""1,797 real handwritten digits of 8 x 8 pixels (UCI "Optical Recognition of Handwritten Digits", test
set), resized to what the model takes.

The file that scikit-learn ships is read directly: its `load_digits` gives the same numbers after an
import of 1.1 s, which every worker of every point would pay; reading takes 5 ms.
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIDE = 8

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


def read() -> tuple[NDArray[np.uint8], Labels]:
    """Pixels 0..16 (1797, 8, 8) and labels (1797,). Raises ModuleNotFoundError without scikit-learn."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / "datasets/data/digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)


@lru_cache(maxsize=1)
def load(height: int, width: int) -> tuple[Images, Labels]:
    """Digits in one channel as float32 (1797, 1, height, width) of mean 0 and deviation 1, labels (1797,).

    All feeds of a process look at the same arrays, which nobody can write to.
    """
    pixels, labels = read()
    resized = bilinear(height) @ pixels.astype(np.float32) @ bilinear(width).T
    images = ((resized - resized.mean()) / resized.std())[:, None]
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


def bilinear(size: int) -> Images:
    """The (size, 8) matrix that resizes one axis from 8 pixels: linear between pixel centres, the edge
    repeated outside, as torch's `interpolate(align_corners=False)` when enlarging."""
    positions = (np.arange(size) + 0.5) * SIDE / size - 0.5
    columns = [np.interp(positions, np.arange(SIDE), pixel) for pixel in np.eye(SIDE)]
    return np.stack(columns, axis=1).astype(np.float32)


class Digits:
    """An endless stream of one rank's shard, in a new order each epoch; every batch is full.

    The shards of a world are disjoint and cover all images (while there are fewer ranks than images).
    """

    fixed = False

    def __init__(
        self, image: tuple[int, int, int], *, batch_size: int, seed: int, rank: int, world_size: int
    ) -> None:
        self._channels, height, width = image
        self._images, self._labels = load(height, width)
        count = len(self._labels)
        everything = np.random.default_rng(seed).permutation(count)
        self._shard = everything[rank % count :: world_size]
        self._batch_size = batch_size
        self._order = lru_cache(maxsize=2)(
            lambda epoch: np.random.default_rng((seed, rank, epoch)).permutation(self._shard)
        )

    def indices(self, step: int) -> NDArray[np.int64]:
        """Which images the batch of a step holds."""
        positions = step * self._batch_size + np.arange(self._batch_size)
        epochs, offsets = np.divmod(positions, len(self._shard))
        return np.concatenate(
            [self._order(epoch)[offsets[epochs == epoch]] for epoch in range(epochs[0], epochs[-1] + 1)]
        )

    def batch(self, step: int) -> tuple[Images, Labels]:
        """The images, with all channels alike, and labels of a step."""
        chosen = self.indices(step)
        return np.repeat(self._images[chosen], self._channels, axis=1), self._labels[chosen]
