"""The worker's side of MXNet with Horovod."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.frameworks.abilities import Tracer
from scaling.frameworks.base import Trainer
from scaling.frameworks.horovod.worker import Joined, timelines
from scaling.frameworks.mx import loop
from scaling.frameworks.mx.library import mx
from scaling.records.task import Task

# isort: split
# It imports MXNet, which library.py must import first.
import horovod.mxnet as hvd


def connect(task: Task) -> Trainer:
    return GradientExchange(task) if task.point.kind == "comm" else Training(task)


class Exchange(Joined, loop.Exchange):
    """A model's parameters, with Horovod's trainer."""

    binding = hvd

    def make_trainer(
        self, parameters: dict[str, mx.gluon.Parameter], optimizer: mx.optimizer.Optimizer
    ) -> mx.gluon.Trainer:
        """Connect to the other ranks first: the trainer needs their number."""
        self.join()
        return hvd.DistributedTrainer(parameters, optimizer, compression=self.compression())

    def start(self) -> None:
        """Give all ranks rank 0's weights and running means: a sum to which other ranks add zeros. Horovod 0.28's
        broadcast logs a tensor's name that MXNet may have freed, and crashes one of 600 starts."""
        for name, each in sorted(self.net.collect_params().items()):
            value = each.data(self.contexts[0])
            if hvd.rank() > 0:
                value[:] = 0
            hvd.allreduce_(value, op=hvd.Sum, name=f"{name}.start")
        self.sync()


class Training(Exchange, loop.Training):
    _sends = True

    def update(self) -> None:
        if self._sends:
            super().update()
        else:
            self.trainer.update(1)

    def unsynced_step(self) -> None:
        """Do a step without sending. Horovod's threads still run."""
        self._sends = False
        self.step()
        self._sends = True

    def mean_over_ranks(self, value: mx.nd.NDArray, name: str) -> mx.nd.NDArray:
        return hvd.allreduce(value, average=True, name=name)

    def tracers(self) -> Sequence[Tracer]:
        return [*super().tracers(), *timelines(self.task, hvd)]


class GradientExchange(Exchange, loop.GradientExchange):
    """The all-reduces of one training step alone, fused by Horovod as in training."""
