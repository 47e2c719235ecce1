"""JAX's strategies: the agent's side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec

from scaling.frameworks import cuda, network_env, options
from scaling.frameworks.base import PASSES, SKILLS, Option, Strategy, Traits
from scaling.hosts import gpus
from scaling.records import crossing
from scaling.records.crossing import Bounds
from scaling.records.point import EXCHANGING, Device, Point
from scaling.records.task import Task

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


# ---------------------------------------------------------------- mesh


SHARDED = "jax:fsdp"


class OnMesh(JaxStrategy):
    """JAX's data parallelism by shard_map, over NCCL on GPUs, else Gloo.

    * psum: every rank has all parameters. One all-reduce averages all gradients.
    * fsdp: each rank keeps its part of every parameter, gradient and optimiser state. A step gathers all
      parameters once, and keeps them until their gradients are reduced and scattered (ZeRO-2's traffic).
    """

    names: tuple[str, ...] = ("jax:psum", SHARDED)
    trainer = "scaling.frameworks.jax.mesh_trainer"

    def traits(self, _name: str) -> Traits:
        return Traits(ports=1, nccl=True, accuracy=SKILLS)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        shared = super().environ(task, announced)
        if task.point.kind in EXCHANGING and self.by_nccl(task.point):
            shared |= network_env.nccl(task) | network_env.nccl_log(task)
        return shared

    def updates_all(self, point: Point) -> bool:
        return point.strategy != SHARDED

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """Return the bytes without the padding of parts. Gradients are as large as parameters."""
        if task.point.strategy != SHARDED:
            return super().bytes_per_step(task, gradient_bytes)
        hosts, nccl = task.hosts, self.by_nccl(task.point)
        gathered = crossing.all_gather(gradient_bytes, hosts, nccl=nccl)
        reduced = crossing.reduce_scatter(gradient_bytes, hosts, nccl=True)
        return crossing.total(gathered, reduced if nccl else _halved(gradient_bytes, hosts))


def _halved(size_bytes: int, hosts: Sequence[str]) -> Bounds:
    """Return the bounds of XLA's reduce-scatter over Gloo, by recursive halving. A node must send what it adds to
    others' parts. A rank sends all but its part, and perhaps another rank's part in the end: parts come out in
    bit-reversed order (github.com/pytorch/gloo, gloo/reduce_scatter.h)."""
    nodes = len(set(hosts))
    return (nodes - 1.0) * size_bytes, float(len(hosts) * size_bytes if nodes > 1 else 0)
