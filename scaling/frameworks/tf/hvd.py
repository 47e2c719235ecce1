"""TensorFlow with Horovod's all-reduce of each gradient, over Gloo, or over NCCL on GPUs: the agent's side.

Horovod's Adasum, process sets and join are not supported.
"""

from __future__ import annotations

from scaling.frameworks.horovod.strategy import OPTIONS, Horovod
from scaling.frameworks.tf.plain import TensorFlowStrategy


class TensorFlowHorovod(Horovod, TensorFlowStrategy):
    """Horovod with TensorFlow. It refuses what TensorFlow's loop refuses."""

    names = ("tensorflow:horovod",)
    framework = "tensorflow"
    options = {**OPTIONS, **TensorFlowStrategy.options}
    trainer = "scaling.frameworks.tf.hvd_trainer"


STRATEGY = TensorFlowHorovod()
