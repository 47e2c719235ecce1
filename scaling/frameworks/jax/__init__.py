"""JAX: shard_map over a mesh of all ranks, with whole or with sharded parameters.

Its trainers have no `unsynced_step`: a step without exchange is a second program, which XLA fuses differently and
compiles as long as the first. They have no `exchange_alone`: a GPU runs XLA's programs one after the other.
"""

from __future__ import annotations

from scaling.frameworks.base import Exchange, Framework

FRAMEWORK = Framework(
    name="jax",
    strategies={"psum": "strategies", "fsdp": "strategies", "plain": "strategies"},
    distributions={"jax": ("jax",), "jaxlib": ("jaxlib",)},
    essential=("jax", "jaxlib"),
    own_models=True,
    preload=("scaling.frameworks.jax.loop",),
    forks_on=("cpu",),
    returns_early=("cuda",),
    # Measured with JAX 0.6.2 on CPU: 0.24 GB after the first step of digits-cnn.
    resident_bytes=250_000_000,
    exchanges={"": Exchange(by_nccl=True), "fsdp": Exchange(method="sharded", by_nccl=True)},
    variables="JAX_|XLA_",
    own_variables=(
        "(JAX_(CPU_COLLECTIVES_IMPLEMENTATION|DISABLE_JIT|NUM_CPU_DEVICES|NUMPY_RANK_PROMOTION|PLATFORMS"
        "|TRANSFER_GUARD)|XLA_PYTHON_CLIENT_PREALLOCATE)$"
    ),
    corrected={"XLA_FLAGS": (r" *--xla_force_host_platform_device_count=\S*", "", "a process has one device")},
)
