"""shard_map with pmean over gloo, as JAX's manual has data parallelism."""

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

    @partial(jax.jit, donate_argnums=(0, 1))
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(), P("data"), P("data")), out_specs=P(), check_vma=False)
    def train(parameters: Any, momenta: Any, images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(jax_step.loss)(parameters, images, labels)
        return *jax_step.moved(parameters, momenta, jax.lax.pmean(gradients, "data")), loss

    jax_step.serve(told, mesh, train, jax.device_put(jax_step.drawn(), NamedSharding(mesh, P())))


if __name__ == "__main__":
    main()
