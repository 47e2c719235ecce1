"""The same network in the four frameworks: with equal weights, equal logits, losses and gradients."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scaling.workloads import models
from tests.support.networks import LEARNING

# Those whose layers are all in a smaller one; in memory they would have a gigabyte each, or five.
LARGE = {"vit-b-16", "bert-base", "bert-large", "gpt2", "gpt2-medium", "llama-1b", "tinyllama-1.1b"}
NAMES = [name for name in models.CATALOGUE if name not in LARGE]
# Of the largest: sums in another order, through up to 152 layers.
LOGITS, GRADIENTS = 2e-5, 1e-3

# TensorFlow builds 25 graphs: half a minute of one core, and more where others compute.
pytestmark = pytest.mark.timeout(900)

Found = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return computed("torch", tmp_path_factory)


@pytest.fixture(scope="module", params=["tensorflow", "mxnet", "jax"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return computed(request.param, tmp_path_factory)


def computed(framework: str, folders: pytest.TempPathFactory) -> Found:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    file = folders.mktemp(framework) / "found.npz"
    command = [sys.executable, "-m", "tests.support.networks", framework, str(file), *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(file) as arrays:
        return dict(arrays)


def differs(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest difference, of the largest value."""
    assert one.shape == other.shape
    return float(np.abs(one - other).max() / np.abs(other).max())


def test_logits_are_equal(found: Found, wanted: Found) -> None:
    differences = {name: differs(found[f"{name}/logits"], wanted[f"{name}/logits"]) for name in NAMES}
    assert max(differences.values()) < LOGITS, differences
    assert all(wanted[f"{name}/logits"].std() > 0 for name in NAMES)


@pytest.mark.parametrize("name", LEARNING)
def test_losses_and_gradients_are_equal(name: str, found: Found, wanted: Found) -> None:
    keys = [key for key in wanted if key.startswith(f"{name}/")]
    assert keys == [key for key in found if key.startswith(f"{name}/")]
    whole = max(float(np.abs(wanted[key]).max()) for key in keys[2:])
    assert found[f"{name}/loss"] == pytest.approx(wanted[f"{name}/loss"], rel=LOGITS)
    for key in keys[2:]:
        assert found[key].shape == wanted[key].shape, key
        assert float(np.abs(found[key] - wanted[key]).max()) < GRADIENTS * whole, key
