"""The CUDA 11 libraries that MXNet's CUDA builds are linked to, from PyPI's wheels.

MXNet looks for them by name where the system's loader looks, which is not in wheels. What is in the process
already, with its names for all to see, it takes from there.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

from scaling.frameworks.mx.plain import cuda_build

# Below `nvidia/`; each after those that it is linked to itself.
LIBRARIES = (
    "cuda_runtime/lib/libcudart.so.11.0",
    "nvtx/lib/libnvToolsExt.so.1",
    "cuda_nvrtc/lib/libnvrtc-builtins.so.11.*",
    "cuda_nvrtc/lib/libnvrtc.so.11.2",
    "cublas/lib/libcublasLt.so.11",
    "cublas/lib/libcublas.so.11",
    "cufft/lib/libcufft.so.10",
    "curand/lib/libcurand.so.10",
    "cusparse/lib/libcusparse.so.11",
    "cusolver/lib/libcusolver.so.11",
    "cudnn/lib/libcudnn.so.8",
    "nccl/lib/libnccl.so.2",
)


def preload() -> None:
    """Load what wheels have of them, where MXNet with CUDA is installed. Raises OSError for one that is broken."""
    package = find_spec("nvidia") if cuda_build() is not None else None
    places = [] if package is None else list(package.submodule_search_locations or ())
    for library in LIBRARIES:
        for place in places:
            for path in sorted(Path(place).glob(library)):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
