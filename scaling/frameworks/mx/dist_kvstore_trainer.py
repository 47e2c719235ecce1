"""The worker's side of MXNet's distributed kvstores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scaling.frameworks.base import Trainer, read_options, timeout_s
from scaling.frameworks.listening import until_it_listens
from scaling.frameworks.mx.dist_kvstore import ASYNCHRONOUS, STRATEGY
from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.loop import Exchange, GradientExchange, Training
from scaling.frameworks.mx.optimizers import CountingSGD
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    asynchronous = task.point.strategy == ASYNCHRONOUS
    if task.point.kind == "comm":
        return AsynchronousGradients(task) if asynchronous else KvstoreGradients(task)
    return AsynchronousTraining(task) if asynchronous else KvstoreTraining(task)


class Kvstore(Exchange):
    """A Trainer with a distributed kvstore."""

    def __init__(self, task: Task) -> None:
        # ps-lite checks ten times a second whether all are connected (Van::Start). The model is built meanwhile.
        meeting = ThreadPoolExecutor(1)
        self._met = meeting.submit(_meet, task)
        meeting.shutdown(wait=False)  # no thread remains during training
        super().__init__(task)

    def update_samples(self) -> int:
        """Return the samples of all ranks, whose gradients the servers sum."""
        return super().update_samples() * self.task.point.world_size

    def make_trainer(
        self, parameters: dict[str, mx.gluon.Parameter], optimizer: mx.optimizer.Optimizer
    ) -> mx.gluon.Trainer:
        chosen = read_options(STRATEGY.options, self.task.point.options)
        self.compression = None
        if chosen["compression"] != "none":
            self.compression = {"type": chosen["compression"], "threshold": chosen["compression_threshold"]}
        return mx.gluon.Trainer(
            parameters,
            optimizer,
            kvstore=self._met.result(),
            compression_params=self.compression,
            update_on_kvstore=chosen["update_on_kvstore"],
        )

    def start(self) -> None:
        self.trainer._init_kvstore()
        if self.compression is not None:
            _split_pushpull(self.trainer._kvstore)
        self.trainer._init_params()
        # Without this, one rank's first pull may follow another's first push to the same key. Servers that only
        # sum would then send a gradient as weights.
        mx.nd.waitall()
        self.trainer._kvstore._barrier()


def _meet(task: Task) -> mx.kvstore.KVStore:
    until_it_listens(task.address, task.ports[0], timeout_s(task.clocks))
    return mx.kvstore.create(task.point.strategy.partition(":")[2])


def _split_pushpull(kvstore: mx.kvstore.KVStore) -> None:
    """Push and pull in two messages: MXNet's `pushpull` refuses compression."""

    def pushpull(key: int, value: Any, out: Any = None, priority: int = 0) -> None:
        kvstore.push(key, value, priority)
        kvstore.pull(key, value if out is None else out, priority)

    kvstore.pushpull = pushpull


class CountedKvstore(Kvstore):
    """An asynchronous kvstore with one more key, which counts pushes. A step pushes the counter with its last
    gradient and gets the count back. The counts of two steps differ by this rank's own push and the pushes of
    others to the weights that it had pulled."""

    def update_samples(self) -> int:
        """Return this rank's samples: each push is an update of its own."""
        return self.task.point.workload.batch_size

    def make_optimizer(self, options: dict[str, Any]) -> mx.optimizer.Optimizer:
        recipe = self.compute.recipe
        chosen = {"learning_rate": recipe.rate, "momentum": recipe.momentum, "wd": recipe.decay}
        return CountingSGD(len(self.trained), {**chosen, **options})

    def start(self) -> None:
        super().start()
        self._key = len(self.trained)
        self._count = mx.nd.zeros(1)
        self._told, self._pushes = 0, 0
        self.trainer._kvstore.broadcast(self._key, self._count, out=[self._count])
        # Backward computes the first layer's gradient last. It is waited for; its value is not used.
        last = next(iter(self.trained.values())).grad(self.contexts[0])
        self._after_last = last.reshape(-1)[:1]
        mx.nd.waitall()
        self.trainer._kvstore._barrier()

    def update(self) -> None:
        super().update()
        waited = self._after_last.astype("float32", copy=False)
        self.trainer._kvstore.pushpull(self._key, waited, out=self._count, priority=-self._key)
        self._pushes += 1

    def staleness(self) -> float:
        """Return the mean pushes of other ranks between a step's pull and its push since the last call, or 0."""
        counted = int(self._count.asscalar())
        others, pushes = counted - self._told - self._pushes, self._pushes
        self._told, self._pushes = counted, 0
        return others / pushes if pushes else 0.0


class KvstoreTraining(Kvstore, Training):
    """The shared loop. Gluon's Trainer pushes gradients and pulls weights."""


class KvstoreGradients(Kvstore, GradientExchange):
    """Its pushes and pulls alone."""


class AsynchronousTraining(CountedKvstore, Training):
    """The shared loop, with each rank at its own pace."""


class AsynchronousGradients(CountedKvstore, GradientExchange):
    """Its pushes and pulls alone."""
