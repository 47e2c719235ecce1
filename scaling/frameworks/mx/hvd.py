"""MXNet with Horovod's DistributedTrainer over Gloo, or over NCCL on GPUs.

MXNet's engine starts the exchange of each gradient as soon as it is computed. Horovod divides the sums by the
ranks in the optimiser, this loop by the batch: the update is the mean over all. It does not know Horovod's
Adasum, process sets or join.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from scaling.frameworks import hvd
from scaling.frameworks.base import Trainer
from scaling.frameworks.mx import emulated, loop, rank
from scaling.records.point import Point
from scaling.records.task import Task


class MXNetHorovod(hvd.Horovod):
    """Nothing is refused but what the loop cannot do."""

    names = ("mxnet:horovod",)
    baseline = "mxnet:plain"
    framework = "mxnet"
    options = {**hvd.OPTIONS, **rank.OPTIONS}
    trainer = __name__

    def missing(self, name: str) -> str | None:
        """Found in the installed files; neither MXNet nor Horovod is imported."""
        return rank.missing() or super().missing(name)

    def refuse(self, point: Point) -> str | None:
        """What no MXNet strategy can do."""
        return rank.refuse(point)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        """MXNet's own and Horovod's variables."""
        return {**rank.environ(task), **super().environ(task, announced)}


STRATEGY = MXNetHorovod()


# ---------------------------------------------------------------- in the worker


def prepare() -> None:
    """Import MXNet and Horovod."""
    rank.load_mxnet()
    _horovod()


def connect(task: Task) -> Trainer:
    """Raises what MXNet and Horovod raise; ImportError when something is not installed."""
    return emulated.made(GradientExchange if task.point.kind == "comm" else Training, task)


class Exchange(loop.Exchange):
    """A model's parameters and Horovod's trainer of them."""

    def make_trainer(self, parameters: dict[str, Any], options: dict[str, Any]) -> Any:
        """Join the other ranks, whose number the trainer wants to know."""
        self.hvd = _horovod()
        self.hvd.init()
        self.versions["horovod"] = metadata.version("horovod")
        named = hvd.options_of(self.task.point)["compression"]
        return self.hvd.DistributedTrainer(
            parameters, "sgd", options, compression=getattr(self.hvd.Compression, named)
        )

    def start(self) -> None:
        """Rank 0's weights and running means to all."""
        self.hvd.broadcast_parameters(self.net.collect_params(), root_rank=0)
        self.sync()

    def close(self) -> None:
        """Leave the exchange."""
        self.hvd.shutdown()


class Training(Exchange, loop.Training):
    """The shared loop with Horovod's exchange."""


class GradientExchange(Exchange, loop.GradientExchange):
    """The all-reduces of one training step and nothing else, fused by Horovod as in training."""


def _horovod() -> Any:
    import horovod.mxnet

    return horovod.mxnet
