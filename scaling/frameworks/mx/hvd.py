"""MXNet with Horovod's DistributedTrainer over Gloo, or over NCCL on GPUs.

MXNet's engine starts the exchange of each gradient as soon as it is computed. Horovod divides the sums by the
ranks in the optimiser, this loop by the batch: the update is the mean over all. It does not know Horovod's
Adasum, process sets or join.
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling.frameworks import evaluating
from scaling.frameworks.horovod.strategy import OPTIONS, Horovod
from scaling.frameworks.mx.plain import MXNetStrategy
from scaling.records import crossing
from scaling.records.crossing import Parts
from scaling.records.point import Device, Point
from scaling.records.task import Task


class MXNetHorovod(Horovod, MXNetStrategy):
    """Nothing is refused but what the loop cannot do."""

    names = ("mxnet:horovod",)
    framework = "mxnet"
    accuracy = evaluating.ALL
    options = {**OPTIONS, **MXNetStrategy.options}
    trainer = "scaling.frameworks.mx.hvd_trainer"
    preload = (*Horovod.preload, trainer)

    def missing(self, name: str, device: Device = "cpu") -> str | None:
        """Found in the installed files; neither MXNet nor Horovod is imported."""
        return MXNetStrategy.missing(self, name, device) or super().missing(name, device)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        """MXNet's own and Horovod's variables."""
        return {**MXNetStrategy.environ(self, task, announced), **super().environ(task, announced)}

    def wire_parts(self, point: Point) -> Parts:
        """With `--precision fp16` gradients are half as large already: compression leaves them as they are."""
        return crossing.WHOLE if point.workload.precision == "fp16" else super().wire_parts(point)


STRATEGY = MXNetHorovod()
