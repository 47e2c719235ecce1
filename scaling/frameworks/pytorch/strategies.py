"""All PyTorch strategies, on the agent's side.

Not supported: torchrun's elastic restarts, tensor and pipeline parallelism, CPU offloading, torchao's 8-bit
all-gathers, and Horovod's Adasum, process sets and join. PowerSGD is no option: it aborts over Gloo, because ranks
call its collectives in different orders (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from scaling.emulated.layers import DEFAULT_BUCKET_MB
from scaling.frameworks import network_env, options
from scaling.frameworks.base import PASSES, SKILLS, Helper, Option, Strategy, Traits, WithNccl, read_own_options
from scaling.frameworks.horovod.strategy import OPTIONS, Horovod
from scaling.frameworks.options import accumulated, count_from_0, one_of, positive_number
from scaling.frameworks.pytorch import installed
from scaling.hosts import gpus
from scaling.records import crossing
from scaling.records.crossing import Bounds, Parts
from scaling.records.point import EXCHANGING, Device, Optimizer, Point
from scaling.records.task import Task
from scaling.workloads import models
from scaling.workloads.layers import BatchNorm

# Optimisers of torch with a fused kernel on CPUs and GPUs.
FUSED: tuple[Optimizer, ...] = ("sgd", "adam", "adamw")
UNCOMPRESSED = "none"
Rank = TypeVar("Rank")


class TorchStrategy(Strategy):
    """The shared loop. Subclasses add their exchange."""

    baseline = "torch:plain"
    options: Mapping[str, Option] = {
        **options.LOOP,
        "fused": Option(type=bool, default=False, help="one kernel updates all parameters, as tuned loops do"),
    }
    native_formats = ("folders", "tfrecord", "recordio")

    def devices(self, _name: str) -> tuple[Device, ...]:
        return ("cpu", "cuda", "emulated")

    def missing(self, _name: str, device: Device = "cpu") -> str | None:
        if installed.folder() is None:
            return "torch is not installed: ./launch/install torch"
        return gpus.none_here("torch:gloo") or installed.unfit() if device == "cuda" else None

    def refuse(self, point: Point) -> str | None:
        if (why := options.refuse(point)) or not fused(point):
            return why
        if point.hardware.device == "emulated":
            return "--option fused=true: emulated devices compute nothing; leave it out"
        if (optimizer := models.at(point).recipe.optimizer) not in FUSED:
            names = " or ".join(FUSED)
            return f"--option fused=true: torch has no fused {optimizer}; leave it out, or take {names}"
        return None


def fused(point: Point) -> bool:
    """Return whether one kernel updates all parameters."""
    return bool(read_own_options(TorchStrategy.options, point.options)["fused"])


class Plain(TorchStrategy):
    """The loop without exchange, against which efficiency is measured."""

    names = ("torch:plain",)
    trainer = "scaling.frameworks.pytorch.loop"

    def traits(self, _name: str) -> Traits:
        return PASSES


class PyTorchHorovod(Horovod, TorchStrategy):
    """Horovod's DistributedOptimizer over Gloo, or over NCCL on GPUs. It refuses what torch's loop refuses."""

    names = ("torch:horovod",)
    framework = "torch"
    options = {**OPTIONS, **TorchStrategy.options}
    trainer = "scaling.frameworks.pytorch.hvd_trainer"
    preload = (*Horovod.preload, trainer)


class TorchDistributed(TorchStrategy):
    """One worker per device. Rank 0's worker hosts the store through which they connect."""

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        """Return what torchrun would set, and the interfaces of the exchange."""
        if task.point.kind not in EXCHANGING:
            return {}
        return {
            "MASTER_ADDR": task.address,
            "MASTER_PORT": str(task.ports[0]),
            "RANK": str(task.rank),
            "WORLD_SIZE": str(task.point.world_size),
            "LOCAL_RANK": str(task.local_rank),
            **network_env.gloo(task),
            **(network_env.nccl(task) | network_env.nccl_log(task) if self.by_nccl(task.point) else {}),
        }


# ---------------------------------------------------------------- DistributedDataParallel


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
        given, emulated = self.options_of(point), point.hardware.device == "emulated"
        if given["compress"] == "bf16" and not self.by_nccl(point):
            return "--option compress=bf16: Gloo sums fp32 and fp16; take compress=fp16, or torch:nccl"
        if emulated and given["compress"] != UNCOMPRESSED:
            return f"--option compress={given['compress']}: emulated devices compute nothing; leave it out"
        if emulated and given["shard_optimizer"]:
            return "--option shard_optimizer=true: emulated devices have no optimizer's state; leave it out"
        divides_both = point.hardware.shrink != 1 and given["bucket_cap_mb"] == DEFAULT_BUCKET_MB
        if divides_both and installed.is_before(2, 11):
            return (
                f"--shrink {point.hardware.shrink:g}: DDP of torch {installed.release()} takes no size of the "
                "first bucket; take torch 2.11, or add --option bucket_cap_mb=24"
            )
        if given["static_graph"] and given["accumulate"] > 1:
            return "--option static_graph=true: DDP exchanges after each micro-batch then; leave out one option"
        return super().refuse(point)

    def updates_all(self, point: Point) -> bool:
        return not self.options_of(point)["shard_optimizer"]

    def wire_parts(self, point: Point) -> Parts:
        return crossing.WHOLE if self.options_of(point)["compress"] == UNCOMPRESSED else (0.5, 0.5)

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """Return the all-reduces and, with a sharded optimiser, the broadcasts of updated parameters."""
        reduced = super().bytes_per_step(task, gradient_bytes)
        if reduced is None or self.updates_all(task.point):
            return reduced
        updated = crossing.broadcast(gradient_bytes, task.hosts, nccl=self.by_nccl(task.point))
        return crossing.total(reduced, updated)


# ---------------------------------------------------------------- FSDP2


class FSDP2(TorchDistributed):
    """fully_shard: each rank keeps its rows of every parameter, gradient and optimiser state. A unit
    (fsdp_trainer.py) is gathered before forward, and before backward if it was resharded. Then its gradients are
    reduced and scattered."""

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
        # On CPUs 2.6 lacks streams, 2.7 and 2.8 sum the gradients instead of averaging them.
        where, minor = ("GPUs", 6) if device == "cuda" else ("CPUs", 9)
        why = super().missing(name, device)
        if why or not installed.is_before(2, minor):
            return why
        return f"fully_shard on {where} needs torch 2.{minor}, not {installed.release()}: ./launch/install torch"

    def refuse(self, point: Point) -> str | None:
        given, ranks, work = self.options_of(point), point.world_size, point.workload
        group, dtype = given["hsdp"], f"--option param_dtype={given['param_dtype']}"
        if work.memory_format != "contiguous":
            return f"--memory-format {work.memory_format}: FSDP takes contiguous parameters; leave it out"
        if given["param_dtype"] != "fp32":
            if any(isinstance(placed.layer, BatchNorm) for placed in models.of(work).placed):
                return (
                    f"{dtype}: the batch norm of {work.model} keeps its means in fp32; leave it out, or take a "
                    "model without batch norm"
                )
            if work.precision != "bf16":
                return f"{dtype}: needs --precision bf16"
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
        given, nccl, group = self.options_of(task.point), self.by_nccl(task.point), group_size(task.point)
        gathered = gradient_bytes * (0.5 if given["param_dtype"] == "bf16" else 1)
        gathers = accumulated(task.point) * (2 if given["reshard"] else 1)
        sharing = [
            bounds
            for hosts in shard_groups(task.hosts, group)
            for bounds in (
                *[crossing.all_gather(gathered, hosts, nccl=nccl)] * gathers,
                crossing.reduce_scatter(gradient_bytes, hosts, nccl=nccl),
            )
        ]
        repeating = [
            crossing.all_reduce(gradient_bytes / group, hosts, nccl=nccl)
            for hosts in replica_groups(task.hosts, group)
        ]
        return crossing.total(*sharing, *repeating)


def group_size(point: Point) -> int:
    return FSDP2.options_of(point)["hsdp"] or point.world_size


def shard_groups(ranks: Sequence[Rank], size: int) -> list[Sequence[Rank]]:
    """Return the groups that share parameters: consecutive ranks."""
    return [ranks[first : first + size] for first in range(0, len(ranks), size)]


def replica_groups(ranks: Sequence[Rank], size: int) -> list[Sequence[Rank]]:
    """Return the groups that have the same rows."""
    return [ranks[first::size] for first in range(size)]


# ---------------------------------------------------------------- parameter servers


class ParameterServer(TorchStrategy):
    """Parameter servers on torch.distributed. They have the parameters and their momentum and do the updates.
    Workers push gradients and pull parameters; from GPUs these go through the host's memory.

    * `ps-sync`: a server waits for all workers' gradients and applies their mean once.
    * `ps-async`: a server applies each gradient at once and answers that worker only.

    Staleness (`ps-async`): for each bucket, the updates by other workers between the server's last answer to a
    worker and the worker's next push. A step's staleness is the mean over buckets.
    """

    names = ("torch:ps-sync", "torch:ps-async")
    options: Mapping[str, Option] = {
        "bucket_cap_mb": Option(type=positive_number, default=2.0, help="MiB of parameters per message"),
        "compression": Option(
            type=one_of("none", "fp16"),
            default="none",
            help="fp16: gradients travel in half precision, parameters do not",
        ),
        **TorchStrategy.options,
    }
    trainer = "scaling.frameworks.pytorch.ps_trainer"
    server = "scaling.frameworks.pytorch.ps_server"
    preload = (trainer, server)

    def traits(self, name: str) -> Traits:
        return Traits(servers=True, synchronous=name == "torch:ps-sync", accuracy=("evaluate",))

    def refuse(self, point: Point) -> str | None:
        """Refuse fp16, whose scale of gradients servers do not know, and optimisers other than their SGD."""
        if fused(point):
            return "--option fused=true: servers update the parameters; leave it out"
        if point.workload.precision == "fp16":
            return "--precision fp16: parameter servers take fp32, tf32 or bf16"
        if (optimizer := models.of(point.workload).recipe.optimizer) != "sgd":
            return f"--optimizer {optimizer}: torch's servers only update by SGD; add --optimizer sgd"
        return super().refuse(point)

    def helpers(self, task: Task) -> list[Helper]:
        return [Helper(name=f"server-{index}", server=index, awaited=False) for index in range(len(task.servers))]

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        return network_env.gloo(task)

    def wire_parts(self, point: Point) -> Parts:
        """Return a half outwards if gradients travel as fp16. Servers send whole parameters back."""
        return (0.5, 1.0) if self.options_of(point)["compression"] == "fp16" else crossing.WHOLE
