"""The coordinator of `tensorflow:ps`: it makes the variables on the servers and hands steps to the trainers."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import tensorflow as tf

from scaling.frameworks.base import Trainer, read_options
from scaling.frameworks.tf.loop import Learning, sources
from scaling.frameworks.tf.ps import STRATEGY, TRAINER
from scaling.frameworks.tf.rank import TensorFlowRank
from scaling.hosts.parents import end_with_parent
from scaling.records.task import Task
from scaling.workloads.specs import Images, MaskedTokens, ModelSpec, NextToken


def connect(task: Task) -> Trainer:
    """Raises what TensorFlow raises."""
    end_with_parent()
    return GradientExchange(task) if task.point.kind == "comm" else Coordinator(task)


class Coordinator(Learning):
    """Asynchronous training; `samples` are those of all ranks."""

    computes = False

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        with self.scope():
            # Pushes so far, and the sum of how many came between a step's pull and its push.
            self._pushes = tf.Variable(0, dtype=tf.int64, trainable=False, name="pushes")
            self._stale = tf.Variable(0, dtype=tf.int64, trainable=False, name="stale")
        self._cluster.feed(self.spec)
        self._step = self._cluster.traced(self._one)
        self._result: tf.distribute.coordinator.RemoteValue | None = None
        self._steps = self._asked_steps = self._asked_stale = 0

    def join(self) -> None:
        """Connect to the trainers and servers."""
        self._cluster = Cluster(self.task)

    def scope(self) -> AbstractContextManager[object]:
        """Variables made here lie on the servers."""
        scope: AbstractContextManager[object] = self._cluster.strategy.scope()
        return scope

    def step(self) -> None:
        """Hand out one step per rank, each to the next trainer that is free."""
        self._result = self._cluster.schedule(self._step)
        self._steps += self.task.point.world_size
        self.samples += self.task.point.global_batch_size

    def sync(self) -> None:
        """Wait for all steps that were handed out; raises what one of them raised."""
        self._cluster.join()

    def loss(self) -> float | None:
        """Of the step handed out last."""
        return None if self._result is None else float(self._result.fetch())

    def staleness(self) -> float:
        """Pushes of other trainers between a step's pull and its push: the mean over all steps since it was
        last asked."""
        steps, stale = self._steps - self._asked_steps, int(self._stale.numpy()) - self._asked_stale
        self._asked_steps += steps
        self._asked_stale += stale
        return stale / max(1, steps)

    def digest(self) -> None:
        """Other ranks have no parameters to agree with."""

    def _one(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """One trainer's step, as operations of a graph."""
        before = self._pushes.read_value()
        loss, gradients = self.compute.gradients(images, labels)
        self.optimizer.apply(gradients)
        # The gradient of the first layer is the last that backward makes.
        with tf.control_dependencies([loss, gradients[0]]):
            self._stale.assign_add(self._pushes.assign_add(1).read_value() - before - 1)
        return loss


class GradientExchange(TensorFlowRank):
    """A step's pull of all variables and push of as many bytes, and nothing else."""

    computes = False
    samples = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._cluster = Cluster(task)
        with self._cluster.strategy.scope():
            model = self.build()
        self.describe(model)
        self._variables = sources(self.trained(model))
        self._cluster.repeat(lambda: tuple(tf.zeros(each.shape) for each in self._variables))
        self._step = self._cluster.traced(self._one)

    def step(self) -> None:
        """One exchange per rank."""
        self._cluster.schedule(self._step)

    def sync(self) -> None:
        """Wait for all exchanges that were handed out."""
        self._cluster.join()

    def loss(self) -> None:
        """Nothing is trained."""

    def digest(self) -> None:
        """Nothing is trained."""

    def _one(self, *gradients: tf.Tensor) -> None:
        pulled = [tf.identity(each) for each in self._variables]
        with tf.control_dependencies(pulled):
            pushed = [tf.identity(each) for each in gradients]
        extended = self._cluster.strategy.extended
        for variable, gradient in zip(self._variables, pushed, strict=True):
            extended.update(variable, lambda each, value: each.assign_add(value), args=(gradient,))


class Cluster:
    """The strategy, its coordinator, and what each trainer is fed with."""

    def __init__(self, task: Task) -> None:
        self._task = task
        least = read_options(STRATEGY.options, task.point.options)["partition_min_bytes"]
        partitioners = tf.distribute.experimental.partitioners
        self.strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.TFConfigClusterResolver(),
            partitioners.MinSizePartitioner(least, max_shards=len(task.servers)) if least else None,
        )
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)

    def feed(self, spec: ModelSpec) -> None:
        """Trainers get the images or tokens that they announced."""
        task = self._task
        taken, wanted, kind = _batch_of(spec, task.point.workload.batch_size)
        split = kind.size * math.prod(taken)
        record = split + tf.int64.size * math.prod(wanted)
        files = [task.announced[f"{TRAINER}{rank}"] for rank in range(task.point.world_size)]

        def decode(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            images = tf.io.decode_raw(tf.strings.substr(text, 0, split), kind)
            labels = tf.io.decode_raw(tf.strings.substr(text, split, record - split), tf.int64)
            return tf.reshape(images, taken), tf.reshape(labels, wanted)

        def dataset() -> tf.data.Dataset:
            mine = tf.distribute.coordinator.experimental_get_current_worker_index()
            records = tf.data.FixedLengthRecordDataset(tf.constant(files)[mine], record)
            return records.map(decode).cache().repeat()

        self._feed_from(dataset)

    def repeat(self, make: Callable[[], tuple[tf.Tensor, ...]]) -> None:
        """Trainers get the same tensors in each step, made there."""
        self._feed_from(lambda: tf.data.Dataset.from_tensors(make()).cache().repeat())

    def _feed_from(self, dataset: Callable[[], tf.data.Dataset]) -> None:
        datasets = self._coordinator.create_per_worker_dataset(dataset)
        self._fed, self._iterator = iter(datasets), tf.data.IteratorSpec(datasets.element_spec)

    def traced(self, function: Callable[..., tf.Tensor | None]) -> tf.types.experimental.ConcreteFunction:
        """The graph of `function(*what the trainer is fed with)` in its replica, traced now."""

        def step(iterator: tf.data.Iterator) -> tf.Tensor | None:
            return self.strategy.run(function, tuple(next(iterator)))

        return tf.function(step, autograph=False).get_concrete_function(self._iterator)

    def schedule(self, step: tf.types.experimental.ConcreteFunction) -> tf.distribute.coordinator.RemoteValue:
        """Hand out as many steps as there are ranks; returns the last one's result to come."""
        for _ in range(self._task.point.world_size):
            result = self._coordinator.schedule(step, args=(self._fed,))
        return result

    def join(self) -> None:
        """Wait for all of them."""
        self._coordinator.join()


def _batch_of(spec: ModelSpec, size: int) -> tuple[tuple[int, ...], tuple[int, ...], tf.DType]:
    """The shapes of a batch's images or tokens and of its labels, and the type of the former."""
    labels: tuple[int, ...] = (size,)
    if isinstance(spec.input, Images):
        return (size, spec.input.height, spec.input.width, spec.input.channels), labels, tf.float32
    if isinstance(spec.target, NextToken | MaskedTokens):
        labels = (size, spec.input.length)
    return (size, spec.input.length), labels, tf.int64
