"""The process group of torch.distributed in which a point's ranks meet. Worker's side."""

from __future__ import annotations

from datetime import timedelta

from torch import Tensor, distributed

from scaling.frameworks.base import timeout_s
from scaling.frameworks.pytorch import store
from scaling.frameworks.pytorch.loop import TorchRank


def join(rank: TorchRank, backend: str) -> None:
    """Raises what torch raises."""
    task, timeout = rank.task, patience(rank)
    distributed.init_process_group(
        backend,
        store=store.open_store(task.address, task.ports[0], hosts=task.rank == 0, timeout=timeout),
        rank=task.rank,
        world_size=task.point.world_size,
        timeout=timeout,
        # NCCL connects now, and not inside the first step.
        device_id=rank.device if backend == "nccl" else None,
    )


def mean_over_ranks(values: Tensor) -> Tensor:
    """Of the whole process group, in place."""
    distributed.all_reduce(values)
    return values.div_(distributed.get_world_size())


def patience(rank: TorchRank) -> timedelta:
    """How long a collective may wait for peers."""
    return timedelta(seconds=timeout_s(rank.task.clocks))
