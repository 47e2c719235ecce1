"""Frameworks built for GPUs as their files tell, on hosts with GPUs as NVML tells: neither is here."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from scaling.frameworks.horovod import strategy as hvd
from scaling.frameworks.mx import plain as mx_plain
from scaling.frameworks.pytorch import installed as torch_installed
from scaling.frameworks.pytorch import plain as torch_plain
from scaling.frameworks.tf import plain as tf_build
from scaling.frameworks.tf import plain as tf_plain
from scaling.hosts import gpus
from scaling.hosts.gpus import Found
from scaling.records.host import Gpu

MODULES = {
    "torch": (torch_plain, torch_installed),
    "tensorflow": (tf_plain, tf_build),
    "mxnet": (mx_plain,),
    "horovod": (hvd,),
}
# As version.py of PyTorch's wheels and build_info.py of TensorFlow's have it.
TORCH_VERSION = "from typing import Optional\n\n__version__ = {!r}\ndebug = False\ncuda: Optional[str] = {!r}\n"
TF_CPU = "build_info = collections.OrderedDict([('is_cuda_build', False), ('is_rocm_build', False)])"
TF_CUDA = (
    "build_info = collections.OrderedDict([('cpu_compiler', '/usr/lib/llvm-18/bin/clang'), "
    "('cuda_compute_capabilities', ['sm_60', 'sm_70', 'sm_80', 'sm_89', 'compute_90']), "
    "('cuda_version', '12.5.1'), "
    "('cudnn_version', '9'), ('is_cuda_build', True), ('is_rocm_build', False), ('is_tensorrt_build', False)])"
)

# What torch.cuda.get_arch_list() says of PyTorch's wheels, by release and CUDA.
_PASCAL = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
TORCH_ARCHS = {
    "2.3.1+cu118": "sm_50 sm_60 sm_61 sm_70 sm_75 sm_80 sm_86 sm_37 sm_90 compute_37",
    "2.4.1+cu121": _PASCAL,
    "2.5.1+cu121": _PASCAL,
    "2.7.1+cu128": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120",
    "2.8.0+cu126": _PASCAL,
    "2.9.1+cu128": "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
    "2.12.0+cu128": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
    "2.13.0+cu126": _PASCAL,
    "2.13.0+cu130": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
    "2.13.0+cu132": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120",
    "2.14.1+cu130": "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
}
# How torch/cuda lists its wheels: not at all up to 2.8, by CUDA alone up to 2.12, and by machine after that.
TORCH_TABLES = {
    "2.8": "import torch\n",
    "2.11": 'PYTORCH_RELEASES_CODE_CC: dict[str, set[int]] = {\n    "13.0": {75, 80, 86, 90, 100, 110, 120},\n}\n',
    "2.13": (
        "PYTORCH_RELEASES_CODE_CC: dict[str, dict[str, set[int]]] = {\n"
        '    "13.0": {\n        "x86_64": {75, 80, 86, 90, 100, 120},\n    },\n}\n'
    ),
    "to come": "PYTORCH_RELEASES_CODE_CC = {\n    **others()\n}\n",
}

P100 = ("Tesla P100-PCIE-16GB", (6, 0))
V100 = ("Tesla V100-PCIE-32GB", (7, 0))
T4 = ("Tesla T4", (7, 5))
A100 = ("NVIDIA A100-SXM4-80GB", (8, 0))
L40S = ("NVIDIA L40S", (8, 9))
H100 = ("NVIDIA H100 80GB HBM3", (9, 0))
B200 = ("NVIDIA B200", (10, 0))
GB10 = ("NVIDIA GB10", (12, 1))
NEXT = ("NVIDIA Next", (14, 0))

Model = tuple[str, tuple[int, int]]


def found(*models: Model, cuda: tuple[int, int] | None = (13, 0), driver: str = "580.95.05") -> Found:
    """What NVML tells of a host with these GPUs."""
    listed = (
        Gpu(index=index, name=name, uuid=f"GPU-{index}", memory_bytes=1, compute_capability=capability)
        for index, (name, capability) in enumerate(models)
    )
    return Found(gpus=tuple(listed), driver=driver, cuda=cuda, reachable=len(models))


class Builds:
    """What a test installs below `folder`, and the GPUs that are there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._versions: dict[str, str] = {}

        def version(name: str) -> str:
            if name not in self._versions:
                raise metadata.PackageNotFoundError(name)
            return self._versions[name]

        monkeypatch.setattr(metadata, "version", version)
        # Python 3.13 reads a distribution's name with modules that nothing may have imported yet.
        monkeypatch.setattr(sys, "path", [str(folder), sysconfig.get_path("stdlib")])

    def hold(self, told: Found) -> None:
        """These GPUs, or none."""
        self._monkeypatch.setattr(gpus, "gather_gpus", lambda: told)

    def _package(self, name: str) -> Path:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        spec = ModuleSpec(name, None, origin=str(place / "__init__.py"))
        for module in MODULES[name]:
            self._monkeypatch.setattr(module, "find_spec", lambda _: spec)
        return place

    def torch(self, cuda: str | None, version: str = "2.13.0", archs: str = "", table: str = "") -> None:
        """A PyTorch for this CUDA. Its library has these architectures, and torch/cuda this table."""
        self._versions["torch"] = version
        place = self._package("torch")
        (place / "version.py").write_text(TORCH_VERSION.format(version, cuda))
        for folder in ("cuda", "lib"):
            (place / folder).mkdir(exist_ok=True)
        (place / "cuda/__init__.py").write_text(table)
        # As in 2.9.1: a string without an end stands before it.
        content = b"\x7fELF\0sm_90 is no flag\0sm_90\0std::string ipc_h" + archs.encode() + b"\0get_arch_list\0"
        (place / "lib/libtorch_python.so").write_bytes(content)

    def tensorflow(self, text: str, name: str = "tensorflow") -> None:
        """A TensorFlow with this build_info.py."""
        self._versions[name] = "2.21.0"
        place = self._package("tensorflow") / "python/platform"
        place.mkdir(parents=True, exist_ok=True)
        (place / "build_info.py").write_text(text)

    def mxnet(self, name: str) -> None:
        """A distribution of MXNet."""
        self._package("mxnet")
        place = self.folder / f"{name.replace('-', '_')}-1.9.1.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.9.1\n")

    def horovod(self, framework: str, *, nccl: bool) -> None:
        """A Horovod with one binding."""
        place = self._package("horovod") / framework
        place.mkdir(exist_ok=True)
        symbols = b"\x00ncclAllReduce\x00" if nccl else b"\x00MPI_Allreduce\x00"
        (place / "mpi_lib.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF" + symbols + hvd.OBEYS)


Install = Callable[[], Builds]
