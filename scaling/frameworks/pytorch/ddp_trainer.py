"""PyTorch's DistributedDataParallel in the worker: the shared loop with its model inside it, or its all-reduces
alone."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from scaling.emulated.buckets import DEFAULT_BUCKET_MB, FIRST_BUCKET_BYTES, MIB, bucket_bytes
from scaling.frameworks.base import Trainer, read_options, timeout_s
from scaling.frameworks.pytorch import store
from scaling.frameworks.pytorch.ddp import DDP
from scaling.frameworks.pytorch.loop import TorchRank, Training
from scaling.records.task import Task

FLOAT32_BYTES = 4
BUFFERS_AT_ONCE_BYTES = 250 * MIB  # DistributedDataParallel.broadcast_bucket_size


def connect(task: Task) -> Trainer:
    """Raises what torch raises; ImportError when the model needs a package that is not installed."""
    return GradientExchange(task) if task.point.kind == "comm" else Distributed(task)


class Distributed(Training):
    """The shared loop with its model inside DistributedDataParallel."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """Join the process group; DDP then gives all ranks rank 0's weights."""
        _join(self)
        options = read_options(DDP.options, self.task.point.options)
        emulated = self.task.point.hardware.device == "emulated"
        self._parallel = DistributedDataParallel(
            module,
            device_ids=[self.device.index] if self.cuda else None,
            **_caps(options["bucket_cap_mb"], self.task.point.hardware.shrink),
            # Copying gradients out of the buckets takes a GPU no time, and would take this CPU much of a step.
            gradient_as_bucket_view=emulated or options["gradient_as_bucket_view"],
            static_graph=options["static_graph"],
            # Emulated parameters are alike from the start; slowed links would take seconds to say so.
            init_sync=not emulated,
        )
        return self._parallel

    def hold(self) -> AbstractContextManager[None]:
        """DDP's own way to accumulate."""
        return self._parallel.no_sync()

    def unsynced_step(self) -> None:
        """In DDP's own `no_sync`, which keeps its hooks and leaves out buckets, buffers and waiting."""
        with self.hold():
            self.step()

    def close(self) -> None:
        """Leave the process group."""
        distributed.destroy_process_group()


class GradientExchange(TorchRank):
    """The collectives of one DDP step and nothing else: what network and backend take for this model's gradients,
    and its buffers, when no compute hides them."""

    samples = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        _join(self)
        module = self.build()
        sizes = self.describe(module)
        cap_mb = read_options(DDP.options, task.point.options)["bucket_cap_mb"]
        self._buckets: list[Tensor] = [
            torch.ones(size // FLOAT32_BYTES, device=self.device)
            for size in bucket_bytes(reversed(sizes), cap_mb, task.point.hardware.shrink)
        ]
        self._group = distributed.distributed_c10d._get_default_group()
        self._buffers = [each.detach().to(self.device) for each in module.buffers()]

    def step(self) -> None:
        """As DDP does: before forward rank 0's buffers (running means) for all; then each bucket divided by the
        ranks and summed over them, all in flight at once."""
        if self._buffers:
            distributed._broadcast_coalesced(self._group, self._buffers, BUFFERS_AT_ONCE_BYTES, 0)
        works = []
        for bucket in self._buckets:
            bucket.div_(self.task.point.world_size)
            works.append(distributed.all_reduce(bucket, async_op=True))
        for work in works:
            work.wait()

    def loss(self) -> None:
        """Nothing is trained."""

    def digest(self) -> None:
        """Nothing is trained."""

    def close(self) -> None:
        """Leave the process group."""
        distributed.destroy_process_group()


def _join(rank: TorchRank) -> None:
    task = rank.task
    backend = task.point.strategy.partition(":")[2]
    timeout = timedelta(seconds=timeout_s(task.clocks))
    distributed.init_process_group(
        backend,
        store=store.open_store(task.address, task.ports[0], hosts=task.rank == 0, timeout=timeout),
        rank=task.rank,
        world_size=task.point.world_size,
        timeout=timeout,
        # NCCL connects now, and not inside the first step.
        device_id=rank.device if backend == "nccl" else None,
    )


def _caps(cap_mb: float, shrink: float) -> dict[str, Any]:
    """The limits of DDP's buckets. It makes its first bucket small, so that the exchange starts early, only
    without a cap: where all sizes are divided, both limits must be named."""
    if cap_mb != DEFAULT_BUCKET_MB:
        return {"bucket_cap_mb": cap_mb / shrink}
    if shrink == 1:
        return {}
    return {"bucket_cap_mb_list": [FIRST_BUCKET_BYTES / MIB / shrink, cap_mb / shrink]}
