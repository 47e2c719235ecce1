"""The TensorFlow training loop that all TensorFlow strategies share: they differ in where variables are
made and in what happens to the gradients. TensorFlow is imported when a rank is made: the agent imports
this module too."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

from scaling.frameworks import limits, options
from scaling.frameworks.tf import vision
from scaling.frameworks.tf.rank import TensorFlowRank
from scaling.records.point import Point
from scaling.records.task import Task
from scaling.workloads import feeds

# Every TensorFlow strategy has these beside its own.
OPTIONS = options.LOOP
MOMENTUM = 0.9
PR_SET_PDEATHSIG = 1
# Keras reads and writes `keras.json` in its home: a user's settings would change what is measured, and a
# benchmark has no business in a user's home. A folder that cannot be is quietly done without.
ENVIRON: Mapping[str, str] = {
    "KERAS_BACKEND": "tensorflow",
    "KERAS_HOME": os.devnull,
    "TF_CPP_MIN_LOG_LEVEL": "1",
}


def missing() -> str | None:
    """Why TensorFlow cannot be imported, found without importing it."""
    found = find_spec("tensorflow")
    return "tensorflow is not installed: ./launch/install tensorflow" if found is None else None


def refuse(point: Point) -> str | None:
    """What no TensorFlow strategy can do. Any `memory_format` will do: TensorFlow has one of its own."""
    if (why := limits.refuse(point)) is not None:
        return why
    if not vision.available(point.workload.model):
        return f"--model {point.workload.model}: not in Keras; tensorflow has {', '.join(vision.BUILDERS)}"
    return options.refuse(point)


def prepare() -> None:
    """Import TensorFlow, through Keras."""
    end_with_parent()
    import keras  # type: ignore[import-untyped, unused-ignore]  # noqa: F401


def end_with_parent() -> None:
    """Let the kernel kill this process when its agent dies.

    While TensorFlow waits for its peers it holds Python's lock, and the thread that watches the lifeline
    cannot run.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def sources(model: Any) -> list[Any]:
    """The trained variables as tf.Variable, those that were cut into parts by part."""
    found: list[Any] = []
    for each in model.trainable_variables:
        found += getattr(each.value, "variables", [each.value])
    return found


class Learning(TensorFlowRank):
    """The model, SGD of momentum 0.9 on cross-entropy, and one step's computation.

    A strategy overrides some of `join`, `scope`, `broadcast`, `exchange`, `distribute` and `replicas`; all
    else stays the same.
    """

    # What optimizer.apply sums gradients over: the loss is divided by it, so that the sum is a mean.
    replicas = 1

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.join()
        with self.scope():
            self.model = self.build()
            # What gradients are taken of, as tf.Variable.
            self.sources = sources(self.model)
            self.optimizer = self._make_optimizer()
        self.describe(self.model)
        self.broadcast()
        self._parts = options.accumulated(task.point)
        # XLA gets forward and backward. The exchange stays outside: it has no such operations on CPU.
        compiled = self.tf.function(self._compute, autograph=False, jit_compile=True)
        self._gradients = compiled if task.point.workload.compile else self._compute
        self.samples = 0

    # ------------------------------------------------------------ what strategies override

    def join(self) -> None:
        """Enter the exchange; TensorFlow has its devices and threads, and no variable is made yet."""

    def scope(self) -> AbstractContextManager[Any]:
        """Where the variables are made."""
        return nullcontext()

    def broadcast(self) -> None:
        """Give all ranks rank 0's variables (`self.variables()`); equal seeds have made them equal already."""

    def exchange(self, gradients: list[Any]) -> list[Any]:
        """The mean of each gradient over all ranks, in the order of `model.trainable_variables`.

        Called once, while the step is traced: it adds operations to the step's graph.
        """
        return gradients

    def distribute(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What the step's graph calls in place of `function(images, labels)`, which returns the loss."""
        return function

    # ------------------------------------------------------------ the parameters

    def variables(self) -> list[Any]:
        """The model's and the optimiser's, as tf.Variable."""
        return [each.value for each in (*self.model.variables, *self.optimizer.variables)]

    def weights(self) -> dict[str, Any]:
        """The parameters as NumPy arrays that later steps do not change.

        Named by their place in the model, since Keras numbers some layers anew with each model.
        """
        named = enumerate(self.model.trainable_variables)
        convert = self.tf.convert_to_tensor
        return {f"{index}.{each.name}": convert(each.value).numpy().copy() for index, each in named}

    def digest(self) -> str | None:
        """Of the parameters alone: running means follow each rank's own images."""
        digest = hashlib.sha256()
        for array in self.weights().values():
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    # ------------------------------------------------------------ one step

    def train(self, images: Any, labels: Any) -> Any:
        """Forward, backward, exchange, update, as operations of a graph; returns the batch's mean loss."""
        loss, gradients = self._gradients(images, labels)
        self.optimizer.apply(self.exchange(gradients))
        return loss

    def _make_optimizer(self) -> Any:
        optimizers = self.keras.optimizers
        optimizer = optimizers.SGD(self.spec.learning_rate, momentum=MOMENTUM)
        if self.task.point.workload.precision == "fp16":
            optimizer = optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(self.sources)
        return optimizer

    def _compute(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        """The mean loss of a batch, and its gradients divided by `replicas` (and scaled, in fp16)."""
        if self._parts == 1:
            return self._compute_part(images, labels)
        tf, parts = self.tf, self._parts
        images, labels = (tf.reshape(each, (parts, -1, *each.shape[1:])) for each in (images, labels))

        def add(index: Any, loss: Any, sums: list[Any]) -> tuple[Any, Any, list[Any]]:
            part_loss, gradients = self._compute_part(images[index], labels[index])
            return index + 1, loss + part_loss, [a + b for a, b in zip(sums, gradients, strict=True)]

        zeros = [tf.zeros(each.shape) for each in self.sources]
        begin = (0, 0.0, zeros)
        _, loss, sums = tf.while_loop(lambda index, *_: index < parts, add, begin, parallel_iterations=1)
        return loss / parts, [each / parts for each in sums]

    def _compute_part(self, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        tf = self.tf
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            shared = loss / self.replicas
            if self.task.point.workload.precision == "fp16":
                shared = self.optimizer.scale_loss(shared)
        return loss, tape.gradient(shared, self.sources)


class Training(Learning):
    """One rank that trains on its own images: without an exchange, the plain loop."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._feed = feeds.feed(task, self.spec)
        batch = self._moved(0)
        self._batch = batch if self._feed.fixed else None
        # Traced now, and not later under the clock for stalls.
        step = self.tf.function(self.distribute(self.train), autograph=False)
        self._step = step.get_concrete_function(*map(self.tf.TensorSpec.from_tensor, batch))
        if task.point.workload.compile:
            self._rehearse(batch)
        self._steps = 0
        self._loss: Any = None

    def step(self) -> None:
        """Forward, backward, exchange, update."""
        images, labels = self._batch or self._moved(self._steps)
        self._loss = self._step(images, labels)
        self._steps += 1
        self.samples += len(images)

    def loss(self) -> float | None:
        """Of this rank's last batch."""
        return None if self._loss is None else float(self._loss)

    def _rehearse(self, batch: tuple[Any, Any]) -> None:
        """XLA compiles in the first step: make one now, and put all variables back."""
        variables = self.variables()
        kept = [each.numpy().copy() for each in variables]
        self._step(*batch)
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)

    def _moved(self, step: int) -> tuple[Any, Any]:
        """The feed's batch on the device, its images as (batch, height, width, channels)."""
        images, labels = self._feed.batch(step)
        with self.tf.device(self.device):
            return self.tf.constant(images.transpose(0, 2, 3, 1)), self.tf.constant(labels)
