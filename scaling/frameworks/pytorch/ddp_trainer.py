"""The worker's side of DDP: the shared loop with its model inside DDP, or DDP's all-reduces alone."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from scaling.emulated.layers import DEFAULT_BUCKET_MB, FIRST_BUCKET_BYTES, MIB, bucket_bytes
from scaling.frameworks.base import Trainer
from scaling.frameworks.pytorch import installed
from scaling.frameworks.pytorch.compute import Optimizer
from scaling.frameworks.pytorch.group import Grouped
from scaling.frameworks.pytorch.loop import Exchange, Training, alongside
from scaling.frameworks.pytorch.strategies import DDP
from scaling.records.task import Task

FLOAT32_BYTES = 4
BUFFERS_AT_ONCE_BYTES = 250 * MIB  # DistributedDataParallel.broadcast_bucket_size
# The type of gradients on their way, by the option `compress`, and DDP's hook for it.
WIRE = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


def connect(task: Task) -> Trainer:
    if task.point.kind == "comm":
        return GradientExchange(task)
    return ShardedOptimizer(task) if DDP.options_of(task.point)["shard_optimizer"] else Distributed(task)


class Parallel(Grouped, Training):
    """The shared loop with its model inside DistributedDataParallel."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap. DDP gives all ranks rank 0's weights."""
        options = DDP.options_of(self.task.point)
        emulated = self.task.point.hardware.device == "emulated"
        # Emulated parameters start equal. A slowed link would take seconds to broadcast them, as torch 2.6 does.
        unsent: dict[str, Any] = {"init_sync": False} if emulated and not installed.is_before(2, 7) else {}
        self._parallel = DistributedDataParallel(
            module,
            device_ids=[self.device.index] if self.cuda else None,
            **_caps(options["bucket_cap_mb"], self.task.point.hardware.shrink),
            # Copying gradients out of the buckets is free on a GPU, but takes this CPU much of a step.
            gradient_as_bucket_view=emulated or options["gradient_as_bucket_view"],
            static_graph=options["static_graph"],
            **unsent,
        )
        if hook := HOOKS.get(options["compress"]):
            self._parallel.register_comm_hook(None, hook)
        return self._parallel

    def hold(self) -> AbstractContextManager[None]:
        return self._parallel.no_sync()


class Distributed(Parallel):
    """Every rank updates all parameters."""

    def unsynced_step(self) -> None:
        """Step in DDP's `no_sync`, which runs the hooks without buckets, buffers and waiting."""
        with self.hold():
            self.step()

    def exchange_alone(self) -> Trainer | None:
        return alongside(self, GradientExchange)


class ShardedOptimizer(Parallel):
    """Every rank updates a part of the parameters and sends it: no update is possible without an exchange."""

    def make_optimizer(self) -> Optimizer:
        return sharded(super().make_optimizer())


class GradientExchange(Grouped, Exchange):
    """The collectives of one DDP step alone: this model's gradients and buffers."""

    def __init__(self, task: Task, *, beside: bool = False) -> None:
        super().__init__(task, beside=beside)
        options, (module, sizes) = DDP.options_of(task.point), self.described()
        self._wire = WIRE[options["compress"]]
        self._buckets: list[Tensor] = [
            torch.ones(size // FLOAT32_BYTES, device=self.device)
            for size in bucket_bytes(reversed(sizes), options["bucket_cap_mb"], task.point.hardware.shrink)
        ]
        assert distributed.group.WORLD is not None  # set before any trainer exists
        self._group = distributed.group.WORLD
        self._buffers = [each.detach().to(self.device) for each in module.buffers()]
        self._optimizer: Optimizer | None = None
        if options["shard_optimizer"]:
            # Its parameters have no gradients: it sends everything and updates nothing.
            self._optimizer = sharded(self.compute.make_optimizer(self.compute.place(module).parameters()))

    def send(self) -> None:
        """Exchange as DDP does: broadcast rank 0's buffers (running means), then average all buckets at once."""
        if self._buffers:
            distributed._broadcast_coalesced(self._group, self._buffers, BUFFERS_AT_ONCE_BYTES, 0)
        flying = []
        for bucket in self._buckets:
            sent = bucket.to(self._wire).div_(self.task.point.world_size)
            flying.append((bucket, sent, distributed.all_reduce(sent, async_op=True)))
        for bucket, sent, work in flying:
            work.wait()
            if sent is not bucket:
                bucket.copy_(sent)
        if self._optimizer is not None:
            self._optimizer.step()


def sharded(whole: Optimizer) -> Optimizer:
    """Wrap an optimiser that has made no step in torch's ZeRO stage 1."""
    # Importing it compiles optimisers, which takes time and warns about deprecation.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    assert isinstance(whole, torch.optim.Optimizer)
    # AdamW's defaults include an argument of Adam that AdamW sets alone.
    taken = inspect.signature(type(whole)).parameters
    defaults = {name: value for name, value in whole.defaults.items() if name in taken}
    return ZeroRedundancyOptimizer(whole.param_groups, optimizer_class=type(whole), **defaults)


def _caps(cap_mb: float, shrink: float) -> dict[str, Any]:
    """Return the limits of DDP's buckets. Only without a cap does DDP make the first bucket small, so that the
    exchange starts early. If sizes are divided, both limits must be given."""
    if cap_mb != DEFAULT_BUCKET_MB:
        return {"bucket_cap_mb": cap_mb / shrink}
    if shrink == 1:
        return {}
    return {"bucket_cap_mb_list": [FIRST_BUCKET_BYTES / MIB / shrink, cap_mb / shrink]}
