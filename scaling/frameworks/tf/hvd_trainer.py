"""The worker's side of TensorFlow with Horovod: gradients are exchanged inside the step's graph.

So does Horovod's DistributedGradientTape, which does not support Keras 3's variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata

import horovod.tensorflow as horovod
import tensorflow as tf

from scaling.frameworks.abilities import Tracer
from scaling.frameworks.base import Trainer
from scaling.frameworks.horovod.strategy import await_rendezvous, options_of
from scaling.frameworks.horovod.timeline import timelines
from scaling.frameworks.tf import loop
from scaling.frameworks.tf.loop import Training
from scaling.frameworks.tf.rank import AllReduces, TensorFlowRank
from scaling.hosts.parents import end_with_parent
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    end_with_parent()
    return GradientExchange(task) if task.point.kind == "comm" else Distributed(task)


class Distributed(Training):
    """The shared loop with Horovod's exchange between gradients and update."""

    def join(self) -> None:
        self._exchange = Exchange(self)

    def broadcast(self) -> None:
        horovod.broadcast_variables(self.variables(), root_rank=0)

    def exchange(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Add the all-reduces to the graph. Each starts once its gradient is made, during the rest of backward."""
        return self._exchange.mean(gradients)

    def average_statistics(self) -> None:
        loop.average_statistics(
            self.model, lambda value, name: horovod.allreduce(value, op=horovod.Average, name=name)
        )

    def tracers(self) -> Sequence[Tracer]:
        return [*super().tracers(), *timelines(self.task, horovod)]

    def close(self) -> None:
        horovod.shutdown()


class GradientExchange(AllReduces):
    """The all-reduces of one training step alone, fused by Horovod as in training."""

    def join(self) -> None:
        self._exchange = Exchange(self)

    def exchange(self, *gradients: tf.Tensor) -> list[tf.Tensor]:
        """Return the means: TensorFlow would prune Horovod's operations, which have no visible effect."""
        return self._exchange.mean(gradients)

    def close(self) -> None:
        horovod.shutdown()


class Exchange:
    def __init__(self, rank: TensorFlowRank) -> None:
        await_rendezvous(rank.task)
        horovod.init()
        rank.versions["horovod"] = metadata.version("horovod")
        named = options_of(rank.task.point)["compression"]
        self._compression = getattr(horovod.Compression, named)

    def mean(self, gradients: Iterable[tf.Tensor]) -> list[tf.Tensor]:
        """Return the mean of each gradient over the ranks. A single rank exchanges nothing."""
        if horovod.size() == 1:
            return list(gradients)
        return [
            horovod.allreduce(each, op=horovod.Average, compression=self._compression, name=f"gradient.{index}")
            for index, each in enumerate(gradients)
        ]
