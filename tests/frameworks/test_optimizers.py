"""The optimisers of recipes update alike in every framework, as their papers say with Keras' constants."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.optimizers import ADADELTA_RATE, DECAY, FRAMEWORKS, RATE, given

Array = NDArray[np.float64]
# Of an update: MXNet and Keras add 1e-7 to a root, or before it is drawn, of squares of about 1.
TOLERANCE = 1e-3


def by_the_papers(name: str) -> Array:
    """In float64, from zeros. Tieleman & Hinton 2012; Zeiler 2012; Kingma & Ba 2015; Loshchilov & Hutter 2019."""
    start, gradients = given()
    weights = start.astype(np.float64)
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step, gradient in enumerate(gradients, start=1):
        match name:
            case "sgd":
                first = 0.9 * first + gradient
                weights -= RATE * first
            case "rmsprop":
                second = 0.9 * second + 0.1 * gradient**2
                weights -= RATE * gradient / np.sqrt(second + 1e-7)
            case "adadelta":
                second = 0.95 * second + 0.05 * gradient**2
                delta = np.sqrt(first + 1e-7) / np.sqrt(second + 1e-7) * gradient
                first = 0.95 * first + 0.05 * delta**2
                weights -= ADADELTA_RATE * delta
            case _:
                weights *= 1 - RATE * DECAY * (name == "adamw")
                first = 0.9 * first + 0.1 * gradient
                second = 0.999 * second + 0.001 * gradient**2
                unbiased = first / (1 - 0.9**step), second / (1 - 0.999**step)
                weights -= RATE * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-7)
    return weights


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_optimizers_update_as_published(framework: str) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    command = [sys.executable, "-m", "tests.support.optimizers", framework]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    start, _ = given()
    for line in done.stdout.splitlines():
        name, found = line.split(" ", 1)
        wanted = by_the_papers(name)
        assert np.abs(json.loads(found) - wanted).max() < TOLERANCE * np.abs(wanted - start).max(), name
    assert len(done.stdout.splitlines()) == 5
