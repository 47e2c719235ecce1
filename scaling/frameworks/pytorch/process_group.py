"""The process group of torch.distributed that joins a point's ranks. It runs in the worker."""

from __future__ import annotations

from datetime import timedelta

from torch import Tensor, distributed

from scaling.frameworks.base import timeout_s
from scaling.frameworks.pytorch import store
from scaling.frameworks.pytorch.loop import TorchRank


def join(rank: TorchRank, backend: str) -> None:
    task, timeout = rank.task, patience(rank)
    distributed.init_process_group(
        backend,
        store=store.open_store(task.address, task.ports[0], hosts=task.rank == 0, timeout=timeout),
        rank=task.rank,
        world_size=task.point.world_size,
        timeout=timeout,
        # NCCL then connects here, not during the first step.
        device_id=rank.device if backend == "nccl" else None,
    )


def mean_over_ranks(values: Tensor) -> Tensor:
    """Replace the values by their mean over the process group. Return them."""
    distributed.all_reduce(values)
    return values.div_(distributed.get_world_size())


def patience(rank: TorchRank) -> timedelta:
    return timedelta(seconds=timeout_s(rank.task.clocks))
