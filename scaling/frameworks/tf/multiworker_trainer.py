"""The worker's side of MultiWorkerMirroredStrategy: the shared loop in its replica, or its all-reduce alone."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import tensorflow as tf

from scaling.frameworks.base import Trainer, read_options, timeout_s
from scaling.frameworks.tf.loop import Training
from scaling.frameworks.tf.rank import AllReduces
from scaling.frameworks.tf.strategies import MULTI_WORKER
from scaling.hosts.proc import end_with_parent
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    end_with_parent()
    return GradientExchange(task) if task.point.kind == "comm" else Mirrored(task)


class Mirrored(Training):
    """The shared loop in the replica of a MultiWorkerMirroredStrategy."""

    def join(self) -> None:
        self._strategy = _mirrored(self.task)
        self.replicas = self._strategy.num_replicas_in_sync

    def scope(self) -> AbstractContextManager[object]:
        scope: AbstractContextManager[object] = self._strategy.scope()
        return scope

    def distribute(self, function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        def replica(*batch: tf.Tensor) -> tf.Tensor:
            return self._strategy.run(function, batch)

        return replica


class GradientExchange(AllReduces):
    """The all-reduce of one step alone, for this model's gradients."""

    def join(self) -> None:
        self._strategy = _mirrored(self.task)

    def exchange(self, *gradients: tf.Tensor) -> None:
        def reduce(*gradients: tf.Tensor) -> None:
            # As in Keras's optimiser, with its packs. The strategy needs tensors with a device.
            placed = list(map(tf.identity, gradients))
            tf.group(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed))

        self._strategy.run(reduce, gradients)


def _mirrored(task: Task) -> tf.distribute.Strategy:
    experimental = tf.distribute.experimental
    mode = task.point.strategy.partition(":")[2]
    packed = read_options(MULTI_WORKER.options, task.point.options)["bytes_per_pack"]
    options = experimental.CommunicationOptions(
        bytes_per_pack=round(packed / task.point.hardware.shrink),
        implementation=experimental.CommunicationImplementation[mode.upper()],
    )
    _have_patience(task)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    # The strategy would ignore SIGTERM to save work, but there is none here.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return strategy


def _have_patience(task: Task) -> None:
    """Configure the coordination service with a longer timeout. The strategy's own timeout is 10 s, but ranks are
    paused for longer while others are measured. A TensorFlow with another internal interface keeps its timeout."""
    with suppress(ImportError, AttributeError, TypeError):
        from tensorflow.python.distribute import collective_all_reduce_strategy
        from tensorflow.python.eager import context

        # The module of these messages differs by version.
        messages = collective_all_reduce_strategy.coordination_config_pb2
        workers = messages.CoordinatedJob(name="worker", num_tasks=task.point.world_size)
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader="/job:worker/replica:0/task:0",
            heartbeat_timeout_in_ms=round(1000 * timeout_s(task.clocks)),
            coordinated_jobs=[workers],
        )
