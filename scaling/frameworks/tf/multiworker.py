"""TensorFlow's MultiWorkerMirroredStrategy over gRPC rings or NCCL; `tensorflow:plain` is the same loop
without it.

Every rank is a gRPC server. The gradients are summed by Keras' optimiser in one all-reduce of all of them
joined, after the backward pass; `bytes_per_pack` cuts it into several, which may start during it.
Running means of batch normalisation stay each rank's own.

Of 16 ranks on 4 nodes 1.51 times the bytes of a ring in the order of ranks crossed nodes: 6 edges and not 4, as if
its ring went by the tasks' numbers as text (0, 1, 10, 11, ..., 2, 3, ...).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scaling.frameworks import network_env
from scaling.frameworks.base import Helper, Option, Trainer, Traits, read_options
from scaling.frameworks.options import count_from_0
from scaling.frameworks.tf import emulated, loop
from scaling.frameworks.tf.loop import Training
from scaling.frameworks.tf.rank import TensorFlowRank
from scaling.hosts.gpus import gather_gpus
from scaling.records.point import EXCHANGING, Device, Point
from scaling.records.task import Task

NAMES: tuple[str, ...] = ("tensorflow:ring", "tensorflow:nccl", "tensorflow:plain")
BASELINE = "tensorflow:plain"

PLAIN_OPTIONS: Mapping[str, Option] = loop.OPTIONS
# The default is that of tf.distribute.experimental.CommunicationOptions.
OPTIONS: Mapping[str, Option] = {
    "bytes_per_pack": Option(
        type=count_from_0,
        default=0,
        help="gradients are joined to packs of so many bytes; 0: to one pack",
    ),
    **loop.OPTIONS,
}

DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu")


# ---------------------------------------------------------------- before the worker


def traits(name: str) -> Traits:
    """Every rank's server has a port."""
    return Traits(rank_ports=name != BASELINE)


def refuse(point: Point) -> str | None:
    """What the shared loop refuses."""
    return loop.refuse(point)


def devices(name: str) -> tuple[Device, ...]:
    """NCCL needs CUDA; the ring and the plain loop run on all."""
    return ("cuda",) if name == "tensorflow:nccl" else ("cpu", "cuda", "emulated")


def missing(name: str) -> str | None:
    """Found in the installed files and by NVML; TensorFlow is not imported."""
    if name != "tensorflow:nccl" or loop.missing():
        return loop.missing()
    package = find_spec("tensorflow")
    assert package is not None and package.origin is not None
    build = Path(package.origin).parent / "python/platform/build_info.py"
    if "('is_cuda_build', True)" not in build.read_text():
        return f"{_distribution()} is built without CUDA: ./launch/install tensorflow-cuda"
    gpus, driver = gather_gpus()
    if not gpus:
        return f"no NVIDIA GPU on this host (driver {driver or 'not installed'}); use tensorflow:ring"
    return None


def _distribution() -> str:
    for name in DISTRIBUTIONS:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "tensorflow"


def helpers(_task: Task) -> list[Helper]:
    """None: the ranks' own servers find each other."""
    return []


def serve(task: Task, _announce: Any) -> None:
    """There are no helpers."""
    raise NotImplementedError(f"{task.point.strategy} has no helper {task.role!r}")


def environ(task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
    """The cluster, whose addresses choose the network; for NCCL the interface too."""
    if task.point.kind not in EXCHANGING:
        return dict(loop.ENVIRON)
    servers = [f"{host}:{port}" for host, port in zip(task.addresses, task.rank_ports, strict=True)]
    cluster = {"cluster": {"worker": servers}, "task": {"type": "worker", "index": task.rank}}
    return {**loop.ENVIRON, "TF_CONFIG": json.dumps(cluster), **network_env.nccl(task)}


# ---------------------------------------------------------------- in the worker


def prepare() -> None:
    """Import TensorFlow."""
    loop.prepare()


def connect(task: Task) -> Trainer:
    """Raises what TensorFlow raises; ImportError when something is not installed."""
    match task.point.kind:
        case "exchange":
            return emulated.made(Mirrored, task)
        case "comm":
            return emulated.made(GradientExchange, task)
        case _:
            return emulated.made(Training, task)


class Mirrored(Training):
    """The shared loop in the replica of a MultiWorkerMirroredStrategy."""

    def join(self) -> None:
        """Start this rank's server and wait for the others'."""
        self._strategy = _mirrored(self)
        self.replicas = self._strategy.num_replicas_in_sync

    def scope(self) -> AbstractContextManager[Any]:
        """Variables made here have rank 0's values; Keras' optimiser then sums gradients over the ranks."""
        scope: AbstractContextManager[Any] = self._strategy.scope()
        return scope

    def distribute(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """This rank's replica of the function."""

        def replica(*batch: Any) -> Any:
            return self._strategy.run(function, batch)

        return replica


class GradientExchange(TensorFlowRank):
    """The all-reduce of one step and nothing else: what network and strategy take for this model's
    gradients when no compute hides them."""

    samples = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        strategy, tf = _mirrored(self), self.tf
        shapes = self.describe(self.build())
        with tf.device(self.device):
            self._gradients = [tf.ones(shape) for shape in shapes]

        def reduce(*gradients: Any) -> None:
            # The call that Keras' optimiser makes, so the packs are those of training. An argument has no
            # device, which the strategy wants.
            placed = list(map(tf.identity, gradients))
            tf.group(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed))

        def step(*gradients: Any) -> None:
            strategy.run(reduce, gradients)

        self._step = tf.function(step, autograph=False).get_concrete_function(*self._gradients)

    def step(self) -> None:
        """Sum all gradients over the ranks."""
        self._step(*self._gradients)

    def loss(self) -> None:
        """Nothing is trained."""

    def digest(self) -> None:
        """Nothing is trained."""


def _mirrored(rank: TensorFlowRank) -> Any:
    experimental = rank.tf.distribute.experimental
    mode = rank.task.point.strategy.partition(":")[2]
    packed = read_options(OPTIONS, rank.task.point.options)["bytes_per_pack"]
    options = experimental.CommunicationOptions(
        bytes_per_pack=round(packed / rank.task.point.hardware.shrink),
        implementation=experimental.CommunicationImplementation[mode.upper()],
    )
    strategy = rank.tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    # It notes a SIGTERM and goes on, so that a program could save its work; there is nothing to save here.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return strategy
