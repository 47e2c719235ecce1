"""TensorFlow with Horovod's all-reduce of each gradient, over Gloo, or over NCCL on GPUs: the agent's side.

Horovod's Adasum, process sets and join are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling.frameworks.base import SKILLS
from scaling.frameworks.horovod.strategy import OPTIONS, Horovod
from scaling.frameworks.tf.plain import TensorFlowStrategy
from scaling.records.point import Device
from scaling.records.task import Task


class TensorFlowHorovod(Horovod, TensorFlowStrategy):
    """Horovod with TensorFlow. It refuses what TensorFlow's loop refuses."""

    names = ("tensorflow:horovod",)
    framework = "tensorflow"
    accuracy = SKILLS
    options = {**OPTIONS, **TensorFlowStrategy.options}
    trainer = "scaling.frameworks.tf.hvd_trainer"

    def missing(self, name: str, device: Device = "cpu") -> str | None:
        return TensorFlowStrategy.missing(self, name, device) or super().missing(name, device)

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        return {**TensorFlowStrategy.environ(self, task, announced), **super().environ(task, announced)}


STRATEGY = TensorFlowHorovod()
