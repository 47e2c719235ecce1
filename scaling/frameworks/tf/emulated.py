"""TensorFlow on emulated devices: real gradients and exchange; sleeps replace the compute.

The forward pass is one operation that sleeps, and so is each layer's backward pass. A layer's gradients and their
exchange follow its sleep. A gradient has one value per rank and step: the digest shows what an exchange leaves out
or adds twice. The update is plain SGD.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from scaling.records.task import Task
from scaling.tools.emulated.device import EmulatedDevice, value
from scaling.workloads import models
from scaling.workloads.specs import Recipe


class Variables:
    """The variables of a Keras model alone, divided by the point's `shrink`."""

    def __init__(self, device: EmulatedDevice) -> None:
        sizes = [size for span in device.spans for size in span.sizes]
        self.trainable_variables = [keras.Variable(tf.zeros(size), name="weight") for size in sizes]
        self.variables = self.trainable_variables


class EmulatedCompute:
    """Sleeps as long as the device would compute, and fills the gradients with a number."""

    def __init__(self, device: EmulatedDevice, task: Task, replicas: int) -> None:
        self._device, self._task, self._replicas = device, task, replicas
        # Nothing is learnt.
        self.recipe = Recipe(rate=models.of(task.point.workload).recipe.rate, momentum=0.0)
        self._timeline = device.timeline

    def first(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the fill value of the first step's gradients twice, as images and labels."""
        return self._filling(0)

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss and the gradients, layer by layer, divided by `replicas`."""
        done = self._sleep(sum(span.forward_s for span in self._device.spans), images)
        gradients: list[tf.Tensor] = []
        for span in reversed(self._device.spans):
            done = self._sleep(span.backward_s, done)
            gradients[:0] = [tf.fill([size], done / self._replicas) for size in span.sizes]
        return labels, gradients

    def start(self) -> None:
        self._timeline.meet()

    def run(self, step: Callable[..., tf.Tensor], number: int) -> int:
        self._timeline.begin(self._device.rate.step_s)
        step(*self._filling(number))
        # The gradients of all ranks are here.
        self._timeline.meet()
        return self._task.point.workload.batch_size

    def finish(self) -> None:
        self._timeline.finish()

    def loss(self) -> None:
        """Return None: nothing is learnt."""

    def _filling(self, step: int) -> tuple[tf.Tensor, tf.Tensor]:
        filled_with = tf.constant(value(self._task.rank, step))
        return filled_with, filled_with

    def _sleep(self, seconds: float, after: tf.Tensor) -> tf.Tensor:
        """Add an operation that returns `after` once the device has worked for `seconds`."""

        def spend(number: tf.Tensor) -> tf.Tensor:
            self._timeline.spend(seconds)
            return number

        slept = tf.numpy_function(spend, [after], tf.float32)
        slept.set_shape(())
        return slept
