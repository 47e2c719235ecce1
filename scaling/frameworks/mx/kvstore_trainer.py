"""The worker's side of MXNet's kvstores, of one process and distributed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from scaling.frameworks.abilities import digest_of, until_it_listens
from scaling.frameworks.base import Trainer, timeout_s
from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.loop import Exchange, GradientExchange, Training
from scaling.frameworks.mx.optimizers import CountingSGD
from scaling.frameworks.mx.strategies import ASYNCHRONOUS, CHOICES, DistKvstore, LocalKvstore
from scaling.records.task import Task


def connect(task: Task) -> Trainer:
    """Return the shared loop with the strategy's exchange, or for kind `comm` the exchange alone."""
    strategy, alone = task.point.strategy, task.point.kind == "comm"
    in_node = strategy in LocalKvstore.names
    exchange = Node if in_node else CountedKvstore if strategy == ASYNCHRONOUS else Kvstore
    kind = GradientExchange if alone else NodeTraining if in_node else Training
    trainer: Trainer = type(exchange.__name__, (exchange, kind), {})(task)
    return trainer


# ---------------------------------------------------------------- of one process


class Node(Exchange):
    """A Trainer with the weights on all devices and a kvstore between them."""

    def find_contexts(self) -> list[mx.Context]:
        """Return a context per device. On CPU each has its own engine thread and OpenMP team."""
        if self.cuda:
            return [mx.gpu(index) for index in self.task.device_indices]
        return [mx.cpu(index) for index in range(self.task.point.world_size)]

    def ranks(self) -> Sequence[int]:
        return range(self.task.point.world_size)

    def update_samples(self) -> int:
        """Return the samples of all devices, whose gradients the kvstore sums."""
        return super().update_samples() * self.task.point.world_size

    def make_trainer(
        self, parameters: dict[str, mx.gluon.Parameter], optimizer: mx.optimizer.Optimizer
    ) -> mx.gluon.Trainer:
        """Return Gluon's Trainer with the point's options. On one device no kvstore can update."""
        chosen = LocalKvstore.options_of(self.task.point)["update_on_kvstore"]
        return mx.gluon.Trainer(
            parameters,
            optimizer,
            kvstore=self.task.point.strategy.partition(":")[2],
            update_on_kvstore=CHOICES[chosen] if len(self.contexts) > 1 else None,
        )


class NodeTraining(Training):
    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the first device's parameters. Raises RuntimeError if those of another device differ."""
        found = {str(each): digest_of(self.weights_of(each)) for each in self.contexts}
        if len(set(found.values())) > 1:
            raise RuntimeError(f"the devices' parameters differ: {found}")
        return super().weights()


# ---------------------------------------------------------------- distributed


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
        chosen = DistKvstore.options_of(self.task.point)
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
