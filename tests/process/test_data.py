"""The digits and Fashion-MNIST as published."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from scaling.workloads import data, feeds, models
from scaling.workloads.data import images
from scaling.workloads.feeds import pictures
from scaling.workloads.specs import Images
from tests.support import debian

# All of Fashion-MNIST, as Debian's package dataset-fashion-mnist has it.

SPEC = data.spec("fashion-mnist")


@pytest.fixture(scope="module")
def place() -> Path:
    found = debian.unpacked("dataset-fashion-mnist", SPEC.usual[0])
    if isinstance(found, str):
        pytest.skip(found)
    return found


def test_it_is_what_was_published(place: Path) -> None:
    each_of: dict[data.Split, int] = {"train": 6_000, "test": 1_000}
    for split, each in each_of.items():
        pixels, labels = images.read_idx(place, SPEC, split)
        assert pixels.shape == (10 * each, 1, 28, 28)
        assert np.bincount(labels).tolist() == [each] * 10
        if split == "train":
            shown = (pixels.mean(dtype=np.float64) / 255, pixels.std(dtype=np.float64) / 255)
            assert [round(one, 4) for one in shown] == [SPEC.mean[0], SPEC.deviation[0]]


def test_it_is_found_and_fits_the_studys_network(place: Path) -> None:
    model = models.spec("fashion-cnn")
    assert model.data == SPEC.name and isinstance(model.input, Images)
    assert feeds.check(SPEC.name, str(place), model, ("train", "test")) == str(place)


# The digits' file, against what scikit-learn itself makes of it.


def test_the_file_read_directly_holds_what_scikit_learn_loads() -> None:
    load_digits = import_module("sklearn.datasets").load_digits  # scikit-learn has no types

    wanted = load_digits()
    pixels, labels = pictures.read_digits()
    np.testing.assert_array_equal(pixels, wanted.images)
    np.testing.assert_array_equal(labels, wanted.target)
