"""What computes a rank's gradients in TensorFlow: its device, here, or one that sleeps (emulated.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import keras
import tensorflow as tf

from scaling.frameworks import options
from scaling.frameworks.tf import losses, native_feed, optimizers
from scaling.records.task import Task
from scaling.workloads import feeds
from scaling.workloads.specs import ModelSpec, Recipe


class Learner(Protocol):
    """What computing needs of its rank (loop.py)."""

    task: Task
    spec: ModelSpec
    device: str
    replicas: int
    model: keras.Model
    sources: list[tf.Variable]
    optimizer: keras.optimizers.Optimizer


class Compute(Protocol):
    """Where a rank's gradients come from: a model's passes (`RealCompute`), or an emulated device's sleeps."""

    recipe: Recipe

    def first(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Open the feed: what the first step's graph is called with."""

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """The mean loss of a batch, and its gradients divided by `replicas` (and scaled, in fp16), as operations
        of a graph."""

    def start(self) -> None:
        """The step's graph is there."""

    def run(self, step: Callable[..., tf.Tensor], number: int) -> int:
        """Call the step's graph with the batch of this number; returns how many samples that has."""

    def finish(self) -> None:
        """Wait for what the graph does not."""

    def loss(self) -> float | None:
        """Of this rank's last batch."""


class RealCompute:
    """Forward and backward of a rank's Keras model on the batches of its feed."""

    def __init__(self, rank: Learner) -> None:
        self._rank = rank
        self.recipe = rank.spec.recipe
        self._losses = losses.of(rank.spec.target)
        self._decay = optimizers.coupled_decay(self.recipe)
        self._parts = options.accumulated(rank.task.point)
        # XLA gets forward and backward. The exchange stays outside: it has no such operations on CPU.
        work = rank.task.point.workload
        passes = self._forward_alone if work.pass_ == "forward" else self._compute
        compiled = tf.function(passes, autograph=False, jit_compile=True)
        self._passes = compiled if work.compile else passes
        self._loss: tf.Tensor | None = None
        self._pixels: tuple[tf.Tensor, tf.Tensor] | None = None

    def first(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The first batch. One that is fixed goes to the device now, and never again."""
        self._feed = native_feed.opened(self._rank.task, self._rank.spec)
        batch = self._moved(0)
        self._batch = batch if self._feed.fixed else None
        return batch

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Of a whole batch, compiled by XLA if that was asked for; no gradients of a forward pass."""
        return self._passes(images, labels)

    def start(self) -> None:
        """Nothing to prepare."""

    def run(self, step: Callable[..., tf.Tensor], number: int) -> int:
        """One step on this rank's images."""
        images, labels = self._batch or self._moved(number)
        self._loss = step(images, labels)
        return len(images)

    def finish(self) -> None:
        """Nothing runs beside the graph."""

    def loss(self) -> float | None:
        """Of this rank's last batch."""
        return None if self._loss is None else float(self._loss)

    def _compute(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        if self._parts == 1:
            return self._compute_part(images, labels)
        parts = self._parts
        images, labels = (tf.reshape(each, (parts, -1, *each.shape[1:])) for each in (images, labels))

        def add(index: tf.Tensor, loss: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
            part_loss, gradients = self._compute_part(images[index], labels[index])
            return index + 1, loss + part_loss, [a + b for a, b in zip(sums, gradients, strict=True)]

        zeros = [tf.zeros(each.shape) for each in self._rank.sources]
        begin = (0, 0.0, zeros)
        _, loss, sums = tf.while_loop(lambda index, *_: index < parts, add, begin, parallel_iterations=1)
        return loss / parts, [each / parts for each in sums]

    def _compute_part(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        rank = self._rank
        with tf.GradientTape() as tape:
            loss = self._forward(images, labels)
            total = loss
            if self._decay:
                total += self._decay * tf.add_n([tf.nn.l2_loss(each) for each in rank.sources])
            shared = total / rank.replicas
            if rank.task.point.workload.precision == "fp16":
                shared = rank.optimizer.scale_loss(shared)
        # Those of embeddings name the rows that were read: dense, as in the other frameworks.
        return loss, [tf.convert_to_tensor(each) for each in tape.gradient(shared, rank.sources)]

    def _forward(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = tf.cast(self._rank.model(images, training=True), tf.float32)
        return self._losses(logits, labels)

    def _forward_alone(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return self._forward(images, labels), []

    def _moved(self, step: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The feed's batch on the device, images as (batch, height, width, channels)."""
        taken, labels = self._feed.batch(step)
        with tf.device(self._rank.device):
            if isinstance(taken, tf.Tensor):
                return self._normalised(tf.identity(taken)), tf.identity(labels)
            return tf.constant(taken.transpose(0, 2, 3, 1) if taken.ndim == 4 else taken), tf.constant(labels)

    def _normalised(self, images: tf.Tensor) -> tf.Tensor:
        """Bytes as a native feed has them, of which a quarter is moved."""
        if self._pixels is None:
            found = feeds.encoded_pictures(self._rank.task, self._rank.spec)
            self._pixels = tf.constant(found.scale.reshape(-1)), tf.constant(found.shift.reshape(-1))
        scale, shift = self._pixels
        return tf.cast(images, tf.float32) * scale - shift
