"""Parameters sharded by NamedSharding where an axis divides, and jit, as JAX's manual has FSDP: XLA chooses the
collectives."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.bench.plain import jax_step, work


def main() -> None:
    told = work.read()
    mesh = jax_step.mesh(told)

    def lying(array: Any) -> NamedSharding:
        axis = next((at for at, size in enumerate(array.shape) if size % told.world_size == 0), None)
        return NamedSharding(mesh, P() if axis is None else P(*[None] * axis, "data"))

    @partial(jax.jit, donate_argnums=(0, 1))
    def train(parameters: Any, momenta: Any, images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(jax_step.loss)(parameters, images, labels)
        return *jax_step.moved(parameters, momenta, gradients), loss

    drawn = jax_step.drawn()
    jax_step.serve(told, mesh, train, jax.device_put(drawn, {name: lying(each) for name, each in drawn.items()}))


if __name__ == "__main__":
    main()
