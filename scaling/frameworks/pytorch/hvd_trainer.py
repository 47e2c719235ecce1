"""The worker's side of torch with Horovod: the shared loop with Horovod's optimiser, or its all-reduces alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import horovod.torch as hvd
import torch
from torch import Tensor, nn

from scaling.frameworks.abilities import Tracer
from scaling.frameworks.base import Trainer
from scaling.frameworks.horovod.worker import Joined, timelines
from scaling.frameworks.options import accumulated
from scaling.frameworks.pytorch.compute import Optimizer
from scaling.frameworks.pytorch.loop import Exchange, Training, alongside
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    return GradientExchange(task) if task.point.kind == "comm" else Distributed(task)


class Distributed(Joined, Training):
    """The shared loop with Horovod's optimiser. Hooks exchange gradients in backward; the update waits for all."""

    binding = hvd
    # Horovod derives its class at run time from the optimiser's class.
    _optimizer: Any
    _sends = True

    def wrap(self, module: nn.Module) -> nn.Module:
        """Give all ranks rank 0's weights and buffers."""
        state = {name: _dense(each) for name, each in module.state_dict().items()}
        hvd.broadcast_parameters(state, root_rank=0)
        return module

    def make_optimizer(self) -> Optimizer:
        made: Optimizer = hvd.DistributedOptimizer(
            super().make_optimizer(),
            named_parameters=self._module.named_parameters(),
            compression=_compression(self),
            backward_passes_per_step=accumulated(self.task.point),
        )
        return made

    def update(self) -> None:
        """Wait for the gradients before the scaler divides them."""
        if self._sends:
            self._optimizer.synchronize()
        else:
            # Handles of hooks that sent nothing. `synchronize` would send now.
            self._optimizer._handles.clear()
        with self._optimizer.skip_synchronize():
            super().update()

    def unsynced_step(self) -> None:
        """Step with one more backward pass per update, so that Horovod's hooks run and send nothing."""
        passes = accumulated(self.task.point)
        self._optimizer.set_backward_passes_per_step(passes + 1)
        self._sends = False
        self.step()
        self._sends = True
        self._optimizer.set_backward_passes_per_step(passes)

    def exchange_alone(self) -> Trainer | None:
        """Return all-reduces of the same names. Training sends none of these at that time."""
        return alongside(self, GradientExchange)

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        mean: Tensor = hvd.allreduce(values, name="statistics", op=hvd.Average)
        return mean

    def tracers(self) -> Sequence[Tracer]:
        return [*super().tracers(), *timelines(self.task, hvd)]

    def _compile(self) -> None:
        """Compile, and end the exchange that its backward pass began."""
        super()._compile()
        self._optimizer.synchronize()


class GradientExchange(Joined, Exchange):
    """The all-reduces of one step alone: by name, in backward's order, fused by Horovod as in training."""

    binding = hvd

    def __init__(self, task: Task, *, beside: bool = False) -> None:
        super().__init__(task, beside=beside)
        module, _ = self.described()
        self._compression = _compression(self)
        trained = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        self._gradients = [(name, torch.ones_like(each, device=self.device)) for name, each in reversed(trained)]

    def send(self) -> None:
        compression = self._compression
        flying = []
        for name, gradient in self._gradients:
            compressed, context = compression.compress(gradient)
            flying.append((gradient, hvd.allreduce_async_(compressed, name=name, op=hvd.Average), context))
        for gradient, handle, context in flying:
            gradient.set_(compression.decompress(hvd.synchronize(handle), context))


def _compression(rank: Joined) -> Any:
    named = rank.compression()
    return ChannelsLast(named) if rank.task.point.workload.memory_format == "channels_last" else named


class ChannelsLast:
    """Horovod's compressor `inner`, which also accepts gradients in channels_last. Horovod refuses these. It gets
    the same memory as a contiguous tensor."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def compress(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """Return what is sent, and the context for `decompress`."""
        dense = _dense(tensor)
        sent, context = self._inner.compress(dense)
        return sent, (context, dense is not tensor)

    def decompress(self, tensor: Tensor, context: tuple[Any, bool]) -> Tensor:
        inner, moved = context
        received: Tensor = self._inner.decompress(tensor, inner)
        return received.permute(0, 3, 1, 2) if moved else received


def _dense(tensor: Tensor) -> Tensor:
    """Return the same memory as a contiguous tensor, its dimensions in the order of channels_last."""
    return tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)
