"""Settings of CUDA and NCCL for Horovod's build."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

NO_NCCL = (
    "without NCCL: nvcc or nccl.h is missing; install the CUDA toolkit of your framework's release "
    "(https://developer.nvidia.com/cuda-downloads), or set HOROVOD_CUDA_HOME and HOROVOD_NCCL_HOME to where they "
    "are; then ./launch/install horovod"
)


def gpu_settings() -> dict[str, str]:
    """Return variables for GPU operations over NCCL; empty without nvcc or nccl.h. NCCL is the framework's own
    unless the user names another."""
    nvcc = shutil.which("nvcc")
    home = os.environ.get("HOROVOD_CUDA_HOME") or os.environ.get("CUDA_HOME")
    home = home or (str(Path(nvcc).resolve().parent.parent) if nvcc else "/usr/local/cuda")
    places = (os.environ.get("HOROVOD_NCCL_HOME"), pypi_nccl(), "/usr", home)
    nccl = next((str(at) for at in places if at and Path(at, "include/nccl.h").is_file()), None)
    if nccl is None or not Path(home, "bin/nvcc").is_file():
        return {}
    found = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": home, "HOROVOD_NCCL_HOME": nccl}
    return found | {"CUDA_HOME": home, "HOROVOD_NCCL_LINK": "SHARED"}


def pypi_nccl() -> Path:
    return Path(sysconfig.get_path("purelib"), "nvidia/nccl")
