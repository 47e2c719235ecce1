"""Load the CUDA 11 libraries of MXNet's CUDA builds from PyPI's wheels.

MXNet searches the system's library path, which lacks wheels. It uses libraries that are loaded with global
symbols.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

from scaling.frameworks.mx.plain import cuda_build

# Below `nvidia/`, each after the libraries that it links to.
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
    """Load those that are installed, if MXNet with CUDA is installed. Raises OSError if one is broken."""
    package = find_spec("nvidia") if cuda_build() is not None else None
    places = [] if package is None else list(package.submodule_search_locations or ())
    for library in LIBRARIES:
        for place in places:
            for path in sorted(Path(place).glob(library)):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
