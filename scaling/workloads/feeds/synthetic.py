"""Noise in the shape of images, as the field's throughput benchmarks are fed: no disk, no decoding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Synthetic:
    """One seeded batch of standard normal pixels and random labels, made once; each rank has its own."""

    fixed = True

    def __init__(
        self, image: tuple[int, int, int], classes: int, *, batch_size: int, seed: int, rank: int
    ) -> None:
        random = np.random.default_rng((seed, rank))
        self._images = random.standard_normal((batch_size, *image), dtype=np.float32)
        self._labels = random.integers(classes, size=batch_size, dtype=np.int64)

    def batch(self, _step: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The one batch, whatever the step."""
        return self._images, self._labels
