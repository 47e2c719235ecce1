"""TensorFlow's synchronous strategies on emulated devices: real gradients, real exchange, and sleeps in place of
computing.

In the step's graph the forward pass is one operation that sleeps, and so is each layer's backward pass, one after
the other. A layer's gradients are made when its sleep is over; what the strategy does with them may begin then.
All elements of a rank's gradients have one value, other in each rank and step: what an exchange leaves out or adds
twice shows in the digest. The update is plain SGD.
"""

from __future__ import annotations

from typing import Any

from scaling.emulated.device import EmulatedDevice, class_of, value
from scaling.frameworks.base import Trainer
from scaling.frameworks.tf.loop import Learning, Training
from scaling.frameworks.tf.rank import TensorFlowRank
from scaling.records.task import Task


def made(kind: type[TensorFlowRank], task: Task) -> Trainer:
    """A rank of this class, on an emulated device with emulated variables in the model's place."""
    found: Any = kind
    if task.point.hardware.device == "emulated":
        found = class_of(kind, EmulatedTraining if issubclass(kind, Training) else EmulatedRank)
    trainer: Trainer = found(task)
    return trainer


class Variables:
    """What is asked of a Keras model where only its variables matter."""

    def __init__(self, trainable: list[Any]) -> None:
        self.variables = self.trainable_variables = trainable


class EmulatedRank(TensorFlowRank):
    """The facts about one emulated device."""

    def __init__(self, task: Task) -> None:
        self.emulated = EmulatedDevice(task.point)
        super().__init__(task)

    def build(self) -> Any:
        """The model's variables, divided by the point's `shrink`."""
        sizes = [size for span in self.emulated.spans for size in span.sizes]
        return Variables([self.keras.Variable(self.tf.zeros(size), name="weight") for size in sizes])

    def _name_device(self) -> str:
        return self.emulated.name


class EmulatedTraining(EmulatedRank, Training):
    """The plain loop on an emulated device; what strategies override in `Training` is called as there."""

    def __init__(self, task: Task) -> None:
        self.emulated = EmulatedDevice(task.point)
        self.timeline = self.emulated.timeline
        # Not the next in line, which feeds the real model.
        Learning.__init__(self, task)
        one = self.tf.TensorSpec((), self.tf.float32)
        step = self.tf.function(self.distribute(self.train), autograph=False)
        self._step = step.get_concrete_function(one, one)
        self._steps = 0
        self.samples = 0
        self.timeline.meet()

    def step(self) -> None:
        """Forward, backward, exchange, update."""
        self.timeline.begin(self.emulated.rate.step_s)
        filled_with = self.tf.constant(value(self.task.rank, self._steps))
        self._step(filled_with, filled_with)
        # Gradients of all ranks are there.
        self.timeline.meet()
        self._steps += 1
        self.samples += self.task.point.workload.batch_size

    def sync(self) -> None:
        """Wait for the device."""
        self.timeline.finish()

    def loss(self) -> None:
        """Nothing is learnt."""

    def _make_optimizer(self) -> Any:
        # Without momentum: nothing is learnt.
        optimizer = self.keras.optimizers.SGD(self.spec.learning_rate)
        optimizer.build(self.sources)
        return optimizer

    def _compute(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        """In place of images and labels: what this step's gradients are filled with, divided by `replicas`."""
        tf = self.tf
        done = self._sleep(sum(span.forward_s for span in self.emulated.spans), images)
        gradients: list[Any] = []
        for span in reversed(self.emulated.spans):
            done = self._sleep(span.backward_s, done)
            gradients[:0] = [tf.fill([size], done / self.replicas) for size in span.sizes]
        return labels, gradients

    def _sleep(self, seconds: float, after: Any) -> Any:
        """An operation that returns `after` when the device has worked for `seconds` since it had it."""

        def spend(number: Any) -> Any:
            self.timeline.spend(seconds)
            return number

        slept = self.tf.numpy_function(spend, [after], self.tf.float32)
        slept.set_shape(())
        return slept
