"""The same network in the four frameworks: with equal weights, equal logits, losses and gradients."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scaling.workloads import models
from tests.support.matrix import cases
from tests.support.networks import LEARNING

# Those whose layers are all in a smaller one; in memory they would have a gigabyte each, or five.
LARGE = {"vit-b-16", "bert-base", "bert-large", "gpt2", "gpt2-medium", "llama-1b", "tinyllama-1.1b"}
# Every kind of layer: residual and parallel branches, grouped kernels, each normalisation and pooling.
FEW = (*LEARNING, "digits-cnn", "resnet50", "alexnet-towers", "googlenet")
NETWORKS = {"few": FEW, "others": tuple(name for name in models.CATALOGUE if name not in {*LARGE, *FEW})}
FRAMEWORKS = ("tensorflow", "mxnet", "jax")
# Of the largest: sums in another order, through up to 152 layers.
LOGITS, GRADIENTS = 2e-5, 1e-3

# TensorFlow builds a graph for each network: a second of one core each, and more if other programs compute.
pytestmark = pytest.mark.timeout(900)

Found = dict[str, NDArray[Any]]


@cache
def computed(framework: str, networks: str) -> Found:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    with TemporaryDirectory() as folder:
        file = Path(folder, "found.npz")
        command = [sys.executable, "-m", "tests.support.networks", framework, str(file), *NETWORKS[networks]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with np.load(file) as arrays:
            return dict(arrays)


def differs(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest difference, of the largest value."""
    assert one.shape == other.shape
    return float(np.abs(one - other).max() / np.abs(other).max())


@pytest.mark.parametrize(
    ("framework", "networks"), cases(product(FRAMEWORKS, NETWORKS), [*product(FRAMEWORKS, ["few"])])
)
def test_logits_are_equal(framework: str, networks: str) -> None:
    found, wanted = computed(framework, networks), computed("torch", networks)
    names = NETWORKS[networks]
    differences = {name: differs(found[f"{name}/logits"], wanted[f"{name}/logits"]) for name in names}
    assert max(differences.values()) < LOGITS, differences
    assert all(wanted[f"{name}/logits"].std() > 0 for name in names)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", LEARNING)
def test_losses_and_gradients_are_equal(name: str, framework: str) -> None:
    found, wanted = computed(framework, "few"), computed("torch", "few")
    keys = [key for key in wanted if key.startswith(f"{name}/")]
    assert keys == [key for key in found if key.startswith(f"{name}/")]
    whole = max(float(np.abs(wanted[key]).max()) for key in keys[2:])
    assert found[f"{name}/loss"] == pytest.approx(wanted[f"{name}/loss"], rel=LOGITS)
    for key in keys[2:]:
        assert found[key].shape == wanted[key].shape, key
        assert float(np.abs(found[key] - wanted[key]).max()) < GRADIENTS * whole, key
