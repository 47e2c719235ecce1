"""PyTorch's DistributedDataParallel over NCCL or Gloo, the agent's side.

It does not know torchrun's elastic restarts or sharded optimisers.
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling.emulated.buckets import DEFAULT_BUCKET_MB
from scaling.frameworks import network_env
from scaling.frameworks.base import Option, Traits
from scaling.frameworks.options import positive_number
from scaling.frameworks.pytorch.plain import TorchStrategy
from scaling.records.point import EXCHANGING, Device
from scaling.records.task import Task


class DDP(TorchStrategy):
    """One worker per device; rank 0's hosts the store in which they find each other."""

    names: tuple[str, ...] = ("torch:nccl", "torch:gloo")
    # The defaults are DistributedDataParallel's own.
    options: Mapping[str, Option] = {
        "bucket_cap_mb": Option(
            type=positive_number,
            default=DEFAULT_BUCKET_MB,
            help="MiB of a gradient bucket; at 25 the first is 1 MiB",
        ),
        "gradient_as_bucket_view": Option(
            type=bool, default=False, help="gradients live in the buckets: less memory, one copy less"
        ),
        "static_graph": Option(type=bool, default=False, help="the same parameters are used in every step"),
        **TorchStrategy.options,
    }
    trainer = "scaling.frameworks.pytorch.ddp_trainer"

    def traits(self, name: str) -> Traits:
        """One port, for the store."""
        return Traits(ports=1, nccl=name == "torch:nccl")

    def devices(self, name: str) -> tuple[Device, ...]:
        """NCCL needs CUDA; Gloo runs on all."""
        return ("cuda",) if name == "torch:nccl" else super().devices(name)

    def missing(self, name: str, device: Device = "cpu") -> str | None:
        """Found in the installed files and by NVML; torch is not imported."""
        return super().missing(name, "cuda" if name == "torch:nccl" else device)

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


STRATEGY = DDP()
