"""PyTorch's plain loop, and what every PyTorch strategy has in common with it: the agent's side."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from scaling.frameworks import limits, options
from scaling.frameworks.base import PASSES, Option, Strategy, Traits
from scaling.frameworks.pytorch import build
from scaling.hosts import gpus
from scaling.records.point import Device, Point


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
        return gpus.none_here("torch:gloo") or build.unfit() if device == "cuda" else None

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
