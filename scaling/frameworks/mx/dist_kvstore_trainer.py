"""A worker of MXNet's distributed kvstores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scaling.frameworks.base import Trainer, read_options, timeout_s
from scaling.frameworks.listening import until_it_listens
from scaling.frameworks.mx.dist_kvstore import ASYNCHRONOUS, STRATEGY
from scaling.frameworks.mx.library import mx
from scaling.frameworks.mx.loop import Exchange, GradientExchange, Training
from scaling.records.task import Task

# ---------------------------------------------------------------- counting sgd
#
# The optimiser with which a server counts the pushes of an asynchronous mode.
#
# Workers send it to the servers by pickle. A server loads this file while its own `import mxnet` is under way,
# when Gluon is not there yet: it imports nothing of the loop.


class CountingSGD(mx.optimizer.SGD):  # type: ignore[misc]
    """SGD with these options that adds 1 to the weight of key `counter` with each push to it."""

    def __init__(self, counter: int, options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._made_of = counter, options

    def __reduce__(self) -> tuple[type[CountingSGD], tuple[int, dict[str, Any]]]:
        """Made anew where it arrives."""
        return CountingSGD, self._made_of

    def update_multi_precision(
        self, index: Any, weight: mx.nd.NDArray | list[mx.nd.NDArray], grad: Any, state: Any
    ) -> None:
        """A server updates one key at a time, as a sequence of one or, without aggregation, as it is."""
        counter = self._made_of[0]
        if index in (counter, (counter,), [counter]):
            for each in weight if isinstance(weight, list | tuple) else [weight]:
                each += 1  # noqa: PLW2901  in place
        else:
            super().update_multi_precision(index, weight, grad, state)


# ---------------------------------------------------------------- dist kvstore trainer


def connect(task: Task) -> Trainer:
    """Raises what MXNet raises."""
    asynchronous = task.point.strategy == ASYNCHRONOUS
    if task.point.kind == "comm":
        return AsynchronousGradients(task) if asynchronous else KvstoreGradients(task)
    return AsynchronousTraining(task) if asynchronous else KvstoreTraining(task)


class Kvstore(Exchange):
    """A Trainer with a distributed kvstore."""

    def __init__(self, task: Task) -> None:
        # ps-lite looks ten times a second whether all are there (Van::Start): meanwhile the model is built.
        meeting = ThreadPoolExecutor(1)
        self._met = meeting.submit(_meet, task)
        meeting.shutdown(wait=False)  # no thread stays beside the training
        super().__init__(task)

    def update_samples(self) -> int:
        """Those of all ranks, whose gradients the servers sum."""
        return super().update_samples() * self.task.point.world_size

    def make_trainer(
        self, parameters: dict[str, mx.gluon.Parameter], optimizer: mx.optimizer.Optimizer
    ) -> mx.gluon.Trainer:
        """Gluon's own, told the options."""
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
        """Meet the others; all have rank 0's weights afterwards."""
        self.trainer._init_kvstore()
        if self.compression is not None:
            _split_pushpull(self.trainer._kvstore)
        self.trainer._init_params()
        # Without this a rank's first pull of the weights may come after another's first push to the same key,
        # and where the servers only sum, it would take that gradient for weights.
        mx.nd.waitall()
        self.trainer._kvstore._barrier()


def _meet(task: Task) -> mx.kvstore.KVStore:
    until_it_listens(task.address, task.ports[0], timeout_s(task.clocks))
    return mx.kvstore.create(task.point.strategy.partition(":")[2])


def _split_pushpull(kvstore: mx.kvstore.KVStore) -> None:
    """Let this kvstore push and pull in two messages, as Gluon's Trainer did before MXNet had `pushpull`, which
    refuses to compress."""

    def pushpull(key: int, value: Any, out: Any = None, priority: int = 0) -> None:
        kvstore.push(key, value, priority)
        kvstore.pull(key, value if out is None else out, priority)

    kvstore.pushpull = pushpull


class CountedKvstore(Kvstore):
    """An asynchronous kvstore, with one key more that counts pushes.

    A step's push of the counter goes with its last gradient and comes back with the count. Between the counts
    of two steps lie this rank's own push and those of the others: the pushes to weights that it had pulled.
    """

    def update_samples(self) -> int:
        """Each push is an update for itself: this rank's alone."""
        return self.task.point.workload.batch_size

    def make_optimizer(self, options: dict[str, Any]) -> mx.optimizer.Optimizer:
        """SGD that counts."""
        recipe = self.compute.recipe
        chosen = {"learning_rate": recipe.rate, "momentum": recipe.momentum, "wd": recipe.decay}
        return CountingSGD(len(self.trained), {**chosen, **options})

    def start(self) -> None:
        """Let the counter start at zero."""
        super().start()
        self._key = len(self.trained)
        self._count = mx.nd.zeros(1)
        self._told, self._pushes = 0, 0
        self.trainer._kvstore.broadcast(self._key, self._count, out=[self._count])
        # Backward makes the first layer's gradient last. The value is not looked at, only waited for.
        last = next(iter(self.trained.values())).grad(self.contexts[0])
        self._after_last = last.reshape(-1)[:1]
        mx.nd.waitall()
        self.trainer._kvstore._barrier()

    def update(self) -> None:
        """The exchange, then the counter's."""
        super().update()
        waited = self._after_last.astype("float32", copy=False)
        self.trainer._kvstore.pushpull(self._key, waited, out=self._count, priority=-self._key)
        self._pushes += 1

    def staleness(self) -> float:
        """Pushes of other ranks between a step's pull and its push: mean since last asked, 0 before a step."""
        counted = int(self._count.asscalar())
        others, pushes = counted - self._told - self._pushes, self._pushes
        self._told, self._pushes = counted, 0
        return others / pushes if pushes else 0.0


class KvstoreTraining(Kvstore, Training):
    """The shared loop, its gradients pushed and its weights pulled by Gluon's Trainer."""


class KvstoreGradients(Kvstore, GradientExchange):
    """Its pushes and pulls alone."""


class AsynchronousTraining(CountedKvstore, Training):
    """The shared loop, each rank at its own pace."""


class AsynchronousGradients(CountedKvstore, GradientExchange):
    """Its pushes and pulls alone."""
