"""MXNet's kvstores of one process: rank 0's worker drives all devices of its node.

`local` sums the gradients on the host, `device` on the devices, `nccl` with NCCL's all-reduce. On one device
Gluon's Trainer uses no kvstore, so these are then the plain loop. It does not know several nodes, nor MXNet's
tree reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from scaling.frameworks.base import Helper, Option, Trainer, Traits, read_options
from scaling.frameworks.mx import emulated
from scaling.frameworks.mx import rank as mxnet_rank
from scaling.frameworks.mx.loop import Exchange, GradientExchange, Training
from scaling.frameworks.options import one_of
from scaling.hosts.gpus import gather_gpus
from scaling.records.point import Device, Point
from scaling.records.task import Task
from scaling.workloads import feeds
from scaling.workloads.feeds import Feed

NAMES: tuple[str, ...] = ("mxnet:local", "mxnet:device", "mxnet:nccl")
BASELINE = "mxnet:plain"
CHOICES = {"auto": None, "true": True, "false": False}
OPTIONS: Mapping[str, Option] = {
    "update_on_kvstore": Option(
        type=one_of(*CHOICES),
        default="auto",
        help="true: the kvstore updates the weights; false: each device does; auto: as Gluon's Trainer chooses",
    ),
    **mxnet_rank.OPTIONS,
}


# ---------------------------------------------------------------- before the worker


def traits(_name: str) -> Traits:
    """One worker a node."""
    return Traits(drives="node")


def devices(name: str) -> tuple[Device, ...]:
    """NCCL needs CUDA."""
    return ("cuda",) if name == "mxnet:nccl" else ("cpu", "cuda", "emulated")


def missing(name: str) -> str | None:
    """Found in the installed files and by NVML; MXNet is not imported."""
    if name != "mxnet:nccl" or mxnet_rank.missing():
        return mxnet_rank.missing()
    if mxnet_rank.cuda_build() is None:
        return "mxnet is built without CUDA, and so without NCCL: ./launch/install mxnet-cuda"
    gpus, driver = gather_gpus()
    if not gpus:
        return f"no NVIDIA GPU on this host (driver {driver or 'not installed'}); use mxnet:device"
    return None


def refuse(point: Point) -> str | None:
    """What Gluon cannot do."""
    return mxnet_rank.refuse(point)


def helpers(_task: Task) -> list[Helper]:
    """None: there is one process."""
    return []


def serve(task: Task, _announce: Any) -> None:
    """There are no helpers."""
    raise NotImplementedError(f"{task.point.strategy} has no helper {task.role!r}")


def environ(task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
    """MXNet's settings in a process of as many contexts as the point has devices."""
    return mxnet_rank.environ(task, contexts=task.point.world_size)


# ---------------------------------------------------------------- in the worker


def prepare() -> None:
    """Import MXNet."""
    mxnet_rank.load_mxnet()


def connect(task: Task) -> Trainer:
    """Raises what MXNet raises."""
    return emulated.made(NodeGradients if task.point.kind == "comm" else NodeTraining, task)


class Node(Exchange):
    """A Trainer with the weights on all devices, and a kvstore between them."""

    def find_contexts(self) -> list[Any]:
        """One per device; on CPU each has an engine thread, with an OpenMP team, of its own."""
        if self.cuda:
            return [self.mx.gpu(index) for index in self.task.device_indices]
        return [self.mx.cpu(index) for index in range(self.task.point.world_size)]

    def update_samples(self) -> int:
        """Those of all devices, whose gradients the kvstore sums."""
        return super().update_samples() * self.task.point.world_size

    def make_trainer(self, parameters: dict[str, Any], options: dict[str, Any]) -> Any:
        """Gluon's own, told the options; on one device it has no kvstore that could update."""
        chosen = read_options(OPTIONS, self.task.point.options)["update_on_kvstore"]
        return self.mx.gluon.Trainer(
            parameters,
            "sgd",
            options,
            kvstore=self.task.point.strategy.partition(":")[2],
            update_on_kvstore=CHOICES[chosen] if len(self.contexts) > 1 else None,
        )


class NodeTraining(Node, Training):
    """The shared loop, on all devices at once."""

    def find_feeds(self) -> list[Feed]:
        """Those of the ranks that the devices would be."""
        ranks = range(self.task.point.world_size)
        return [feeds.feed(replace(self.task, rank=rank), self.spec) for rank in ranks]

    def digest(self) -> str:
        """Of the first device's parameters; raises RuntimeError when another's differ."""
        found = {str(each): self.digest_of(each) for each in self.contexts}
        if len(set(found.values())) > 1:
            raise RuntimeError(f"the devices' parameters differ: {found}")
        return next(iter(found.values()))


class NodeGradients(Node, GradientExchange):
    """Its sums and updates alone."""
