"""PyTorch's DistributedDataParallel, a parameter server on torch.distributed, and Horovod under it."""

from __future__ import annotations

from scaling.frameworks.base import Framework

FRAMEWORK = Framework(
    name="torch",
    strategies={
        "nccl": "ddp",
        "gloo": "ddp",
        "horovod": "hvd",
        "ps-sync": "ps",
        "ps-async": "ps",
        "plain": "plain",
    },
    distributions={"torch": ("torch",), "torchvision": ("torchvision",), "horovod": ("horovod",)},
    startup_s=3.0,
)
