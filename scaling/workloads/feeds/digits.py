"""1,797 real handwritten digits of 8 x 8 pixels, resized to the model's input.

Source: UCI, "Optical Recognition of Handwritten Digits", test set. The file in scikit-learn is read directly in 5
ms: importing its `load_digits` takes 1.1 s in every worker.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling.workloads import specs
from scaling.workloads.data.specs import Split
from scaling.workloads.feeds.batches import Batch, Indices
from scaling.workloads.feeds.pixels import bilinear, in_channels

SIDE = 8
# One fifth is held out, at random because the file is sorted by writer.
HELD_OUT, SHUFFLE = 360, 0

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


def read() -> tuple[NDArray[np.uint8], Labels]:
    """Return pixels 0..16 (1797, 8, 8) and labels (1797,). Raises ModuleNotFoundError without scikit-learn."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / "datasets/data/digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)


@lru_cache(maxsize=1)
def load(height: int, width: int) -> tuple[Images, Labels]:
    """Return float32 digits (1797, 1, height, width) with mean 0 and deviation 1, and labels (1797,). All feeds of
    a process share these arrays, which are read-only."""
    pixels, labels = read()
    resized = bilinear(height, SIDE) @ pixels.astype(np.float32) @ bilinear(width, SIDE).T
    # By reshape: the strides of a None axis would make torch take one channel for channels_last.
    images = ((resized - resized.mean()) / resized.std()).reshape(-1, 1, height, width)
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


class Digits:
    """The digits of a split: 1,437 to train on, 360 held out."""

    def __init__(self, images: specs.Images, split: Split) -> None:
        self._channels = images.channels
        self._images, self._labels = load(images.height, images.width)
        order = np.random.default_rng(SHUFFLE).permutation(len(self._labels))
        self._chosen = np.sort(order[:HELD_OUT] if split == "test" else order[HELD_OUT:])

    def __len__(self) -> int:
        return len(self._chosen)

    @property
    def labels(self) -> Labels:
        return self._labels[self._chosen]

    def take(self, indices: Indices, _seed: Sequence[int] = ()) -> Batch:
        chosen = self._chosen[indices]
        return in_channels(self._images[chosen], self._channels), self._labels[chosen]
