"""PyTorch's DistributedDataParallel and FSDP2, a parameter server on torch.distributed, and Horovod."""

from __future__ import annotations

from scaling.frameworks import horovod
from scaling.frameworks.base import Exchange, Framework
from scaling.frameworks.pytorch import installed

FRAMEWORK = Framework(
    name="torch",
    strategies={
        "nccl": "strategies",
        "gloo": "strategies",
        "fsdp2": "strategies",
        "horovod": "strategies",
        "ps-sync": "strategies",
        "ps-async": "strategies",
        "plain": "strategies",
    },
    meant={"ddp": "torch:nccl on GPUs, torch:gloo on CPUs", "fsdp": "torch:fsdp2", "ps": "torch:ps-sync"},
    distributions={
        "torch": ("torch",),
        "torchvision": ("torchvision",),
        **horovod.DISTRIBUTIONS,
        # NCCL has a package for each CUDA. Triton compiles for --compile.
        "nvidia-nccl-cu13": ("nvidia-nccl-cu13",),
        "nvidia-nccl-cu12": ("nvidia-nccl-cu12",),
        "triton": ("triton",),
    },
    essential=("torch", "nvidia-nccl-cu13", "nvidia-nccl-cu12", horovod.PACKAGE),
    built_for_cuda=installed.cuda,
    preflight="scaling.frameworks.pytorch.preflight",
    defaults={"cpu": "gloo", "cuda": "nccl", "emulated": "gloo"},
    exchanges={
        "": Exchange(messages="buckets"),
        "fsdp2": Exchange(method="sharded", messages="buckets", by_nccl=True),
        "horovod": horovod.EXCHANGE,
    },
    own_models=True,
    compiler="torch.compile",
    compiler_lacks=installed.compiler_lacks,
    variables=f"ATEN_|PYTORCH_|TORCH_|TORCHDYNAMO_|TORCHINDUCTOR_|TRITON_|{horovod.VARIABLES}",
    corrected={"TORCH_DISTRIBUTED_DEBUG": ("^DETAIL$", "INFO", "torch fails with DETAIL")},
    startup_s=3.0,
    # DDP imports torch._dynamo when it is built.
    preload=("torch._dynamo", "scaling.frameworks.pytorch.ddp_trainer"),
    forks_on=("cpu", "emulated", "cuda"),
    # torch.cuda.is_available() then asks NVML and leaves CUDA uninitialised, so that forks can use it.
    shares_gpus=True,
    preload_environ={"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
    resident_bytes=350_000_000,
)
