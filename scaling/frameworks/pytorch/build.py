"""What the installed PyTorch is built for, read from its files; torch is not imported."""

from __future__ import annotations

from importlib import metadata

from scaling.frameworks import cuda
from scaling.frameworks.pytorch import installed
from scaling.hosts import gpus

# What PyTorch's wheels are compiled for, by CUDA version, where torch does not list it itself (2.13 does):
# https://github.com/pytorch/pytorch, .ci/manywheel/build_cuda.sh for CUDA 12; 13.0 is read off the ELF sections of
# 2.13's libtorch_cuda.so. And whether PTX is among it.
COMPILED: dict[cuda.Version, tuple[tuple[cuda.Version, ...], bool]] = {
    (12, 6): (((5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0)), False),
    (12, 8): (((7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)), False),
    (12, 9): (((7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)), True),
    (13, 0): (((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)), True),
}
# The oldest GPUs that PyTorch's wheels for CUDA 13 have code for.
TURING = (7, 5)


def unfit() -> str | None:
    """Why it cannot compute on the GPUs of this host; None where it can, or where nobody knows."""
    name = f"torch {metadata.version('torch')}"
    release = installed.cuda()
    if not release:
        return f"{name} is built without CUDA: {_mend()}"
    built = cuda.version(release)
    if why := cuda.driver_too_old(name, built, _mend()):
        return why
    known, has_ptx = COMPILED.get(built, ((), True))
    compiled = installed.capabilities(release) or known
    return cuda.no_kernels(name, compiled, _mend(), newer=has_ptx) if compiled else None


def _mend() -> str:
    """The command that installs what this host's driver and GPUs run."""
    found = gpus.gather_gpus()
    capabilities = [gpu.compute_capability for gpu in found.gpus if gpu.compute_capability]
    is_old = min(capabilities, default=TURING) < TURING or (found.cuda is not None and found.cuda < (13, 0))
    return f"./launch/install --cuda {'12' if is_old else '13'} torch"
