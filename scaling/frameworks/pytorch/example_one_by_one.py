"""A strategy in one file: an all-reduce for each parameter, after the whole backward pass.

    scaling run --strategy scaling/frameworks/pytorch/example_one_by_one.py:gloo,torch:gloo

The agent imports this file, so PyTorch is imported inside functions alone.
"""

from __future__ import annotations

from scaling.frameworks.base import Trainer, Traits
from scaling.frameworks.pytorch.strategies import TorchDistributed
from scaling.records.point import Point
from scaling.records.task import Task


class OneByOne(TorchDistributed):
    names = ("gloo",)

    def traits(self, _name: str) -> Traits:
        return Traits(ports=1)  # rank 0's store

    def refuse(self, point: Point) -> str | None:
        if point.kind == "comm":
            return "--kinds comm: this example has no exchange without training"
        return super().refuse(point)


def connect(task: Task) -> Trainer:
    """Called in each worker."""
    from torch import distributed

    from scaling.frameworks.pytorch.group import Grouped
    from scaling.frameworks.pytorch.loop import Training

    class Averaged(Grouped, Training):
        def update(self) -> None:
            for each in self._module.parameters():
                assert each.grad is not None
                distributed.all_reduce(each.grad)
                each.grad /= self.task.point.world_size
            super().update()

    return Averaged(task)
