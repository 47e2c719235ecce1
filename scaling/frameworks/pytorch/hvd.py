"""PyTorch with Horovod's DistributedOptimizer over Gloo, or over NCCL on GPUs: the agent's side.

It does not know Horovod's Adasum, process sets or join.
"""

from __future__ import annotations

from scaling.frameworks.hvd import OPTIONS, Horovod
from scaling.frameworks.pytorch.plain import Torch


class PyTorchHorovod(Torch, Horovod):
    """Nothing is refused but what the loop cannot do."""

    names = ("torch:horovod",)
    framework = "torch"
    options = {**OPTIONS, **Torch.options}
    trainer = "scaling.frameworks.pytorch.hvd_trainer"

    def missing(self, name: str) -> str | None:
        """Found in the installed files; neither PyTorch nor Horovod is imported."""
        return Torch.missing(self, name) or Horovod.missing(self, name)


STRATEGY = PyTorchHorovod()
