"""A model of a user's file: two dense layers on images of 28 x 28.

scaling run --model scaling/frameworks/jax/example_model.py:dense --strategy jax:psum
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Parameters = list[dict[str, jax.Array]]


def dense(key: jax.Array) -> tuple[Parameters, Callable[..., Any]]:
    """Return the first parameters, any tree of arrays, and the function of parameters and inputs to outputs."""
    sizes = (784, 128, 10)
    parameters = [
        {"weight": jax.random.normal(one, (inside, outside)) / inside**0.5, "bias": jnp.zeros(outside)}
        for one, inside, outside in zip(jax.random.split(key, 2), sizes, sizes[1:], strict=False)
    ]
    return parameters, apply


def apply(parameters: Parameters, images: jax.Array) -> jax.Array:
    first, second = parameters
    inside = jax.nn.relu(images.reshape(len(images), -1) @ first["weight"] + first["bias"])
    return inside @ second["weight"] + second["bias"]


def batch(size: int, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return inputs and targets."""
    return jax.random.normal(key, (size, 28, 28)), jax.random.randint(key, (size,), 0, 10)
