"""Images that are changed: by hand where only one thing is, and the same for the same seed, rank and step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scaling.workloads.data import Augment
from scaling.workloads.feeds.batches import Batch
from scaling.workloads.feeds.pictures import Augmented, changed

ALL = Augment(rotate=20, shift=0.1, shear=0.2, zoom=0.1, flip=True)
IMAGE = np.random.default_rng(0).standard_normal((3, 9, 9)).astype(np.float32)


class Feed:
    fixed = False

    def batch(self, step: int) -> Batch:
        return np.stack([IMAGE, -IMAGE]), np.array([step, step])


class Drawn:
    """Draws the largest of all that it may."""

    def uniform(self, low: float, high: float, size: int | None = None) -> object:
        return high if size is None else np.full(size, high)

    def random(self) -> float:
        return 0.0


def made(**limits: Any) -> NDArray[np.float32]:
    return changed(IMAGE, Augment(**limits), Drawn())  # type: ignore[arg-type]


def test_what_may_not_change_stays() -> None:
    assert made() == pytest.approx(IMAGE, abs=1e-6)


def test_a_quarter_turn_and_a_mirror_are_exact() -> None:
    assert made(rotate=90) == pytest.approx(np.rot90(IMAGE, -1, (1, 2)), abs=1e-5)
    assert made(flip=True) == pytest.approx(IMAGE[..., ::-1])


def test_a_shift_repeats_the_edge() -> None:
    found = made(shift=2 / 9)
    assert found[:, :7, :7] == pytest.approx(IMAGE[:, 2:, 2:], abs=1e-6)
    assert found[:, 8, 8] == pytest.approx(IMAGE[:, 8, 8])


def test_the_middle_stays_in_the_middle() -> None:
    assert made(zoom=0.5)[:, 4, 4] == pytest.approx(IMAGE[:, 4, 4], abs=1e-6)
    assert made(shear=0.3)[:, 4, 4] == pytest.approx(IMAGE[:, 4, 4], abs=1e-6)


def test_images_change_from_a_step_on_and_alike_each_time() -> None:
    def feed(rank: int = 0) -> Augmented:
        return Augmented(Feed(), ALL, first_step=3, seed=1, rank=rank)

    assert np.array_equal(feed().batch(2)[0], Feed().batch(2)[0])
    images, labels = feed().batch(3)
    assert images.dtype == np.float32
    assert (images.shape, labels.tolist()) == ((2, 3, 9, 9), [3, 3])
    assert np.array_equal(images, feed().batch(3)[0])
    for others in (Feed().batch(3)[0], feed().batch(4)[0], feed(rank=1).batch(3)[0]):
        assert not np.allclose(images, others)
