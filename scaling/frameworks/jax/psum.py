"""JAX's data parallelism by shard_map, over NCCL on GPUs, else Gloo: the agent's side."""

from __future__ import annotations

from collections.abc import Mapping

from scaling.frameworks import network_env
from scaling.frameworks.base import SKILLS, Traits
from scaling.frameworks.jax.plain import JaxStrategy
from scaling.records.point import EXCHANGING
from scaling.records.task import Task


class Psum(JaxStrategy):
    """Every rank has all parameters. One all-reduce averages all gradients."""

    names: tuple[str, ...] = ("jax:psum",)
    trainer = "scaling.frameworks.jax.mesh_trainer"

    def traits(self, _name: str) -> Traits:
        return Traits(ports=1, nccl=True, accuracy=SKILLS)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        shared = super().environ(task, announced)
        if task.point.kind in EXCHANGING and self.by_nccl(task.point):
            shared |= network_env.nccl(task) | network_env.nccl_log(task)
        return shared


STRATEGY = Psum()
