"""The worker's side of shard_map: a mesh of all ranks, the shared loop in it, or its collectives alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property, partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from scaling.frameworks.abilities import Untrained
from scaling.frameworks.base import Trainer, timeout_s
from scaling.frameworks.jax.loop import JaxRank, State, Training
from scaling.frameworks.jax.network import Arrays
from scaling.frameworks.jax.strategies import SHARDED
from scaling.hosts.proc import end_with_parent
from scaling.records.task import Task

AXIS = "data"
HEARTBEAT_S = 10  # JAX's interval


def connect(task: Task) -> Trainer:
    end_with_parent()
    if task.point.strategy == SHARDED:
        return ShardExchange(task) if task.point.kind == "comm" else Sharded(task)
    return GradientExchange(task) if task.point.kind == "comm" else Averaged(task)


# ---------------------------------------------------------------- mesh


def joined(task: Task) -> Mesh:
    """Join JAX's runtime, whose service rank 0 hosts. Return the mesh of all ranks' devices, in their order."""
    from jax._src import distributed
    from jax._src.lib import _jax as library  # type: ignore[attr-defined, unused-ignore]

    # No public setting holds Gloo to an interface: else it takes the address of the host's name.
    collectives = library.make_gloo_tcp_collectives
    library.make_gloo_tcp_collectives = partial(collectives, interface=task.place.interface)
    address, state = f"{task.address}:{task.ports[0]}", distributed.global_state
    state.initialize(
        coordinator_address=address,
        num_processes=task.point.world_size,
        process_id=task.rank,
        local_device_ids=[task.device_index],
        cluster_detection_method="deactivate",
        initialization_timeout=round(timeout_s(task.clocks)),
        coordinator_bind_address=address,
        **_patience(state.initialize, timeout_s(task.clocks)),
    )
    return Mesh(np.array(jax.devices()), (AXIS,))


def _patience(initialize: Callable[..., None], seconds: float) -> dict[str, int]:
    """Return the limit for missing heartbeats. Ranks are paused for long while others are measured, and JAX's own
    limit of 100 s would end them all."""
    if "heartbeat_timeout_seconds" in inspect.signature(initialize).parameters:
        return {"heartbeat_timeout_seconds": round(seconds)}
    missing = round(seconds / HEARTBEAT_S)
    return {"service_max_missing_heartbeats": missing, "client_max_missing_heartbeats": missing}


class Meshed(JaxRank):
    """A rank in the mesh."""

    def join(self) -> None:
        self.mesh = joined(self.task)

    def over_ranks(self, function: Callable[..., Any], taken: Any, given: Any, **options: Any) -> Any:
        """Return the jitted function of all ranks, for one rank's function with arguments and results placed by
        partition specs."""
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=taken, out_specs=given, check_vma=False)
        return jax.jit(mapped, **options)

    def spread(self, array: NDArray[Any], spec: P) -> jax.Array:
        """Return an array of all ranks from this rank's part of it."""
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, spec), array)

    def close(self) -> None:
        jax.distributed.shutdown()


# ---------------------------------------------------------------- training


class Averaged(Meshed, Training):
    """The shared loop with every gradient averaged over the mesh. All ranks have all parameters."""

    # Where parameters lie, and what the optimiser keeps of them.
    lying = P()

    def placed(self, state: State) -> State:
        lie = partial(self.spread, spec=self.lying)
        known = jax.tree.map(partial(self.spread, spec=P(AXIS)), state.statistics)
        return State(jax.tree.map(lie, state.weights), jax.tree.map(lie, state.kept), known)

    def fed(self, array: NDArray[Any]) -> jax.Array:
        return self.spread(array, P(AXIS))

    def mapped(self, step: Callable[..., Any]) -> Any:
        states = State(self.lying, self.lying, P(AXIS))
        return self.over_ranks(step, (states, P(AXIS), P(AXIS), P(), P()), (states, P(AXIS)), donate_argnums=0)

    def rank(self) -> jax.Array | int:
        return lax.axis_index(AXIS)

    def mean(self, gradients: Arrays) -> Arrays:
        averaged: Arrays = lax.pmean(gradients, AXIS)
        return averaged

    def average_statistics(self) -> None:
        self._state = self._state._replace(statistics=self._averaging(self._state.statistics))

    @cached_property
    def _averaging(self) -> Callable[[Any], Any]:
        averaging: Callable[[Any], Any] = self.over_ranks(lambda known: lax.pmean(known, AXIS), P(AXIS), P(AXIS))
        return averaging


# ---------------------------------------------------------------- comm


class GradientExchange(Untrained, Meshed):
    """The all-reduce of one step alone."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        ones = {name: np.ones(shape, np.float32) for name, shape in self.describe().items()}
        self._arrays = {name: self.spread(self.mine(each), P(AXIS)) for name, each in ones.items()}
        self._step = self.exchanged().lower(self._arrays).compile()
        self._result: Any = None

    def mine(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return this rank's part of what is exchanged."""
        return array[None]

    def exchanged(self) -> Any:
        return self.over_ranks(lambda gradients: lax.pmean(gradients, AXIS), P(AXIS), P(AXIS))

    def step(self) -> None:
        self._result = self._step(self._arrays)

    def sync(self) -> None:
        jax.block_until_ready(self._result)


# ---------------------------------------------------------------- sharded
#
# Each parameter is a vector, padded to equal parts, one on each rank.
#
# JAX derives the reduce-scatter of gradients from the all-gather of parameters.


def part(array: NDArray[np.float32], rank: int, ranks: int) -> NDArray[np.float32]:
    """Return a rank's part of an array as a vector: (ceil(size / ranks),)."""
    size = -(-array.size // ranks)
    padded = np.zeros(size * ranks, np.float32)
    padded[: array.size] = array.ravel()
    return padded[rank * size : (rank + 1) * size]


def whole_vectors(parts: Arrays) -> Arrays:
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
        return {
            name: each[: prod(shapes[name])].reshape(shapes[name]) for name, each in whole_vectors(arrays).items()
        }

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


class ShardExchange(GradientExchange):
    """The collectives of one step alone: parameters are gathered, as many gradients reduced and scattered."""

    def mine(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        return part(array, self.task.rank, self.task.point.world_size)

    def exchanged(self) -> Any:
        def exchange(parts: Arrays) -> tuple[Any, Any]:
            whole = whole_vectors(parts)
            reduced = {name: lax.psum_scatter(each, AXIS, tiled=True) for name, each in whole.items()}
            # Both are results, or XLA would leave one out.
            return {name: jnp.sum(each) for name, each in whole.items()}, reduced

        return self.over_ranks(exchange, P(AXIS), (P(), P(AXIS)))
