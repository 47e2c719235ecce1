"""The digits' file, against what scikit-learn itself makes of it."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from scaling.workloads.feeds import digits


def test_the_file_read_directly_holds_what_scikit_learn_loads() -> None:
    load_digits = import_module("sklearn.datasets").load_digits  # scikit-learn has no types

    wanted = load_digits()
    pixels, labels = digits.read()
    np.testing.assert_array_equal(pixels, wanted.images)
    np.testing.assert_array_equal(labels, wanted.target)
