"""A worker of MXNet with Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from scaling.frameworks.base import Trainer
from scaling.frameworks.horovod.strategy import await_rendezvous, options_of
from scaling.frameworks.horovod.timeline import timelines
from scaling.frameworks.mx import loop
from scaling.frameworks.mx.library import mx
from scaling.frameworks.tracing import Tracer
from scaling.records.task import Task

# isort: split
# It imports MXNet, which must be imported as library.py does it.
import horovod.mxnet as hvd


def connect(task: Task) -> Trainer:
    """Raises what MXNet and Horovod raise; ImportError when something is not installed."""
    return GradientExchange(task) if task.point.kind == "comm" else Training(task)


class Exchange(loop.Exchange):
    """A model's parameters and Horovod's trainer of them."""

    def make_trainer(
        self, parameters: dict[str, mx.gluon.Parameter], optimizer: mx.optimizer.Optimizer
    ) -> mx.gluon.Trainer:
        """Join the other ranks, whose number the trainer wants to know."""
        await_rendezvous(self.task)
        hvd.init()
        self.versions["horovod"] = metadata.version("horovod")
        named = options_of(self.task.point)["compression"]
        return hvd.DistributedTrainer(parameters, optimizer, compression=getattr(hvd.Compression, named))

    def start(self) -> None:
        """Rank 0's weights and running means to all, as sums to which the others add nothing.

        Horovod 0.28's broadcast names the tensor in its log once it is sent; MXNet has freed the name where the
        broadcast is over by then: a fault in one of some 600 starts.
        """
        for name, each in sorted(self.net.collect_params().items()):
            value = each.data(self.contexts[0])
            if hvd.rank() > 0:
                value[:] = 0
            hvd.allreduce_(value, op=hvd.Sum, name=f"{name}.start")
        self.sync()

    def close(self) -> None:
        """Leave the exchange."""
        hvd.shutdown()


class Training(Exchange, loop.Training):
    """The shared loop with Horovod's exchange."""

    _sends = True

    def update(self) -> None:
        """With the exchange, which is another call of Gluon's, or without it."""
        if self._sends:
            super().update()
        else:
            self.trainer.update(1)

    def unsynced_step(self) -> None:
        """Horovod adds nothing to a step but what it sends, and threads that look for it."""
        self._sends = False
        self.step()
        self._sends = True

    def mean_over_ranks(self, value: mx.nd.NDArray, name: str) -> mx.nd.NDArray:
        """By an all-reduce."""
        return hvd.allreduce(value, average=True, name=name)

    def tracers(self) -> Sequence[Tracer]:
        """MXNet's, and Horovod's."""
        return [*super().tracers(), *timelines(self.task, hvd)]


class GradientExchange(Exchange, loop.GradientExchange):
    """The all-reduces of one training step and nothing else, fused by Horovod as in training."""
