"""PyTorch's DistributedDataParallel over NCCL or Gloo: the agent's side.

torchrun's elastic restarts are not supported. fsdp.py shards parameters too. PowerSGD is no option: it aborts over
Gloo, because ranks call its collectives in different orders (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.emulated.layers import DEFAULT_BUCKET_MB
from scaling.frameworks import collective_bytes
from scaling.frameworks.base import SKILLS, Option, Traits, WithNccl, read_options
from scaling.frameworks.options import one_of, positive_number
from scaling.frameworks.pytorch import installed
from scaling.frameworks.pytorch.plain import TorchDistributed
from scaling.records import crossing
from scaling.records.crossing import Bounds, Parts
from scaling.records.point import Point
from scaling.records.task import Task

UNCOMPRESSED = "none"


class DDP(WithNccl, TorchDistributed):
    """All gradients are on all ranks. So is the optimiser's state, unless it is sharded (ZeRO stage 1)."""

    names: tuple[str, ...] = ("torch:nccl", "torch:gloo")
    # The defaults of DistributedDataParallel.
    options: Mapping[str, Option] = {
        "bucket_cap_mb": Option(
            type=positive_number,
            default=DEFAULT_BUCKET_MB,
            help="MiB of a gradient bucket; at 25 the first is 1 MiB",
        ),
        "gradient_as_bucket_view": Option(
            type=bool, default=False, help="keep gradients in the buckets: less memory, one copy less"
        ),
        "static_graph": Option(type=bool, default=False, help="the same parameters are used in every step"),
        "compress": Option(
            type=one_of(UNCOMPRESSED, "fp16", "bf16"),
            default=UNCOMPRESSED,
            help="type of gradients when sent, by DDP's hooks: none (unchanged), fp16, or on NCCL bf16",
        ),
        "shard_optimizer": Option(
            type=bool,
            default=False,
            help="each rank updates a part of the parameters and sends it to all (ZeRO-1: less memory)",
        ),
        **TorchDistributed.options,
    }
    trainer = "scaling.frameworks.pytorch.ddp_trainer"

    def traits(self, name: str) -> Traits:
        return Traits(ports=1, nccl=name == "torch:nccl", accuracy=SKILLS)

    def refuse(self, point: Point) -> str | None:
        """Return what DDP cannot do.

        * Gloo reduces no bf16.
        * Compression and sharding would cost an emulated device's CPU time that they do not cost a GPU.
        * With a static graph, the first backward pass in `no_sync` fails in the reducer (torch 2.13).
        """
        options = options_of(point)
        if options["compress"] == "bf16" and self.backend(point) == "gloo":
            return "--option compress=bf16: Gloo sums fp32 and fp16; take compress=fp16, or torch:nccl"
        if point.hardware.device == "emulated" and options["compress"] != UNCOMPRESSED:
            return f"--option compress={options['compress']}: emulated devices compute nothing; leave it out"
        if point.hardware.device == "emulated" and options["shard_optimizer"]:
            return "--option shard_optimizer=true: emulated devices have no optimizer's state; leave it out"
        divides_both = point.hardware.shrink != 1 and options["bucket_cap_mb"] == DEFAULT_BUCKET_MB
        if divides_both and installed.is_before(2, 11):
            return (
                f"--shrink {point.hardware.shrink:g}: DDP of torch {installed.release()} takes no size of the "
                "first bucket; take torch 2.11, or add --option bucket_cap_mb=24"
            )
        if options["static_graph"] and options["accumulate"] > 1:
            return "--option static_graph=true: DDP exchanges after each micro-batch then; leave out one option"
        return super().refuse(point)

    def updates_all(self, point: Point) -> bool:
        return not options_of(point)["shard_optimizer"]

    def wire_parts(self, point: Point) -> Parts:
        return crossing.WHOLE if options_of(point)["compress"] == UNCOMPRESSED else (0.5, 0.5)

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """Return the all-reduces and, with a sharded optimiser, the broadcasts of updated parameters."""
        reduced = super().bytes_per_step(task, gradient_bytes)
        if reduced is None or not options_of(task.point)["shard_optimizer"]:
            return reduced
        updated = collective_bytes.broadcast(gradient_bytes, task.hosts, nccl=self.by_nccl(task.point))
        return collective_bytes.total(reduced, updated)


def options_of(point: Point) -> dict[str, Any]:
    return read_options(DDP.options, point.options)


STRATEGY = DDP()
