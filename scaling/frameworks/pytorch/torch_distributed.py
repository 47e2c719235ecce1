"""The agent's side that strategies with one process group of torch.distributed share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from scaling.frameworks import network_env
from scaling.frameworks.pytorch.plain import TorchStrategy
from scaling.records.point import EXCHANGING, Point
from scaling.records.task import Task


class TorchDistributed(TorchStrategy):
    """One worker per device. Rank 0's worker hosts the store through which they connect."""

    def backend(self, point: Point) -> Literal["nccl", "gloo"]:
        return "nccl" if self.by_nccl(point) else "gloo"

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        """Return what torchrun would set, and the interfaces of the exchange."""
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
