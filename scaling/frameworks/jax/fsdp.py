"""JAX with parameters sharded over the mesh: the agent's side."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.frameworks import collective_bytes
from scaling.frameworks.jax.psum import Psum
from scaling.records.crossing import Bounds
from scaling.records.point import Point
from scaling.records.task import Task


class Fsdp(Psum):
    """Each rank keeps its part of every parameter, gradient and optimiser state. A step gathers all parameters
    once, and keeps them until their gradients are reduced and scattered (ZeRO-2's traffic)."""

    names = ("jax:fsdp",)

    def updates_all(self, _point: Point) -> bool:
        return False

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """Return the bytes without the padding of parts. Gradients are as large as parameters."""
        hosts, nccl = task.hosts, self.by_nccl(task.point)
        gathered = collective_bytes.all_gather(gradient_bytes, hosts, nccl=nccl)
        if nccl:
            return collective_bytes.total(
                gathered, collective_bytes.reduce_scatter(gradient_bytes, hosts, nccl=True)
            )
        return collective_bytes.total(gathered, _halved(gradient_bytes, hosts))


def _halved(size_bytes: int, hosts: Sequence[str]) -> Bounds:
    """Return the bounds of XLA's reduce-scatter over Gloo, by recursive halving. A node must send what it adds to
    others' parts. A rank sends all but its part, and perhaps another rank's part in the end: parts come out in
    bit-reversed order (github.com/pytorch/gloo, gloo/reduce_scatter.h)."""
    nodes = len(set(hosts))
    return (nodes - 1.0) * size_bytes, float(len(hosts) * size_bytes if nodes > 1 else 0)


STRATEGY = Fsdp()
