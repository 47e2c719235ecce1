"""The MXNet strategies on emulated devices: real gradients, real exchange, and sleeps in place of computing.

The emulated block has the model's parameters, divided by the point's `shrink`, in the model's order. On a device
MXNet's engine starts the exchange of a gradient when backward has made it, and a layer when its weights have been
pulled. Here the loop sleeps for a layer's backward and only then hands its gradients to the Trainer, and waits for
its weights before it sleeps for its forward pass. All elements of a rank's gradients have one value, other in each
rank and step: what an exchange leaves out or adds twice shows in the digest. The update is plain SGD.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from scaling.emulated.device import EmulatedDevice, class_of, value
from scaling.frameworks.base import Trainer
from scaling.frameworks.mx.loop import Exchange, GradientExchange, Training
from scaling.records.task import Task

# Gluon's trainers leave out such parameters.
LEFT_OUT = SimpleNamespace(grad_req="null")


def made(kind: type[Exchange], task: Task) -> Trainer:
    """A rank of this class, on an emulated device with the emulated block in the model's place."""
    found: Any = kind
    if task.point.hardware.device == "emulated":
        found = class_of(kind, EmulatedTraining if issubclass(kind, Training) else EmulatedGradients)
    trainer: Trainer = found(task)
    return trainer


class EmulatedDevices(Exchange):
    """The parameters of emulated devices, and their time, which is the same on all of a process."""

    def __init__(self, task: Task) -> None:
        self.emulated = EmulatedDevice(task.point)
        self.timeline = self.emulated.timeline
        # Not the next in line, which for a training loop is the one that feeds the real model.
        Exchange.__init__(self, task)

    def build(self) -> Any:
        """A block per span."""
        net = self.mx.gluon.nn.Sequential()
        for span in self.emulated.spans:
            block = self.mx.gluon.nn.Sequential()
            for index, size in enumerate(span.sizes):
                name = f"weight{index}"
                setattr(block, name, block.params.get(name, shape=(size,), init="zeros"))
            net.add(block)
        net.initialize(ctx=self.contexts)
        return net

    def update_samples(self) -> int:
        """None is fed."""
        return self.task.point.workload.batch_size

    def _optimizer_options(self) -> dict[str, Any]:
        # Without momentum: nothing is learnt.
        return {**super()._optimizer_options(), "momentum": 0.0}

    def _name_device(self) -> str:
        return self.emulated.name


class EmulatedGradients(EmulatedDevices, GradientExchange):
    """The exchange of their gradients alone."""


class EmulatedTraining(EmulatedDevices, Training):
    """The plain loop on emulated devices; what strategies override in `Exchange` is called as there."""

    def __init__(self, task: Task) -> None:
        EmulatedDevices.__init__(self, task)
        self._steps = 0
        self.samples = 0
        # The model's, in its order.
        self._parameters = self.trainer._params
        numbers = iter(range(len(self._parameters)))
        self._numbered = [(span, [next(numbers) for _ in span.sizes]) for span in self.emulated.spans]
        # What the Trainer sees while one gradient is ready.
        self._ready = [
            [each if other is each else LEFT_OUT for other in self._parameters] for each in self._parameters
        ]
        # The first step makes what trainers make late.
        self.trainer.step(1, ignore_stale_grad=True)
        self.mx.nd.waitall()
        self.timeline.meet()

    def step(self) -> None:
        """Forward, backward, update, as long as the profile says."""
        self.timeline.begin(self.emulated.rate.step_s)
        for span, numbers in self._numbered:
            self._wait_for(numbers)
            self.timeline.spend(span.forward_s)
        for span, numbers in reversed(self._numbered):
            self.timeline.spend(span.backward_s)
            for number in reversed(numbers):
                self._exchange(number, value(self.task.rank, self._steps))
        self.update()
        self._steps += 1
        self.samples += self.task.point.workload.batch_size * len(self.contexts)

    def update(self) -> None:
        """The gradients are exchanged or on their way: what updates where they arrive is left."""
        self.trainer._params = self._parameters
        self.trainer._update()

    def sync(self) -> None:
        """Wait for the exchange and the device."""
        self.timeline.ask()
        super().sync()
        self.timeline.granted()
        self.timeline.finish()

    def loss(self) -> None:
        """Nothing is learnt."""

    def _wait_for(self, numbers: list[int]) -> None:
        """For the weights that the last step's exchange brings, on all devices."""
        self.timeline.ask()
        for number in numbers:
            for weight in self._parameters[number].list_data():
                weight.wait_to_read()
        self.timeline.granted()

    def _exchange(self, number: int, filled_with: float) -> None:
        """Of one parameter's gradient, which has just been computed."""
        of = self._parameters[number]
        for index, (weight, gradient) in enumerate(zip(of.list_data(), of.list_grad(), strict=True)):
            gradient[:] = filled_with + index
            # As backward leaves it: trainers pass stale gradients over.
            weight._fresh_grad = True
        self.trainer._params = self._ready[number]
        self.trainer._allreduce_grads()
