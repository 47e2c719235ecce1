"""TensorFlow with Horovod's all-reduce of each gradient inside the step's graph, over Gloo, or over NCCL on
GPUs: what its DistributedGradientTape does, which does not know Keras 3's variables.

It does not know Horovod's Adasum, process sets or join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from scaling.frameworks import hvd
from scaling.frameworks.base import Trainer
from scaling.frameworks.tf import emulated, loop
from scaling.frameworks.tf.loop import Training
from scaling.frameworks.tf.rank import TensorFlowRank
from scaling.records.point import Point
from scaling.records.task import Task


class TensorFlowHorovod(hvd.Horovod):
    """Nothing is refused but what the loop cannot do."""

    names = ("tensorflow:horovod",)
    baseline = "tensorflow:plain"
    framework = "tensorflow"
    options = {**hvd.OPTIONS, **loop.OPTIONS}
    trainer = __name__

    def missing(self, name: str) -> str | None:
        """Found in the installed files; neither TensorFlow nor Horovod is imported."""
        return loop.missing() or super().missing(name)

    def refuse(self, point: Point) -> str | None:
        """What no TensorFlow strategy can do."""
        return loop.refuse(point)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        """TensorFlow's own and Horovod's variables."""
        return {**loop.ENVIRON, **super().environ(task, announced)}


STRATEGY = TensorFlowHorovod()


# ---------------------------------------------------------------- in the worker


def prepare() -> None:
    """Import TensorFlow and Horovod."""
    loop.prepare()
    _horovod()


def connect(task: Task) -> Trainer:
    """Raises what TensorFlow and Horovod raise; ImportError when something is not installed."""
    return emulated.made(GradientExchange if task.point.kind == "comm" else Distributed, task)


class Distributed(Training):
    """The shared loop with Horovod's exchange between gradients and update."""

    def join(self) -> None:
        """Join the other ranks."""
        self._exchange = Exchange(self)

    def broadcast(self) -> None:
        """Rank 0's variables to all."""
        self._exchange.hvd.broadcast_variables(self.variables(), root_rank=0)

    def exchange(self, gradients: list[Any]) -> list[Any]:
        """Each gradient starts as soon as it is made, beside the rest of backward."""
        return self._exchange.mean(gradients)

    def close(self) -> None:
        """Leave the exchange."""
        self._exchange.hvd.shutdown()


class GradientExchange(TensorFlowRank):
    """The all-reduces of one training step and nothing else, fused by Horovod as in training."""

    samples = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        tf, self._exchange = self.tf, Exchange(self)
        shapes = self.describe(self.build())
        with tf.device(self.device):
            self._gradients = [tf.ones(shape) for shape in shapes]

        def step(*gradients: Any) -> None:
            tf.group(*self._exchange.mean(gradients))

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
        self._exchange.hvd.shutdown()


class Exchange:
    """Horovod, joined, with the point's compression."""

    def __init__(self, rank: TensorFlowRank) -> None:
        self.hvd = _horovod()
        self.hvd.init()
        rank.versions["horovod"] = metadata.version("horovod")
        named = hvd.options_of(rank.task.point)["compression"]
        self._compression = getattr(self.hvd.Compression, named)

    def mean(self, gradients: Iterable[Any]) -> list[Any]:
        """The mean of each gradient over the ranks; alone there is nothing to exchange, as Horovod has it."""
        if self.hvd.size() == 1:
            return list(gradients)
        return [
            self.hvd.allreduce(each, op=self.hvd.Average, compression=self._compression, name=f"gradient.{index}")
            for index, each in enumerate(gradients)
        ]


def _horovod() -> Any:
    import horovod.tensorflow

    return horovod.tensorflow
