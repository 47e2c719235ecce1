"""Images with small random changes, from some step on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage  # type: ignore[import-untyped]

from scaling.workloads.data.specs import Augment
from scaling.workloads.feeds.batches import Batch

if TYPE_CHECKING:
    from scaling.workloads.feeds import Feed

Floats = NDArray[np.float32]
Matrix = NDArray[np.float64]


class Augmented:
    """A feed whose images are changed from `first_step` on: also a pure function of seed, rank and step."""

    fixed = False

    def __init__(self, feed: Feed, augment: Augment, *, first_step: int, seed: int, rank: int) -> None:
        self._feed, self._augment, self._first_step, self._seed = feed, augment, first_step, (seed, rank)

    def batch(self, step: int) -> Batch:
        images, labels = self._feed.batch(step)
        if step < self._first_step:
            return images, labels
        # Different from the numbers that the feed uses.
        random = np.random.default_rng((*self._seed, step, 1))
        return np.stack([changed(image, self._augment, random) for image in images]), labels


def changed(
    image: NDArray[np.float32] | NDArray[np.int64], augment: Augment, random: np.random.Generator
) -> Floats:
    """Rotate, shift, shear, zoom and mirror an image (channels, height, width) at random. Values between pixels
    are interpolated linearly. The edge is repeated outside, as in Keras's ImageDataGenerator."""
    height, width = image.shape[1:]
    matrix = drawn(augment, random)
    shift = augment.shift * random.uniform(-1, 1, 2) * (height, width)
    middle = np.array([height - 1, width - 1]) / 2
    # Maps a pixel of the new image to the old one.
    offset = middle + shift - matrix @ middle
    mirrored = augment.flip and random.random() < 0.5
    shown = np.stack(
        [ndimage.affine_transform(channel, matrix, offset, order=1, mode="nearest") for channel in image]
    )
    return np.ascontiguousarray(shown[..., ::-1] if mirrored else shown, np.float32)


def drawn(augment: Augment, random: np.random.Generator) -> Matrix:
    """Draw rotation, shear and zoom of (row, column), each uniformly."""
    angle = math.radians(augment.rotate) * random.uniform(-1, 1)
    shear = augment.shear * random.uniform(-1, 1)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    sheared = np.array([[1, -math.sin(shear)], [0, math.cos(shear)]])
    matrix: Matrix = rotation @ sheared @ np.diag(1 + augment.zoom * random.uniform(-1, 1, 2))
    return matrix
