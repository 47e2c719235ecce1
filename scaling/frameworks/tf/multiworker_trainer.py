"""A rank of MultiWorkerMirroredStrategy: the shared loop in its replica, and its all-reduce alone."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import tensorflow as tf

from scaling.frameworks.base import Trainer, read_options, timeout_s
from scaling.frameworks.tf.loop import Training
from scaling.frameworks.tf.multiworker import STRATEGY
from scaling.frameworks.tf.rank import TensorFlowRank
from scaling.hosts.parents import end_with_parent
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    """Raises what TensorFlow raises."""
    end_with_parent()
    return GradientExchange(task) if task.point.kind == "comm" else Mirrored(task)


class Mirrored(Training):
    """The shared loop in the replica of a MultiWorkerMirroredStrategy."""

    def join(self) -> None:
        """Start this rank's server and wait for the others'."""
        self._strategy = _mirrored(self.task)
        self.replicas = self._strategy.num_replicas_in_sync

    def scope(self) -> AbstractContextManager[object]:
        """Variables made here have rank 0's values; Keras' optimiser then sums gradients over the ranks."""
        scope: AbstractContextManager[object] = self._strategy.scope()
        return scope

    def distribute(self, function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        """This rank's replica of the function."""

        def replica(*batch: tf.Tensor) -> tf.Tensor:
            return self._strategy.run(function, batch)

        return replica


class GradientExchange(TensorFlowRank):
    """The all-reduce of one step and nothing else: what network and strategy take for this model's
    gradients when no compute hides them."""

    samples = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        strategy = _mirrored(task)
        shapes = self.describe(self.build())
        with tf.device(self.device):
            self._gradients = [tf.ones(shape) for shape in shapes]

        def reduce(*gradients: tf.Tensor) -> None:
            # The call that Keras' optimiser makes, so the packs are those of training. An argument has no
            # device, which the strategy wants.
            placed = list(map(tf.identity, gradients))
            tf.group(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed))

        def step(*gradients: tf.Tensor) -> None:
            strategy.run(reduce, gradients)

        self._step = tf.function(step, autograph=False).get_concrete_function(*self._gradients)

    def step(self) -> None:
        """Sum all gradients over the ranks."""
        self._step(*self._gradients)

    def loss(self) -> None:
        """Nothing is trained."""

    def digest(self) -> None:
        """Nothing is trained."""


def _mirrored(task: Task) -> tf.distribute.Strategy:
    experimental = tf.distribute.experimental
    mode = task.point.strategy.partition(":")[2]
    packed = read_options(STRATEGY.options, task.point.options)["bytes_per_pack"]
    options = experimental.CommunicationOptions(
        bytes_per_pack=round(packed / task.point.hardware.shrink),
        implementation=experimental.CommunicationImplementation[mode.upper()],
    )
    _have_patience(task)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    # It notes a SIGTERM and goes on, so that a program could save its work; there is nothing to save here.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return strategy


def _have_patience(task: Task) -> None:
    """Configure the service by which workers notice each other's end as the strategy does, but for its patience:
    ranks that are stopped while others are measured do not answer for longer than its 10 s. All of it is
    TensorFlow's own: a release that has changed it keeps its patience."""
    with suppress(ImportError, AttributeError, TypeError):
        from tensorflow.python.distribute import collective_all_reduce_strategy
        from tensorflow.python.eager import context

        # Where these messages stand differs by version.
        messages = collective_all_reduce_strategy.coordination_config_pb2
        workers = messages.CoordinatedJob(name="worker", num_tasks=task.point.world_size)
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader="/job:worker/replica:0/task:0",
            heartbeat_timeout_in_ms=round(1000 * timeout_s(task.clocks)),
            coordinated_jobs=[workers],
        )
