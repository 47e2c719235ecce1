"""The agent's side of `jax:plain`, and what all of JAX's strategies share."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec

from scaling.frameworks import cuda, options
from scaling.frameworks.base import PASSES, Option, Strategy, Traits
from scaling.hosts import gpus
from scaling.records.point import Device, Point
from scaling.records.task import Task

# ---------------------------------------------------------------- build

# jax.shard_map is public since then.
OLDEST = (0, 6)
INSTALL = "./launch/install jax-cuda"


def release() -> str:
    try:
        return metadata.version("jax")
    except metadata.PackageNotFoundError:
        return ""


def unfit() -> str | None:
    """Return why JAX cannot compute on this host's GPUs; None if it can or this is unknown."""
    built = next((major for major in (13, 12) if find_spec(f"jax_cuda{major}_plugin")), None)
    if built is None:
        return f"jax {release()} has no plugin for CUDA: {INSTALL}"
    return cuda.driver_too_old(f"jax {release()}", (built, 0), lambda: "pip install 'jax[cuda12]'")


# ---------------------------------------------------------------- plain


class JaxStrategy(Strategy):
    """Devices, limits and environment of all of JAX's strategies. No emulated device sleeps in a compiled step."""

    baseline = "jax:plain"
    options: Mapping[str, Option] = options.LOOP

    def devices(self, _name: str) -> tuple[Device, ...]:
        return ("cpu", "cuda")

    def missing(self, _name: str, device: Device = "cpu") -> str | None:
        package = find_spec("jax")
        if package is None or package.origin is None:  # a folder of this name
            return "jax is not installed: ./launch/install jax"
        if release() and cuda.version(release()) < OLDEST:
            return f"jax {release()} has no jax.shard_map, which came with 0.6: ./launch/install jax"
        return gpus.none_here("jax:psum") or unfit() if device == "cuda" else None

    def refuse(self, point: Point) -> str | None:
        """Return what the loop cannot do. Any `memory_format` is accepted: XLA chooses its own. `compile` changes
        nothing: XLA compiles every step."""
        if point.workload.precision == "fp16":
            return "--precision fp16: JAX's loop does not scale losses; take bf16"
        return options.refuse(point)

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        """Return what XLA reads when it opens its devices. NPROC is the size of its pool of threads on CPU
        (DefaultThreadPoolSize in xla/pjrt/utils.cc)."""
        return {"NPROC": str(task.threads), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class Plain(JaxStrategy):
    """The loop of one device without exchange: the baseline."""

    names = ("jax:plain",)
    trainer = "scaling.frameworks.jax.loop"

    def traits(self, _name: str) -> Traits:
        return PASSES


STRATEGY = Plain()
