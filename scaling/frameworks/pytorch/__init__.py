"""PyTorch's DistributedDataParallel and FSDP2, a parameter server on torch.distributed, Horovod under it."""

from __future__ import annotations

from scaling.frameworks.base import Framework

FRAMEWORK = Framework(
    name="torch",
    strategies={
        "nccl": "ddp",
        "gloo": "ddp",
        "fsdp2": "fsdp",
        "horovod": "hvd",
        "ps-sync": "ps",
        "ps-async": "ps",
        "plain": "plain",
    },
    distributions={
        "torch": ("torch",),
        "torchvision": ("torchvision",),
        "horovod": ("horovod",),
        # NCCL comes in packages of their own, one for each CUDA; Triton compiles what --compile makes.
        "nvidia-nccl-cu13": ("nvidia-nccl-cu13",),
        "nvidia-nccl-cu12": ("nvidia-nccl-cu12",),
        "triton": ("triton",),
    },
    startup_s=3.0,
    # DDP imports torch._dynamo when it is made.
    preload=("torch._dynamo", "scaling.frameworks.pytorch.ddp_trainer"),
    resident_bytes=350_000_000,
)
