"""The optimisers of the recipes as functions of arrays, as published, with Keras's constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from scaling.records.point import Optimizer
from scaling.workloads.specs import Recipe

Arrays: TypeAlias = dict[str, jax.Array]
EPSILON, DECAYING, SECOND, RHO = 1e-7, 0.9, 0.999, 0.95
# Arrays that an optimiser keeps for each parameter.
KEPT: dict[Optimizer, int] = {"sgd": 1, "rmsprop": 1, "adadelta": 2, "adam": 2, "adamw": 2}
# One parameter's weight, gradient and kept arrays, the recipe, the rate and the step, counted from 1.
# Returns its new weight and kept arrays.
Update: TypeAlias = Callable[..., tuple[jax.Array, tuple[jax.Array, ...]]]


def start(recipe: Recipe, weights: Mapping[str, NDArray[Any]]) -> dict[str, tuple[NDArray[Any], ...]]:
    """Return what is kept before the first step, on the host."""
    count = KEPT[recipe.optimizer]
    return {name: tuple(np.zeros_like(each) for _ in range(count)) for name, each in weights.items()}


def update(
    recipe: Recipe,
    weights: Arrays,
    gradients: Arrays,
    kept: dict[str, tuple[jax.Array, ...]],
    rate: jax.Array,
    step: jax.Array,
) -> tuple[Arrays, dict[str, tuple[jax.Array, ...]]]:
    """Return the new weights and kept arrays. Only AdamW decays weights apart from the gradients."""
    one, coupled = UPDATES[recipe.optimizer], recipe.decay if recipe.optimizer != "adamw" else 0.0
    new = {
        name: one(each, gradients[name] + coupled * each, kept[name], recipe, rate, step)
        for name, each in weights.items()
    }
    return {name: each for name, (each, _) in new.items()}, {name: own for name, (_, own) in new.items()}


def _sgd(w: jax.Array, g: jax.Array, kept: tuple[jax.Array, ...], recipe: Recipe, rate: jax.Array, _step: jax.Array
         ) -> tuple[jax.Array, tuple[jax.Array, ...]]:  # fmt: skip
    moved = recipe.momentum * kept[0] + g
    return w - rate * moved, (moved,)


def _rmsprop(w: jax.Array, g: jax.Array, kept: tuple[jax.Array, ...], _recipe: Recipe, rate: jax.Array,
             _step: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:  # fmt: skip
    squares = DECAYING * kept[0] + (1 - DECAYING) * g * g
    return w - rate * g / jnp.sqrt(squares + EPSILON), (squares,)


def _adadelta(w: jax.Array, g: jax.Array, kept: tuple[jax.Array, ...], _recipe: Recipe, rate: jax.Array,
              _step: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:  # fmt: skip
    squares = RHO * kept[0] + (1 - RHO) * g * g
    delta = jnp.sqrt(kept[1] + EPSILON) / jnp.sqrt(squares + EPSILON) * g
    return w - rate * delta, (squares, RHO * kept[1] + (1 - RHO) * delta * delta)


def _adam(w: jax.Array, g: jax.Array, kept: tuple[jax.Array, ...], recipe: Recipe, rate: jax.Array,
          step: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:  # fmt: skip
    if recipe.optimizer == "adamw":
        w = w * (1 - rate * recipe.decay)
    mean = DECAYING * kept[0] + (1 - DECAYING) * g
    squares = SECOND * kept[1] + (1 - SECOND) * g * g
    size = jnp.sqrt(squares / (1 - SECOND**step)) + EPSILON
    return w - rate * mean / (1 - DECAYING**step) / size, (mean, squares)


UPDATES: dict[Optimizer, Update] = {
    "sgd": _sgd, "rmsprop": _rmsprop, "adadelta": _adadelta, "adam": _adam, "adamw": _adam,
}  # fmt: skip
