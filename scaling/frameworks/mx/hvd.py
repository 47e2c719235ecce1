"""`mxnet:horovod`: Horovod's DistributedTrainer over Gloo, or over NCCL on GPUs: the agent's side.

MXNet's engine starts the exchange of each gradient once it is computed. Horovod's optimiser divides by the ranks,
this loop by the batch: the update is the mean. Adasum, process sets and join are not supported.
"""

from __future__ import annotations

from scaling.frameworks.horovod.strategy import OPTIONS, Horovod
from scaling.frameworks.mx.plain import MXNetStrategy
from scaling.records import crossing
from scaling.records.crossing import Parts
from scaling.records.point import Point


class MXNetHorovod(Horovod, MXNetStrategy):
    """Horovod with MXNet. It refuses what MXNet's loop refuses."""

    names = ("mxnet:horovod",)
    framework = "mxnet"
    options = {**OPTIONS, **MXNetStrategy.options}
    trainer = "scaling.frameworks.mx.hvd_trainer"
    preload = (*Horovod.preload, trainer)

    def wire_parts(self, point: Point) -> Parts:
        """Return whole gradients with `--precision fp16`: these are halves already."""
        return crossing.WHOLE if point.workload.precision == "fp16" else super().wire_parts(point)


STRATEGY = MXNetHorovod()
