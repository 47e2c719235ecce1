"""What the installed PyTorch is built for, read from its files; torch is not imported."""

from __future__ import annotations

from scaling.frameworks import cuda
from scaling.frameworks.pytorch import installed
from scaling.hosts import gpus

# The oldest GPUs that PyTorch's wheels for CUDA 13 have code for, and the newest of those for CUDA 12.6.
TURING, HOPPER = (7, 5), (9, 0)


def unfit() -> str | None:
    """Why it cannot compute on the GPUs of this host; None where it can, or where nobody knows."""
    name = f"torch {installed.release()}"
    built = installed.cuda()
    if not built:
        return f"{name} is built without CUDA: {_mend()}"
    if why := cuda.driver_too_old(name, cuda.version(built), _mend):
        return why
    return cuda.no_kernels(name, installed.arch_flags(), _mend)


def _mend() -> str:
    """The command that installs what this host's driver and GPUs run, or that none of its wheels does."""
    found = gpus.gather_gpus()
    capabilities = [gpu.compute_capability for gpu in found.gpus if gpu.compute_capability]
    is_old = min(capabilities, default=TURING) < TURING or (found.cuda is not None and found.cuda < (13, 0))
    if is_old and max(capabilities, default=HOPPER) > HOPPER:
        newest = max(found.gpus, key=lambda gpu: gpu.compute_capability or HOPPER)
        return f"PyTorch's wheels for CUDA 12.6 have none for {newest.name} either"
    return f"./launch/install --cuda {12 if is_old else 13} torch"
