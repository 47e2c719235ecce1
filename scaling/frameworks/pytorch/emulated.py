"""The torch strategies on emulated devices: real gradients, real exchange, and sleeps in place of computing.

The emulated module has the model's parameters, divided by the point's `shrink`, in the model's order. Each layer
is an autograd function that sleeps until its absolute end, forward and backward, so that DDP, Horovod and the
parameter servers' client see gradients appear one after the other, as on a GPU. All elements of a rank's
gradients have one value, other in each rank and step: what an exchange leaves out or adds twice shows in the
digest. The update is plain SGD, the cheapest that depends on every element.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from scaling.emulated import layers
from scaling.emulated.device import EmulatedDevice, class_of, value
from scaling.emulated.timeline import Timeline
from scaling.frameworks.base import Trainer
from scaling.frameworks.pytorch import vision
from scaling.frameworks.pytorch.loop import TorchRank, Training
from scaling.records.task import Task


def made(kind: type[TorchRank], task: Task) -> Trainer:
    """A rank of this class, on an emulated device with the emulated module in the model's place."""
    found: Any = kind
    if task.point.hardware.device == "emulated":
        found = class_of(kind, EmulatedTraining if issubclass(kind, Training) else EmulatedRank)
    trainer: Trainer = found(task)
    return trainer


class EmulatedRank(TorchRank):
    """The facts about one emulated device."""

    def __init__(self, task: Task) -> None:
        self.emulated = EmulatedDevice(task.point)
        self.timeline = self.emulated.timeline
        # Not the next in line, which for a training loop is the one that builds the real model.
        TorchRank.__init__(self, task)
        self.torch.set_num_threads(1)

    def build(self) -> Any:
        """The emulated module."""
        self.notes = vision.notes(self.spec)
        return self.torch.nn.Sequential(*(_layer_class()(self.timeline, span) for span in self.emulated.spans))

    def _name_device(self) -> str:
        return self.emulated.name


class EmulatedTraining(EmulatedRank, Training):
    """The plain loop on an emulated device; what strategies override in `Training` is called as there."""

    def __init__(self, task: Task) -> None:
        EmulatedRank.__init__(self, task)
        self._module = self.build()
        self.describe(self._module)
        self._model = self.wrap(self._module)
        self._optimizer = self.make_optimizer()
        self._exchanges = task.point.kind == "exchange"
        self._steps = 0
        self.samples = 0
        # The strategies' first contact is over: what it took is not of the first step.
        self.timeline.meet()

    def make_optimizer(self) -> Any:
        """Without momentum: nothing is learnt."""
        return self.torch.optim.SGD(self._module.parameters(), lr=self.spec.learning_rate, fused=True)

    def step(self) -> None:
        """Forward, backward, update, as long as the profile says."""
        self.timeline.begin(self.emulated.rate.step_s)
        self._optimizer.zero_grad()
        images = self.torch.ones((), requires_grad=True)
        (self._model(images) * value(self.task.rank, self._steps)).backward()
        self.update()
        self._steps += 1
        self.samples += self.task.point.workload.batch_size
        self.timeline.ask()

    def update(self) -> None:
        """Gradients of all ranks are there, or on their way to the servers."""
        if self._exchanges:
            self.timeline.meet()
        self._optimizer.step()

    def sync(self) -> None:
        """Wait for the device. A strategy that waits for its servers first has done so."""
        self.timeline.granted()
        self.timeline.finish()

    def loss(self) -> None:
        """Nothing is learnt."""


@lru_cache(maxsize=1)
def _layer_class() -> Any:
    """A module with the parameters of one span."""
    import torch

    function = _function_class()

    class Layer(torch.nn.Module):
        def __init__(self, timeline: Timeline, span: layers.Span) -> None:
            super().__init__()
            self.timeline, self.span = timeline, span
            for index, size in enumerate(span.sizes):
                self.register_parameter(f"weight{index}", torch.nn.Parameter(torch.zeros(size)))
            # Before the hooks of others, in which they may wait for parameters.
            self.register_forward_pre_hook(lambda *_: timeline.ask())

        def forward(self, images: Any) -> Any:
            self.timeline.granted()
            return function.apply(images, self.timeline, self.span, *self._parameters.values())

    return Layer


@lru_cache(maxsize=1)
def _function_class() -> Any:
    """Sleeps; its gradients are views of one number, which torch copies into memory of their own."""
    import torch

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, images: Any, timeline: Timeline, span: layers.Span, *_weights: Any) -> Any:
            context.timeline, context.span = timeline, span
            timeline.spend(span.forward_s)
            return images.clone()

        @staticmethod
        def backward(context: Any, *gradients: Any) -> Any:
            (gradient,) = gradients
            context.timeline.spend(context.span.backward_s)
            return gradient, None, None, *(gradient.expand(size) for size in context.span.sizes)

    return Sleep
