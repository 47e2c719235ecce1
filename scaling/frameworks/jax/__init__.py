"""JAX: shard_map over a mesh of all ranks, with whole or with sharded parameters."""

from __future__ import annotations

from scaling.frameworks.base import Exchange, Framework

FRAMEWORK = Framework(
    name="jax",
    strategies={"psum": "psum", "fsdp": "fsdp", "plain": "plain"},
    distributions={"jax": ("jax",), "jaxlib": ("jaxlib",)},
    essential=("jax", "jaxlib"),
    startup_s=5.0,
    preload=("scaling.frameworks.jax.loop",),
    forks_on=("cpu",),
    returns_early=("cuda",),
    resident_bytes=300_000_000,
    exchanges={"": Exchange(by_nccl=True), "fsdp": Exchange(method="sharded", by_nccl=True)},
    variables="JAX_|XLA_",
    own_variables="JAX_PLATFORMS$|XLA_PYTHON_CLIENT_PREALLOCATE$",
)
