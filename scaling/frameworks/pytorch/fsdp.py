"""PyTorch's fully_shard (FSDP2) over NCCL, or Gloo on CPUs: the agent's side.

Tensor and pipeline parallelism, CPU offloading and torchao's 8-bit all-gathers are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from scaling.frameworks import collective_bytes
from scaling.frameworks.base import SKILLS, Option, Traits, read_options
from scaling.frameworks.options import accumulated, count_from_0, one_of
from scaling.frameworks.pytorch import installed
from scaling.frameworks.pytorch.plain import TorchDistributed
from scaling.records.crossing import Bounds
from scaling.records.point import Device, Point
from scaling.records.task import Task
from scaling.workloads import models
from scaling.workloads.layers import BatchNorm

Rank = TypeVar("Rank")


class FSDP2(TorchDistributed):
    """Each rank keeps its rows of every parameter, gradient and optimiser state. A unit (fsdp_trainer.py) is
    gathered before forward, and before backward if it was resharded. Then its gradients are reduced and scattered.
    """

    names: tuple[str, ...] = ("torch:fsdp2",)
    # The defaults of fully_shard, except that the root is resharded too, so that a step's bytes are known.
    options: Mapping[str, Option] = {
        "reshard": Option(
            type=bool,
            default=True,
            help="free parameters after forward and gather them again (ZeRO-3); false: keep them (ZeRO-2)",
        ),
        "hsdp": Option(
            type=count_from_0,
            default=0,
            help="ranks that share the parameters; each group has a copy (HSDP: a node's ranks); 0: all",
        ),
        "param_dtype": Option(
            type=one_of("fp32", "bf16"),
            default="fp32",
            help="with --precision bf16: what parameters are gathered in; gradients are summed in fp32",
        ),
        **TorchDistributed.options,
    }
    trainer = "scaling.frameworks.pytorch.fsdp_trainer"

    def traits(self, _name: str) -> Traits:
        return Traits(ports=1, nccl=True, accuracy=SKILLS)

    def devices(self, _name: str) -> tuple[Device, ...]:
        """Return devices that compute: an emulated one cannot wait for parameters before it sleeps."""
        return ("cpu", "cuda")

    def missing(self, name: str, device: Device = "cpu") -> str | None:
        if why := super().missing(name, device):
            return why
        # On CPUs 2.6 lacks streams, 2.7 and 2.8 sum the gradients instead of averaging them.
        where, minor = ("GPUs", 6) if device == "cuda" else ("CPUs", 9)
        if installed.is_before(2, minor):
            return (
                f"fully_shard on {where} needs torch 2.{minor}, not {installed.release()}: ./launch/install torch"
            )
        return None

    def refuse(self, point: Point) -> str | None:
        options, ranks = options_of(point), point.world_size
        if point.workload.memory_format != "contiguous":
            return (
                f"--memory-format {point.workload.memory_format}: FSDP takes contiguous parameters; leave it out"
            )
        if options["param_dtype"] != "fp32" and _has_batch_norm(point):
            return (
                f"--option param_dtype={options['param_dtype']}: the batch norm of {point.workload.model} keeps "
                "its means in fp32; leave it out, or take a model without batch norm"
            )
        if options["param_dtype"] != "fp32" and point.workload.precision != "bf16":
            return f"--option param_dtype={options['param_dtype']}: needs --precision bf16"
        group = options["hsdp"]
        if group == 1:
            return "--option hsdp=1: one rank shares nothing; take 2 or more, or torch:gloo or torch:nccl"
        if group and ranks % group:
            n = "one rank" if ranks == 1 else f"{ranks} ranks"
            return (
                f"--option hsdp={group}: {n} cannot form groups of {group}; use --world-sizes that are multiples"
            )
        return super().refuse(point)

    def updates_all(self, _point: Point) -> bool:
        return False

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """Return the bytes without padding of rows. Gradients are as large as parameters."""
        options, nccl = options_of(task.point), self.by_nccl(task.point)
        group = group_size(task.point)
        gathered = gradient_bytes * (0.5 if options["param_dtype"] == "bf16" else 1)
        gathers = accumulated(task.point) * (2 if options["reshard"] else 1)
        sharing = [
            bounds
            for hosts in shard_groups(task.hosts, group)
            for bounds in (
                *[collective_bytes.all_gather(gathered, hosts, nccl=nccl)] * gathers,
                collective_bytes.reduce_scatter(gradient_bytes, hosts, nccl=nccl),
            )
        ]
        repeating = [
            collective_bytes.all_reduce(gradient_bytes / group, hosts, nccl=nccl)
            for hosts in replica_groups(task.hosts, group)
        ]
        return collective_bytes.total(*sharing, *repeating)


def _has_batch_norm(point: Point) -> bool:
    return any(isinstance(placed.layer, BatchNorm) for placed in models.of(point.workload).placed)


def options_of(point: Point) -> dict[str, Any]:
    return read_options(FSDP2.options, point.options)


def group_size(point: Point) -> int:
    return options_of(point)["hsdp"] or point.world_size


def shard_groups(ranks: Sequence[Rank], size: int) -> list[Sequence[Rank]]:
    """Return the groups that share parameters: consecutive ranks."""
    return [ranks[first : first + size] for first in range(0, len(ranks), size)]


def replica_groups(ranks: Sequence[Rank], size: int) -> list[Sequence[Rank]]:
    """Return the groups that have the same rows."""
    return [ranks[first::size] for first in range(size)]


STRATEGY = FSDP2()
