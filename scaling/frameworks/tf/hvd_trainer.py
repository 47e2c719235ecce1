"""A rank of TensorFlow with Horovod: each gradient is exchanged inside the step's graph, as its
DistributedGradientTape does, which does not know Keras 3's variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata

import horovod.tensorflow as horovod
import tensorflow as tf

from scaling.frameworks.base import Trainer
from scaling.frameworks.horovod.strategy import await_rendezvous, options_of
from scaling.frameworks.horovod.timeline import timelines
from scaling.frameworks.tf import evaluation
from scaling.frameworks.tf.loop import Training
from scaling.frameworks.tf.rank import TensorFlowRank
from scaling.frameworks.tracing import Tracer
from scaling.hosts.parents import end_with_parent
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    """Raises what TensorFlow and Horovod raise."""
    end_with_parent()
    return GradientExchange(task) if task.point.kind == "comm" else Distributed(task)


class Distributed(Training):
    """The shared loop with Horovod's exchange between gradients and update."""

    def join(self) -> None:
        """Join the other ranks."""
        self._exchange = Exchange(self)

    def broadcast(self) -> None:
        """Rank 0's variables to all."""
        horovod.broadcast_variables(self.variables(), root_rank=0)

    def exchange(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Each gradient starts as soon as it is made, beside the rest of backward."""
        return self._exchange.mean(gradients)

    def average_statistics(self) -> None:
        """By an all-reduce of each moving mean and variance."""
        evaluation.average_statistics(
            self.model, lambda value, name: horovod.allreduce(value, op=horovod.Average, name=name)
        )

    def tracers(self) -> Sequence[Tracer]:
        """TensorFlow's, and Horovod's."""
        return [*super().tracers(), *timelines(self.task, horovod)]

    def close(self) -> None:
        """Leave the exchange."""
        horovod.shutdown()


class GradientExchange(TensorFlowRank):
    """The all-reduces of one training step and nothing else, fused by Horovod as in training."""

    samples = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        exchange = Exchange(self)
        shapes = self.describe(self.build())
        with tf.device(self.device):
            self._gradients = [tf.ones(shape) for shape in shapes]

        def step(*gradients: tf.Tensor) -> list[tf.Tensor]:
            # What a graph does not return TensorFlow leaves out: to it Horovod's operations have no effect.
            return exchange.mean(gradients)

        self._step = tf.function(step, autograph=False).get_concrete_function(*self._gradients)

    def step(self) -> None:
        """All in flight at once; returns when all are there."""
        self._step(*self._gradients)

    def loss(self) -> None:
        """Nothing is trained."""

    def digest(self) -> None:
        """Nothing is trained."""

    def close(self) -> None:
        """Leave the exchange."""
        horovod.shutdown()


class Exchange:
    """Horovod, joined, with the point's compression."""

    def __init__(self, rank: TensorFlowRank) -> None:
        await_rendezvous(rank.task)
        horovod.init()
        rank.versions["horovod"] = metadata.version("horovod")
        named = options_of(rank.task.point)["compression"]
        self._compression = getattr(horovod.Compression, named)

    def mean(self, gradients: Iterable[tf.Tensor]) -> list[tf.Tensor]:
        """The mean of each gradient over the ranks; alone there is nothing to exchange, as Horovod has it."""
        if horovod.size() == 1:
            return list(gradients)
        return [
            horovod.allreduce(each, op=horovod.Average, compression=self._compression, name=f"gradient.{index}")
            for index, each in enumerate(gradients)
        ]
