"""What strategies have in common whose ranks meet in one process group of torch.distributed: the agent's side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from scaling.frameworks import network_env
from scaling.frameworks.pytorch.plain import TorchStrategy
from scaling.records.point import EXCHANGING, Point
from scaling.records.task import Task


class TorchDistributed(TorchStrategy):
    """One worker per device; rank 0's hosts the store in which they find each other."""

    def backend(self, point: Point) -> Literal["nccl", "gloo"]:
        """What carries the exchange."""
        return "nccl" if self.by_nccl(point) else "gloo"

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        """What torchrun would set, and the interface that carries the exchange."""
        if task.point.kind not in EXCHANGING:
            return {}
        return {
            "MASTER_ADDR": task.address,
            "MASTER_PORT": str(task.ports[0]),
            "RANK": str(task.rank),
            "WORLD_SIZE": str(task.point.world_size),
            "LOCAL_RANK": str(task.local_rank),
            **network_env.gloo(task),
            **(network_env.nccl(task) | network_env.nccl_log(task) if self.by_nccl(task.point) else {}),
        }
