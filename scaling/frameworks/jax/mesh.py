"""JAX's data parallelism by shard_map, over NCCL on GPUs, else Gloo: the agent's side.

* psum: every rank has all parameters. One all-reduce averages all gradients.
* fsdp: each rank keeps its part of every parameter, gradient and optimiser state. A step gathers all parameters
  once, and keeps them until their gradients are reduced and scattered (ZeRO-2's traffic).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaling.frameworks import collective_bytes, network_env
from scaling.frameworks.base import SKILLS, Traits
from scaling.frameworks.jax.plain import JaxStrategy
from scaling.records.crossing import Bounds
from scaling.records.point import EXCHANGING, Point
from scaling.records.task import Task

SHARDED = "jax:fsdp"


class OnMesh(JaxStrategy):
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
        gathered = collective_bytes.all_gather(gradient_bytes, hosts, nccl=nccl)
        reduced = collective_bytes.reduce_scatter(gradient_bytes, hosts, nccl=True)
        return collective_bytes.total(gathered, reduced if nccl else _halved(gradient_bytes, hosts))


def _halved(size_bytes: int, hosts: Sequence[str]) -> Bounds:
    """Return the bounds of XLA's reduce-scatter over Gloo, by recursive halving. A node must send what it adds to
    others' parts. A rank sends all but its part, and perhaps another rank's part in the end: parts come out in
    bit-reversed order (github.com/pytorch/gloo, gloo/reduce_scatter.h)."""
    nodes = len(set(hosts))
    return (nodes - 1.0) * size_bytes, float(len(hosts) * size_bytes if nodes > 1 else 0)


STRATEGY = OnMesh()
