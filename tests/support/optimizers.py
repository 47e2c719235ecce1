"""What a framework's optimisers make of the same weights and gradients, in a process of its own.

python -m tests.support.optimizers tensorflow|mxnet|jax prints a line per optimiser: its name, the weights as JSON.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from scaling.records.point import Optimizer
from scaling.workloads.specs import Recipe

Array = NDArray[np.float32]
STEPS, SIZE, RATE, DECAY = 3, 20, 0.01, 0.1
# At another's its updates would drown in the weights' rounding.
ADADELTA_RATE = 1.0


def given() -> tuple[Array, list[Array]]:
    """Weights, and a gradient for each step."""
    random = np.random.default_rng(0)
    weights, *gradients = random.standard_normal((1 + STEPS, SIZE), dtype=np.float32)
    return weights, gradients


def recipe(name: Optimizer) -> Recipe:
    rate = ADADELTA_RATE if name == "adadelta" else RATE
    return Recipe(optimizer=name, rate=rate, decay=DECAY if name == "adamw" else 0.0)


def keras(name: Optimizer) -> Array:
    from scaling.frameworks.tf.strategies import ENVIRON

    os.environ.update(ENVIRON)
    import keras as library

    from scaling.frameworks.tf import loop

    weights, gradients = given()
    variable = library.Variable(weights)
    optimizer = loop.optimizer_of(recipe(name))
    optimizer.build([variable.value])
    for each in gradients:
        optimizer.apply([library.ops.convert_to_tensor(each)])
    return np.asarray(variable)


def gluon(name: Optimizer) -> Array:
    """On a server: after a pickle."""
    from scaling.frameworks.mx import optimizers
    from scaling.frameworks.mx.library import mx

    start, gradients = given()
    weights: Any = mx.nd.array(start)
    optimizer = pickle.loads(pickle.dumps(optimizers.make_optimizer(recipe(name), {"rescale_grad": 0.5})))
    update = mx.optimizer.get_updater(optimizer)
    for each in gradients:
        update(0, mx.nd.array(2 * each), weights)
    found: Array = weights.asnumpy()
    return found


def functions(name: Optimizer) -> Array:
    """JAX."""
    import jax.numpy as jnp

    from scaling.frameworks.jax import loop

    start, gradients = given()
    weights: Any = {"w": jnp.asarray(start)}
    kept: Any = loop.first_kept(recipe(name), {"w": start})
    rate: Any = np.float32(recipe(name).rate)
    for step, each in enumerate(gradients, 1):
        number: Any = np.int32(step)
        weights, kept = loop.updated(recipe(name), weights, {"w": jnp.asarray(each)}, kept, rate, number)
    return np.asarray(weights["w"])


FRAMEWORKS: dict[str, Callable[[Optimizer], Array]] = {"tensorflow": keras, "mxnet": gluon, "jax": functions}


if __name__ == "__main__":
    for optimizer_name in get_args(Optimizer):
        print(optimizer_name, json.dumps(FRAMEWORKS[sys.argv[1]](optimizer_name).tolist()))
