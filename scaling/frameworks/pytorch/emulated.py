"""An emulated device in the worker: real gradients for a real exchange, and sleeps in place of computing.

The emulated module has the model's parameters, divided by the point's `shrink`, in the model's order. Each layer
is an autograd function that sleeps until its absolute end, forward and backward, so that DDP, Horovod and the
parameter servers' client see gradients appear one after the other, as on a GPU. All elements of a rank's
gradients have one value, other in each rank and step: what an exchange leaves out or adds twice shows in the
digest. The update is plain SGD, the cheapest that depends on every element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from scaling.emulated.device import EmulatedDevice, value
from scaling.emulated.layers import Span
from scaling.emulated.timeline import Timeline
from scaling.frameworks.pytorch.compute import Batch, Optimizer
from scaling.records.task import Task
from scaling.workloads import models


class EmulatedCompute:
    """A device that takes as long as the profile says."""

    learns = False
    model: Callable[[Tensor], Tensor]

    def __init__(self, task: Task) -> None:
        point = task.point
        self._device = EmulatedDevice(point)
        self._timeline = self._device.timeline
        self._rank = task.rank
        self._exchanges = point.kind == "exchange"
        self._rate = models.of(point.workload).recipe.rate
        # As many as a batch has images; nobody reads them.
        self._labels = torch.zeros(point.workload.batch_size)
        self._value = 0.0
        self.name = self._device.name
        torch.set_num_threads(1)

    def build(self) -> nn.Module:
        """The emulated module."""
        return nn.Sequential(*(Layer(self._timeline, span) for span in self._device.spans))

    def place(self, module: nn.Module) -> nn.Module:
        """It is there."""
        return module

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Without momentum: nothing is learnt."""
        return torch.optim.SGD(parameters, lr=self._rate, fused=True)

    def start(self) -> None:
        """The strategies' first contact is over: what it took is not of the first step."""
        self._timeline.meet()

    def batch(self, step: int) -> Batch:
        """What flows through the layers, and this step's gradients to come."""
        self._timeline.begin(self._device.rate.step_s)
        self._value = value(self._rank, step)
        return torch.ones((), requires_grad=True), self._labels

    def forward(self, images: Tensor, _labels: Tensor) -> Tensor:
        """As long as the profile says."""
        return self.model(images) * self._value

    def backward(self, images: Tensor, labels: Tensor, _parts: int = 1) -> Tensor:
        """As long as the profile says; batches come as a whole (limits.refuse)."""
        loss = self.forward(images, labels)
        loss.backward()
        return loss.detach()

    def update(self, optimizer: Optimizer) -> None:
        """At once. What comes next may have to wait for the servers."""
        if self._exchanges:
            self._timeline.meet()
        optimizer.step()
        self._timeline.ask()

    def sync(self) -> None:
        """Sleep to the end. A strategy that waits for its servers first has done so."""
        self._timeline.granted()
        self._timeline.finish()


class Layer(nn.Module):
    """A module with the parameters of one span."""

    def __init__(self, timeline: Timeline, span: Span) -> None:
        super().__init__()
        self._timeline, self._span = timeline, span
        for index, size in enumerate(span.sizes):
            self.register_parameter(f"weight{index}", nn.Parameter(torch.zeros(size)))
        # Before the hooks of others, in which they may wait for parameters.
        self.register_forward_pre_hook(lambda *_: timeline.ask())

    def forward(self, images: Tensor) -> Tensor:
        """Sleep, once the parameters are there."""
        self._timeline.granted()
        slept: Tensor = Sleep.apply(images, self._timeline, self._span, *self._parameters.values())  # type: ignore[no-untyped-call]
        return slept


class Sleep(torch.autograd.Function):
    """Both passes of a span. Its gradients are views of one number, which torch copies into memory of its own."""

    @staticmethod
    def forward(context: Any, images: Tensor, timeline: Timeline, span: Span, *_weights: Tensor) -> Tensor:
        """Sleep for the forward pass."""
        context.timeline, context.span = timeline, span
        timeline.spend(span.forward_s)
        return images.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Sleep for the backward pass."""
        (gradient,) = gradients
        context.timeline.spend(context.span.backward_s)
        return gradient, None, None, *(gradient.expand(size) for size in context.span.sizes)
