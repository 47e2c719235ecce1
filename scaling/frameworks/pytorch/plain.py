"""The agent's side of PyTorch's plain loop, and what all PyTorch strategies share."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal

from scaling.frameworks import cuda, network_env, options
from scaling.frameworks.base import PASSES, Option, Strategy, Traits, read_own_options
from scaling.frameworks.pytorch import installed
from scaling.hosts import gpus
from scaling.records.point import EXCHANGING, Device, Optimizer, Point
from scaling.records.task import Task
from scaling.workloads import models

# ---------------------------------------------------------------- build


# The oldest GPUs that PyTorch's wheels for CUDA 13 support, and the newest that those for CUDA 12.6 do.
TURING, HOPPER = (7, 5), (9, 0)


def unfit() -> str | None:
    """Return why the installed torch cannot compute on this host's GPUs; None if it can or this is unknown."""
    name = f"torch {installed.release()}"
    built = installed.cuda()
    if not built:
        return f"{name} is built without CUDA: {_mend()}"
    if why := cuda.driver_too_old(name, cuda.version(built), _mend):
        return why
    return cuda.no_kernels(name, installed.arch_flags(), _mend)


def _mend() -> str:
    found = gpus.gather_gpus()
    capabilities = [gpu.compute_capability for gpu in found.gpus if gpu.compute_capability]
    is_old = min(capabilities, default=TURING) < TURING or (found.cuda is not None and found.cuda < (13, 0))
    if is_old and max(capabilities, default=HOPPER) > HOPPER:
        newest = max(found.gpus, key=lambda gpu: gpu.compute_capability or HOPPER)
        return f"PyTorch's wheels for CUDA 12.6 have none for {newest.name} either"
    return f"./launch/install --cuda {12 if is_old else 13} torch"


# ---------------------------------------------------------------- plain


# Optimisers of torch with a fused kernel on CPUs and GPUs.
FUSED: tuple[Optimizer, ...] = ("sgd", "adam", "adamw")


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
        package = find_spec("torch")
        if package is None or package.origin is None:  # a folder of this name
            return "torch is not installed: ./launch/install torch"
        return gpus.none_here("torch:gloo") or unfit() if device == "cuda" else None

    def refuse(self, point: Point) -> str | None:
        return options.refuse(point) or _refuse_fused(point)


def fused(point: Point) -> bool:
    """Return whether one kernel updates all parameters."""
    return bool(read_own_options(TorchStrategy.options, point.options)["fused"])


def _refuse_fused(point: Point) -> str | None:
    if not fused(point):
        return None
    if point.hardware.device == "emulated":
        return "--option fused=true: emulated devices compute nothing; leave it out"
    optimizer = models.at(point).recipe.optimizer
    if optimizer not in FUSED:
        return f"--option fused=true: torch has no fused {optimizer}; leave it out, or take {' or '.join(FUSED)}"
    return None


class TorchDistributed(TorchStrategy):
    """One worker per device. Rank 0's worker hosts the store through which they connect."""

    def backend(self, point: Point) -> Literal["nccl", "gloo"]:
        return "nccl" if self.by_nccl(point) else "gloo"

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


class Plain(TorchStrategy):
    """The loop without exchange, against which efficiency is measured."""

    names = ("torch:plain",)
    trainer = "scaling.frameworks.pytorch.loop"

    def traits(self, _name: str) -> Traits:
        return PASSES


STRATEGY = Plain()
