"""PyTorch's plain loop, and what every PyTorch strategy has in common with it: the agent's side."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from scaling.frameworks import cuda, limits, options
from scaling.frameworks.base import PASSES, Option, Strategy, Traits
from scaling.frameworks.pytorch import installed
from scaling.hosts import gpus
from scaling.records.point import Device, Point

# ---------------------------------------------------------------- build
#
# What the installed PyTorch is built for, read from its files; torch is not imported.


# The oldest GPUs that PyTorch's wheels for CUDA 13 have code for, and the newest of those for CUDA 12.6.
TURING, HOPPER = (7, 5), (9, 0)


def unfit() -> str | None:
    """Why it cannot compute on the GPUs of this host; None where it can, or where nobody knows."""
    name = f"torch {installed.release()}"
    built = installed.cuda()
    if not built:
        return f"{name} is built without CUDA: {_mend()}"
    if why := cuda.driver_too_old(name, cuda.version(built), _mend):
        return why
    return cuda.no_kernels(name, installed.arch_flags(), _mend)


def _mend() -> str:
    """The command that installs what this host's driver and GPUs run, or that none of its wheels does."""
    found = gpus.gather_gpus()
    capabilities = [gpu.compute_capability for gpu in found.gpus if gpu.compute_capability]
    is_old = min(capabilities, default=TURING) < TURING or (found.cuda is not None and found.cuda < (13, 0))
    if is_old and max(capabilities, default=HOPPER) > HOPPER:
        newest = max(found.gpus, key=lambda gpu: gpu.compute_capability or HOPPER)
        return f"PyTorch's wheels for CUDA 12.6 have none for {newest.name} either"
    return f"./launch/install --cuda {12 if is_old else 13} torch"


# ---------------------------------------------------------------- plain


class TorchStrategy(Strategy):
    """The shared loop, with whatever exchange a subclass adds to it."""

    baseline = "torch:plain"
    options: Mapping[str, Option] = options.LOOP
    native_formats = ("folders", "tfrecord", "recordio")

    def devices(self, _name: str) -> tuple[Device, ...]:
        """All."""
        return ("cpu", "cuda", "emulated")

    def missing(self, _name: str, device: Device = "cpu") -> str | None:
        """Whether torch is installed, and on CUDA whether its build fits the driver and the GPUs."""
        package = find_spec("torch")
        if package is None or package.origin is None:  # a folder that is called so
            return "torch is not installed: ./launch/install torch"
        return gpus.none_here("torch:gloo") or unfit() if device == "cuda" else None

    def refuse(self, point: Point) -> str | None:
        """What the loop cannot do: it does all precisions, memory formats and models."""
        return limits.refuse(point) or options.refuse(point)


class Plain(TorchStrategy):
    """The loop without any exchange: what efficiency is measured against."""

    names = ("torch:plain",)
    trainer = "scaling.frameworks.pytorch.loop"

    def traits(self, _name: str) -> Traits:
        """Each pass by itself too."""
        return PASSES


STRATEGY = Plain()
