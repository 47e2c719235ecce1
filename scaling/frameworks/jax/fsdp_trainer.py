"""The worker's side of sharded parameters: each is a vector, padded to equal parts, one on each rank.

JAX derives the reduce-scatter of gradients from the all-gather of parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from scaling.frameworks.base import Trainer
from scaling.frameworks.jax.loop import State
from scaling.frameworks.jax.network import Arrays
from scaling.frameworks.jax.psum_trainer import AXIS, Averaged, Untrained
from scaling.hosts.proc import end_with_parent
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    end_with_parent()
    return ShardExchange(task) if task.point.kind == "comm" else Sharded(task)


def part(array: NDArray[np.float32], rank: int, ranks: int) -> NDArray[np.float32]:
    """Return a rank's part of an array as a vector: (ceil(size / ranks),)."""
    size = -(-array.size // ranks)
    padded = np.zeros(size * ranks, np.float32)
    padded[: array.size] = array.ravel()
    return padded[rank * size : (rank + 1) * size]


def joined(parts: Arrays) -> Arrays:
    """Return all ranks' parts as one vector each, within a step."""
    return {name: lax.all_gather(each, AXIS, tiled=True) for name, each in parts.items()}


class Sharded(Averaged):
    """The shared loop with parameters, gradients and what the optimiser keeps in parts."""

    lying = P(AXIS)

    def placed(self, state: State) -> State:
        own = partial(part, rank=self.task.rank, ranks=self.task.point.world_size)
        weights, kept = jax.tree.map(own, (state.weights, state.kept))
        return super().placed(State(weights, kept, state.statistics))

    def whole(self, arrays: Arrays) -> Arrays:
        shapes = self.shapes
        return {name: each[: prod(shapes[name])].reshape(shapes[name]) for name, each in joined(arrays).items()}

    def mean(self, gradients: Arrays) -> Arrays:
        """Return the means of this rank's parts: gradients were summed when they were scattered."""
        ranks = self.task.point.world_size
        return {name: each / ranks for name, each in gradients.items()}

    def gathered(self) -> Arrays:
        return self._gathering(self._state.weights)

    @cached_property
    def _gathering(self) -> Callable[[Arrays], Arrays]:
        gathering: Callable[[Arrays], Arrays] = self.over_ranks(self.whole, P(AXIS), P())
        return gathering


class ShardExchange(Untrained):
    """The collectives of one step alone: parameters are gathered, as many gradients reduced and scattered."""

    def begun(self, ones: dict[str, NDArray[np.float32]]) -> Arrays:
        ranks = self.task.point.world_size
        return {name: self.spread(part(each, self.task.rank, ranks), P(AXIS)) for name, each in ones.items()}

    def exchanged(self) -> Any:
        def exchange(parts: Arrays) -> tuple[Any, Any]:
            whole = joined(parts)
            reduced = {name: lax.psum_scatter(each, AXIS, tiled=True) for name, each in whole.items()}
            # Both are results, or XLA would leave one out.
            return {name: jnp.sum(each) for name, each in whole.items()}, reduced

        return self.over_ranks(exchange, P(AXIS), (P(), P(AXIS)))
