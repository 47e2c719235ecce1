"""Images in memory as bytes. Each batch is normalised, resized and given the model's channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scaling.workloads.data.specs import Values
from scaling.workloads.feeds.batches import Batch, Indices
from scaling.workloads.specs import Images

Floats = NDArray[np.float32]


class Pixels:
    """Samples of bytes (count, channels, height, width) with labels (count,), for a model of `images`. A pixel
    becomes (pixel / 255 - mean) / deviation. Grey images are repeated for a model with colours."""

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        labels: NDArray[np.int64],
        images: Images,
        *,
        mean: Values,
        deviation: Values,
    ) -> None:
        self._pixels, self._labels, self._images = pixels, labels, images
        self._scale = (1 / (255 * np.asarray(deviation))).astype(np.float32)[:, None, None]
        self._shift = (np.asarray(mean) / np.asarray(deviation)).astype(np.float32)[:, None, None]
        height, width = pixels.shape[2:]
        same = (height, width) == (images.height, images.width)
        self._resize = None if same else (bilinear(images.height, height), bilinear(images.width, width).T)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def labels(self) -> NDArray[np.int64]:
        return self._labels

    def take(self, indices: Indices, _seed: Sequence[int]) -> Batch:
        images = self._pixels[indices] * self._scale - self._shift
        if self._resize is not None:
            rows, columns = self._resize
            images = rows @ (images @ columns)
        return in_channels(images, self._images.channels), self._labels[indices]


def in_channels(images: Floats, channels: int) -> Floats:
    """Return the images, with a single channel repeated if more are needed."""
    return images if images.shape[1] == channels else np.repeat(images, channels, axis=1)


def bilinear(size: int, side: int) -> Floats:
    """Return the (size, side) matrix that resizes one axis. It is linear between pixel centres and repeats the
    edge outside, as torch's `interpolate(align_corners=False)` does when enlarging."""
    positions = (np.arange(size) + 0.5) * side / size - 0.5
    columns = [np.interp(positions, np.arange(side), pixel) for pixel in np.eye(side)]
    return np.stack(columns, axis=1).astype(np.float32)
