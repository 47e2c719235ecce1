"""The TensorFlow training loop that all TensorFlow strategies share, and the trainer of `tensorflow:plain`.

Strategies differ in where variables are made and in what happens to the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from scaling.frameworks.base import Trainer
from scaling.frameworks.digest import digest_of
from scaling.frameworks.tf import evaluation, native_feed, optimizers
from scaling.frameworks.tf.compute import Compute, RealCompute
from scaling.frameworks.tf.emulated import EmulatedCompute
from scaling.frameworks.tf.lifeline import end_with_parent
from scaling.frameworks.tf.rank import TensorFlowRank
from scaling.records.task import Task

# What feeds a rank, alone.
pipeline = native_feed.pipeline


def connect(task: Task) -> Trainer:
    """Raises what TensorFlow raises."""
    end_with_parent()
    return Training(task)


def sources(trained: Iterable[keras.Variable]) -> list[tf.Variable]:
    """The trained variables as tf.Variable, those that were cut into parts by part."""
    found: list[tf.Variable] = []
    for each in trained:
        found += getattr(each.value, "variables", [each.value])
    return found


class Learning(TensorFlowRank):
    """The model, its loss and optimiser, and one step's computation.

    A strategy overrides some of `join`, `scope`, `broadcast`, `exchange`, `distribute` and `replicas`; all
    else stays the same.
    """

    # What optimizer.apply sums gradients over: the loss is divided by it, so that the sum is a mean.
    replicas = 1

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.join()
        self.compute = self._make_compute()
        with self.scope():
            self.model = self.build()
            # What gradients are taken of, as tf.Variable.
            self.sources = sources(self.trained(self.model))
            self.optimizer = self._make_optimizer()
        self.describe(self.model)
        self.broadcast()
        self.samples = 0

    # ------------------------------------------------------------ what strategies override

    def join(self) -> None:
        """Enter the exchange; TensorFlow has its devices and threads, and no variable is made yet."""

    def scope(self) -> AbstractContextManager[object]:
        """Where the variables are made."""
        return nullcontext()

    def broadcast(self) -> None:
        """Give all ranks rank 0's variables (`self.variables()`); equal seeds have made them equal already."""

    def exchange(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """The mean of each gradient over all ranks, in the order of `trained`.

        Called once, while the step is traced: it adds operations to the step's graph.
        """
        return gradients

    def distribute(self, function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        """What the step's graph calls in place of `function(images, labels)`, which returns the loss."""
        return function

    # ------------------------------------------------------------ the parameters

    def variables(self) -> list[tf.Variable]:
        """The model's and the optimiser's, as tf.Variable."""
        return [each.value for each in (*self.model.variables, *self.optimizer.variables)]

    def weights(self) -> dict[str, NDArray[Any]]:
        """The parameters as NumPy arrays that later steps do not change.

        Named by their place in the model's description.
        """
        named = enumerate(self.trained(self.model))
        convert = tf.convert_to_tensor
        return {f"{index}.{each.name}": convert(each.value).numpy().copy() for index, each in named}

    def digest(self) -> str | None:
        """Of the parameters alone: running means follow each rank's own images."""
        return digest_of(self.weights())

    # ------------------------------------------------------------ one step

    def train(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Forward, backward, exchange, update, as operations of a graph; returns the batch's mean loss."""
        loss, gradients = self.compute.gradients(images, labels)
        self.optimizer.apply(self.exchange(gradients))
        return loss

    def _make_compute(self) -> Compute:
        if self.emulated is not None:
            return EmulatedCompute(self.emulated, self.task, self.replicas)
        return RealCompute(self)

    def _make_optimizer(self) -> keras.Optimizer:
        optimizer = optimizers.make(self.compute.recipe)
        if self.task.point.workload.precision == "fp16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(self.sources)
        return optimizer


class Training(evaluation.Judging, Learning):
    """One rank that trains on its own images: without an exchange, the plain loop."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        batch = self.compute.first()
        # Traced now, and not later under the clock for stalls.
        self._step = self._traced(batch)
        if task.point.workload.compile:
            self._rehearse(batch)
        self._steps, self._rate = 0, self.compute.recipe.rate
        self.compute.start()

    def step(self) -> None:
        """Forward, backward, exchange, update; or those passes alone that the point asks for."""
        self.samples += self.compute.run(self._step, self._steps)
        self._steps += 1

    def set_rate(self, rate: float) -> None:
        """Of a variable, which the step's graph reads."""
        optimizers.set_rate(getattr(self.optimizer, "inner_optimizer", self.optimizer), rate, self._rate)
        self._rate = rate

    def sync(self) -> None:
        """Wait for the device."""
        super().sync()
        self.compute.finish()

    def loss(self) -> float | None:
        """Of this rank's last batch; None where passes train nothing."""
        return self.compute.loss() if self.task.point.workload.trains else None

    def _traced(self, batch: tuple[tf.Tensor, tf.Tensor]) -> Callable[..., tf.Tensor]:
        """The step's graph. One that trains nothing returns its gradients too: else they would be pruned."""
        trains = self.task.point.workload.trains
        graph = tf.function(self.distribute(self.train) if trains else self._passes, autograph=False)
        step = graph.get_concrete_function(*map(tf.TensorSpec.from_tensor, batch))
        return step if trains else lambda images, labels: step(images, labels)[0]

    def _passes(self, images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        loss, gradients = self.compute.gradients(images, labels)
        return [loss, *gradients]

    def _rehearse(self, batch: tuple[tf.Tensor, tf.Tensor]) -> None:
        """XLA compiles in the first step: make one now, and put all variables back."""
        variables = self.variables()
        kept = [each.numpy().copy() for each in variables]
        self._step(*batch)
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
