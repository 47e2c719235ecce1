"""PyTorch with Horovod's DistributedOptimizer over Gloo, or over NCCL on GPUs: the agent's side.

Horovod's Adasum, process sets and join are not supported.
"""

from __future__ import annotations

from scaling.frameworks.horovod.strategy import OPTIONS, Horovod
from scaling.frameworks.pytorch.plain import TorchStrategy


class PyTorchHorovod(Horovod, TorchStrategy):
    """Horovod with torch. It refuses what torch's loop refuses."""

    names = ("torch:horovod",)
    framework = "torch"
    options = {**OPTIONS, **TorchStrategy.options}
    trainer = "scaling.frameworks.pytorch.hvd_trainer"
    preload = (*Horovod.preload, trainer)


STRATEGY = PyTorchHorovod()
