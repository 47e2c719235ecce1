"""What `import mxnet` needs: CUDA 11's libraries from PyPI's wheels, and NumPy's removed names.

MXNet searches the system's library path, which lacks wheels. It uses libraries that are loaded with global
symbols.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy

from scaling.frameworks.mx.strategies import cuda_build

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


@contextmanager
def restored() -> Iterator[None]:
    """Restore NumPy's names that MXNet 1.9 needs, and hide its warnings about NumPy's other changes, which do not
    matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "bool" not in vars(numpy):
            numpy.bool = bool  # type: ignore[attr-defined, unused-ignore]
        yield
