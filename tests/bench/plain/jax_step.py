"""What the plain scripts of JAX share: their mesh, the network's loss, SGD with momentum."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from scaling.frameworks.jax import network
from scaling.workloads import weights
from tests.bench.plain import work


def mesh(told: work.Work) -> Mesh:
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(os.environ["COORDINATOR"], told.world_size, told.rank, local_device_ids=[0])
    return Mesh(np.array(jax.devices()), ("data",))


def drawn() -> dict[str, Any]:
    return dict(weights.draw(work.SPEC, 1))


def loss(parameters: Any, images: Any, labels: Any) -> Any:
    logits, _ = network.apply(work.SPEC, parameters, (), images, key=None)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def moved(parameters: Any, momenta: Any, gradients: Any) -> tuple[Any, Any]:
    recipe = work.SPEC.recipe
    momenta = jax.tree.map(lambda m, g: recipe.momentum * m + g, momenta, gradients)
    return jax.tree.map(lambda p, m: p - recipe.rate * m, parameters, momenta), momenta


def serve(told: work.Work, over: Mesh, train: Callable[..., Any], parameters: Any) -> None:
    """Train by `train(parameters, momenta, images, labels)` on this rank's images."""
    feed, rows = work.digits(told), NamedSharding(over, P("data"))
    state = [parameters, jax.tree.map(jnp.zeros_like, parameters)]

    def step(number: int) -> Any:
        images, labels = feed.batch(number)
        given = np.ascontiguousarray(images.transpose(0, 2, 3, 1)), labels.astype(np.int32)
        *state[:], told_loss = train(
            *state, *(jax.make_array_from_process_local_data(rows, each) for each in given)
        )
        return told_loss

    work.serve(
        told, step, wait=lambda: jax.block_until_ready(state), loss=lambda each: float(each.addressable_data(0))
    )
    # An orderly end waits for the other rank.
    os._exit(0)
