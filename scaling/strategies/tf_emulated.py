"""TensorFlow's synchronous strategies on emulated devices: real gradients, real exchange, and sleeps in place of
computing.

In the step's graph the forward pass is one operation that sleeps, and so is each layer's backward pass, one after
the other. A layer's gradients are made when its sleep is over; what the strategy does with them may begin then.
All elements of a rank's gradients have one value, other in each rank and step: what an exchange leaves out or adds
twice shows in the digest. The update is plain SGD.
"""

from __future__ import annotations

from typing import Any

from scaling.emulated import layers, profiles
from scaling.emulated.timeline import Timeline
from scaling.points import Point
from scaling.strategies.base import Trainer
from scaling.strategies.tf_loop import Learning, Training
from scaling.strategies.tf_rank import TensorFlowRank
from scaling.tasks import Task


def made(kind: type[TensorFlowRank], task: Task) -> Trainer:
    """A rank of this class, on an emulated device with emulated variables in the model's place."""
    found: Any = kind
    if task.point.device == "emulated":
        base: Any = EmulatedTraining if issubclass(kind, Training) else EmulatedRank
        found = base if issubclass(base, kind) else type(f"Emulated{kind.__name__}", (kind, base), {})
    trainer: Trainer = found(task)
    return trainer


class Variables:
    """What is asked of a Keras model where only its variables matter."""

    def __init__(self, trainable: list[Any]) -> None:
        self.variables = self.trainable_variables = trainable


class EmulatedRank(TensorFlowRank):
    """The facts about one emulated device."""

    def __init__(self, task: Task) -> None:
        self.emulate(task.point)
        super().__init__(task)

    def emulate(self, point: Point) -> None:
        """Know the device, before anything is built."""
        self.rate = profiles.rate(point.profile, point.model, point.batch_size)
        self.spans = layers.spans(layers.of(point.model), self.rate.step_s, point.shrink)
        self.timeline = Timeline(point.dilate)

    def build(self) -> Any:
        """The model's variables, divided by the point's `shrink`."""
        sizes = [size for span in self.spans for size in span.sizes]
        return Variables([self.keras.Variable(self.tf.zeros(size), name="weight") for size in sizes])

    def _name_device(self) -> str:
        return f"emulated {profiles.find(self.task.point.profile).device}"


class EmulatedTraining(EmulatedRank, Training):
    """The plain loop on an emulated device; what strategies override in `Training` is called as there."""

    def __init__(self, task: Task) -> None:
        self.emulate(task.point)
        # Not the next in line, which feeds the real model.
        Learning.__init__(self, task)
        value = self.tf.TensorSpec((), self.tf.float32)
        step = self.tf.function(self.distribute(self.train), autograph=False)
        self._step = step.get_concrete_function(value, value)
        self._steps = 0
        self.samples = 0
        self.timeline.meet()

    def step(self) -> None:
        """Forward, backward, exchange, update."""
        self.timeline.begin(self.rate.step_s)
        value = self.tf.constant(1.0 + (7 * self.task.rank + 3 * self._steps) % 31)
        self._step(value, value)
        # Gradients of all ranks are there.
        self.timeline.meet()
        self._steps += 1
        self.samples += self.task.point.batch_size

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
        """The value of this step's gradients, and they, divided by `replicas`."""
        tf = self.tf
        done = self._sleep(sum(span.forward_s for span in self.spans), images)
        gradients: list[Any] = []
        for span in reversed(self.spans):
            done = self._sleep(span.backward_s, done)
            gradients[:0] = [tf.fill([size], done / self.replicas) for size in span.sizes]
        return labels, gradients

    def _sleep(self, seconds: float, value: Any) -> Any:
        """An operation that returns `value` when the device has worked for `seconds` after it had it."""

        def spend(number: Any) -> Any:
            self.timeline.spend(seconds)
            return number

        slept = self.tf.numpy_function(spend, [value], self.tf.float32)
        slept.set_shape(())
        return slept
