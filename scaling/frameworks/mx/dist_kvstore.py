"""MXNet's distributed kvstores: every rank a worker of ps-lite, with the parameters on servers;
`mxnet:plain` is the same loop without them.

In `dist_sync` a server waits for the gradients of all workers and makes one update of their mean.
`dist_device_sync` differs where a worker has several devices, which here has one: it sums on them and not on
the host. In `dist_async` each worker's own mean gradient is an update for itself, at once and with the same
learning rate: as many updates as workers in the time of a synchronous one, on weights that others have changed
since they were pulled. Momentum is on the servers and mixes all workers' gradients.

It does not know row-sparse parameters, the P3 scheduling of ps-lite or several devices per worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaling.frameworks.base import Helper, Option, Trainer, Traits, read_options
from scaling.frameworks.mx import emulated, ps_lite, rank
from scaling.frameworks.mx.loop import Exchange, GradientExchange, Training
from scaling.frameworks.options import one_of, positive_integer, positive_number
from scaling.records.point import EXCHANGING, Device, Point
from scaling.records.task import Task

NAMES: tuple[str, ...] = ("mxnet:dist_sync", "mxnet:dist_device_sync", "mxnet:dist_async", "mxnet:plain")
BASELINE = "mxnet:plain"
ASYNCHRONOUS = "mxnet:dist_async"
PLAIN_OPTIONS: Mapping[str, Option] = rank.OPTIONS
# The defaults are MXNet's own.
OPTIONS: Mapping[str, Option] = {
    "bigarray_bound": Option(
        type=positive_integer,
        default=1_000_000,
        help="elements from which on an array is spread over all servers",
    ),
    "compression": Option(
        type=one_of("none", "2bit"),
        default="none",
        help="2bit sends each gradient as -threshold, 0 or threshold and keeps the rest for the next step",
    ),
    "compression_threshold": Option(
        type=positive_number, default=0.5, help="of 2bit, for gradients summed over a device's batch"
    ),
    "update_on_kvstore": Option(
        type=bool, default=True, help="servers update the weights; if not, they sum and every rank updates"
    ),
    **rank.OPTIONS,
}


# ---------------------------------------------------------------- before the worker


def traits(name: str) -> Traits:
    """The scheduler's port beside rank 0, and servers."""
    exchanges = name != BASELINE
    return Traits(ports=int(exchanges), servers=exchanges, synchronous=name != ASYNCHRONOUS)


def devices(_name: str) -> tuple[Device, ...]:
    """All: kvstores carry gradients through the host's memory."""
    return ("cpu", "cuda", "emulated")


def missing(_name: str) -> str | None:
    """Found in the installed files; MXNet is not imported."""
    return rank.missing()


def refuse(point: Point) -> str | None:
    """What Gluon or the kvstore cannot do."""
    if point.strategy == BASELINE:
        return rank.refuse(point)
    options = read_options(OPTIONS, point.options)
    if point.strategy == ASYNCHRONOUS and not options["update_on_kvstore"]:
        return "--option update_on_kvstore=false: mxnet:dist_async updates on its servers only"
    if options["compression"] != "none" and point.workload.precision != "fp32":
        return f"--option compression=2bit: mxnet compresses fp32 gradients only, not {point.workload.precision}"
    return rank.refuse(point)


def helpers(task: Task) -> list[Helper]:
    """The scheduler and the servers."""
    return ps_lite.helpers(task)


def environ(task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
    """MXNet's settings and, where there is an exchange, ps-lite's."""
    common = rank.environ(task)
    if task.point.kind not in EXCHANGING:
        return common
    whole = read_options(OPTIONS, task.point.options)["bigarray_bound"]
    bound = max(1, round(whole / task.point.hardware.shrink))
    return {**common, **ps_lite.environ(task, bigarray_bound=bound)}


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Run the scheduler or a server."""
    ps_lite.serve(task, announce)


# ---------------------------------------------------------------- in the worker


def prepare() -> None:
    """Import MXNet."""
    rank.load_mxnet()


def connect(task: Task) -> Trainer:
    """Raises what MXNet raises."""
    asynchronous = task.point.strategy == ASYNCHRONOUS
    match task.point.kind:
        case "exchange":
            return emulated.made(AsynchronousTraining if asynchronous else KvstoreTraining, task)
        case "comm":
            return emulated.made(AsynchronousGradients if asynchronous else KvstoreGradients, task)
        case _:
            return emulated.made(Training, task)


class Kvstore(Exchange):
    """A Trainer with a distributed kvstore."""

    def update_samples(self) -> int:
        """Those of all ranks, whose gradients the servers sum."""
        return super().update_samples() * self.task.point.world_size

    def make_trainer(self, parameters: dict[str, Any], options: dict[str, Any]) -> Any:
        """Gluon's own, told the options."""
        chosen = read_options(OPTIONS, self.task.point.options)
        self.compression = None
        if chosen["compression"] != "none":
            self.compression = {"type": chosen["compression"], "threshold": chosen["compression_threshold"]}
        return self.mx.gluon.Trainer(
            parameters,
            self.make_optimizer(parameters, options),
            kvstore=self.task.point.strategy.partition(":")[2],
            compression_params=self.compression,
            update_on_kvstore=chosen["update_on_kvstore"],
        )

    def make_optimizer(self, _parameters: dict[str, Any], options: dict[str, Any]) -> Any:
        """What the servers run."""
        return self.mx.optimizer.SGD(**options)

    def start(self) -> None:
        """Meet the others; all have rank 0's weights afterwards."""
        self.trainer._init_kvstore()
        if self.compression is not None:
            _split_pushpull(self.trainer._kvstore)
        self.trainer._init_params()
        # Without this a rank's first pull of the weights may come after another's first push to the same key,
        # and where the servers only sum, it would take that gradient for weights.
        self.mx.nd.waitall()
        self.trainer._kvstore._barrier()


def _split_pushpull(kvstore: Any) -> None:
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

    def make_optimizer(self, parameters: dict[str, Any], options: dict[str, Any]) -> Any:
        """SGD that counts."""
        return ps_lite.counting_sgd(len(parameters), options)

    def start(self) -> None:
        """Let the counter start at zero."""
        super().start()
        self._key = len(self.trained)
        self._count = self.mx.nd.zeros(1)
        self._told, self._pushes = 0, 0
        self.trainer._kvstore.broadcast(self._key, self._count, out=[self._count])
        # Backward makes the first layer's gradient last. The value is not looked at, only waited for.
        last = next(iter(self.trained.values())).grad(self.contexts[0])
        self._after_last = last.reshape(-1)[:1]
        self.mx.nd.waitall()
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
