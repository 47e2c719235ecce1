"""The coordinator of `tensorflow:ps`: it makes the variables on the servers and hands steps to the trainers."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import tensorflow as tf

from scaling.frameworks.abilities import Untrained
from scaling.frameworks.base import Trainer
from scaling.frameworks.tf.loop import Learning, sources
from scaling.frameworks.tf.rank import TensorFlowRank
from scaling.frameworks.tf.strategies import TRAINER, ParameterServer
from scaling.hosts.proc import end_with_parent
from scaling.records.task import Task
from scaling.workloads.specs import Images, MaskedTokens, ModelSpec, NextToken


def connect(task: Task) -> Trainer:
    end_with_parent()
    return GradientExchange(task) if task.point.kind == "comm" else Coordinator(task)


class Coordinator(Learning):
    """Asynchronous training; `samples` counts all ranks."""

    computes = False

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        with self.scope():
            # All pushes, and the sum over steps of pushes between a step's pull and its push.
            self._pushes = tf.Variable(0, dtype=tf.int64, trainable=False, name="pushes")
            self._stale = tf.Variable(0, dtype=tf.int64, trainable=False, name="stale")
        self._step = self._cluster.traced(partial(_batches, task, self.spec), self._one)
        self._result: tf.distribute.coordinator.RemoteValue | None = None
        self._steps = self._asked_steps = self._asked_stale = 0

    def join(self) -> None:
        self._cluster = Cluster(self.task)

    def scope(self) -> AbstractContextManager[object]:
        scope: AbstractContextManager[object] = self._cluster.strategy.scope()
        return scope

    def step(self) -> None:
        """Hand out one step per rank, each to the next free trainer."""
        self._result = self._cluster.schedule(self._step)
        self._steps += self.task.point.world_size
        self.samples += self.task.point.global_batch_size

    def sync(self) -> None:
        """Wait for all steps that were handed out. Raises their errors."""
        self._cluster.coordinator.join()

    def loss(self) -> float | None:
        return None if self._result is None else float(self._result.fetch())

    def staleness(self) -> float:
        """Return the mean pushes of other trainers between a step's pull and its push, since the last call."""
        steps, stale = self._steps - self._asked_steps, int(self._stale.numpy()) - self._asked_stale
        self._asked_steps += steps
        self._asked_stale += stale
        return stale / max(1, steps)

    def digest(self) -> None:
        """Return None: other ranks have no parameters."""

    def _one(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        before = self._pushes.read_value()
        loss, gradients = self.compute.gradients(images, labels)
        self.optimizer.apply(gradients)
        # Backward makes the gradient of the first layer last.
        with tf.control_dependencies([loss, gradients[0]]):
            self._stale.assign_add(self._pushes.assign_add(1).read_value() - before - 1)
        return loss


class GradientExchange(Untrained, TensorFlowRank):
    """A step's pull of all variables and push of as many bytes, alone."""

    computes = False

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._cluster = Cluster(task)
        with self._cluster.strategy.scope():
            model = self.build()
        self.describe(model)
        self._variables = sources(self.trained(model))
        self._step = self._cluster.traced(self._zeros, self._one)

    def step(self) -> None:
        self._cluster.schedule(self._step)

    def sync(self) -> None:
        self._cluster.coordinator.join()

    def _zeros(self) -> tf.data.Dataset:
        zeros = tuple(tf.zeros(each.shape) for each in self._variables)
        return tf.data.Dataset.from_tensors(zeros).cache().repeat()

    def _one(self, *gradients: tf.Tensor) -> None:
        pulled = [tf.identity(each) for each in self._variables]
        with tf.control_dependencies(pulled):
            pushed = [tf.identity(each) for each in gradients]
        extended = self._cluster.strategy.extended
        for variable, gradient in zip(self._variables, pushed, strict=True):
            extended.update(variable, lambda each, value: each.assign_add(value), args=(gradient,))


class Cluster:
    """The strategy, its coordinator, and the input of each trainer."""

    def __init__(self, task: Task) -> None:
        self._task = task
        least = ParameterServer.options_of(task.point)["partition_min_bytes"]
        partitioners = tf.distribute.experimental.partitioners
        self.strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.TFConfigClusterResolver(),
            partitioners.MinSizePartitioner(least, max_shards=len(task.servers)) if least else None,
        )
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)

    def traced(
        self, dataset: Callable[[], tf.data.Dataset], function: Callable[..., tf.Tensor | None]
    ) -> tf.types.experimental.ConcreteFunction:
        """Trace the graph of `function(*an element of the trainer's dataset)` in its replica."""
        datasets = self.coordinator.create_per_worker_dataset(dataset)
        self._fed = iter(datasets)

        def step(iterator: tf.data.Iterator) -> tf.Tensor | None:
            return self.strategy.run(function, tuple(next(iterator)))

        return tf.function(step, autograph=False).get_concrete_function(
            tf.data.IteratorSpec(datasets.element_spec)
        )

    def schedule(self, step: tf.types.experimental.ConcreteFunction) -> tf.distribute.coordinator.RemoteValue:
        """Hand out one step per rank. Return the future result of the last one."""
        for _ in range(self._task.point.world_size):
            result = self.coordinator.schedule(step, args=(self._fed,))
        return result


def _batches(task: Task, spec: ModelSpec) -> tf.data.Dataset:
    """Return the images or tokens, and labels, that the current trainer announced."""
    size, kind, taken = task.point.workload.batch_size, tf.int64, spec.input.shape
    if isinstance(spec.input, Images):
        channels, *image = taken
        kind, taken = tf.float32, (*image, channels)
    of_labels = spec.input.shape if isinstance(spec.target, NextToken | MaskedTokens) else ()
    split = kind.size * size * math.prod(taken)
    record = split + tf.int64.size * size * math.prod(of_labels)
    files = [task.announced[f"{TRAINER}{rank}"] for rank in range(task.point.world_size)]

    def decode(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs = tf.io.decode_raw(tf.strings.substr(text, 0, split), kind)
        labels = tf.io.decode_raw(tf.strings.substr(text, split, record - split), tf.int64)
        return tf.reshape(inputs, (size, *taken)), tf.reshape(labels, (size, *of_labels))

    mine = tf.distribute.coordinator.experimental_get_current_worker_index()
    return tf.data.FixedLengthRecordDataset(tf.constant(files)[mine], record).map(decode).cache().repeat()
