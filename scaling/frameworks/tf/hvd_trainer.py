"""The worker's side of TensorFlow with Horovod: gradients are exchanged inside the step's graph.

So does Horovod's DistributedGradientTape, which does not support Keras 3's variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import horovod.tensorflow as horovod
import tensorflow as tf

from scaling.frameworks.abilities import Tracer
from scaling.frameworks.base import Trainer
from scaling.frameworks.horovod.worker import Joined, timelines
from scaling.frameworks.tf.loop import Training
from scaling.frameworks.tf.network import norms
from scaling.frameworks.tf.rank import AllReduces
from scaling.hosts.proc import end_with_parent
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    end_with_parent()
    return GradientExchange(task) if task.point.kind == "comm" else Distributed(task)


class Exchange(Joined):
    """Horovod's means of gradients in a step's graph."""

    binding = horovod

    def mean(self, gradients: Iterable[tf.Tensor]) -> list[tf.Tensor]:
        """Return the mean of each gradient over the ranks. A single rank exchanges nothing."""
        if horovod.size() == 1:
            return list(gradients)
        how = {"op": horovod.Average, "compression": self.compression()}
        return [horovod.allreduce(each, name=f"gradient.{index}", **how) for index, each in enumerate(gradients)]


class Distributed(Exchange, Training):
    """The shared loop with Horovod's exchange between gradients and update."""

    def broadcast(self) -> None:
        horovod.broadcast_variables(self.variables(), root_rank=0)

    def exchange(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Add the all-reduces to the graph. Each starts once its gradient is made, during the rest of backward."""
        return self.mean(gradients)

    def average_statistics(self) -> None:
        for norm in norms(self.model):
            for each in (norm.moving_mean, norm.moving_variance):
                each.assign(horovod.allreduce(each.value, op=horovod.Average, name=each.path))

    def tracers(self) -> Sequence[Tracer]:
        return [*super().tracers(), *timelines(self.task, horovod)]


class GradientExchange(Exchange, AllReduces):
    """The all-reduces of one training step alone, fused by Horovod as in training."""

    def exchange(self, *gradients: tf.Tensor) -> list[tf.Tensor]:
        """Return the means: TensorFlow would prune Horovod's operations, which have no visible effect."""
        return self.mean(gradients)
