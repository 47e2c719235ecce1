"""Which builds of the frameworks run on which GPUs under which driver, by their files and NVML alone."""

from __future__ import annotations

import re
import sys
import sysconfig
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from scaling import frameworks
from scaling.frameworks.horovod import strategy as hvd
from scaling.frameworks.jax import strategies as jax_strategies
from scaling.frameworks.mx import strategies as mx_strategies
from scaling.frameworks.pytorch import installed as torch_build
from scaling.frameworks.tf import strategies as tf_build
from scaling.hosts import gpus
from scaling.hosts.gpus import Found
from scaling.records.host import Gpu
from scaling.records.point import Device

MODULES = {
    "torch": torch_build,
    "tensorflow": tf_build,
    "mxnet": mx_strategies,
    "horovod": hvd,
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


def missing(name: str, device: Device) -> str | None:
    return frameworks.load(name).missing(name, device)


def found(*models: Model, cuda: tuple[int, int] | None = (13, 0), driver: str = "580.95.05") -> Found:
    listed = (
        Gpu(index=index, name=name, uuid=f"GPU-{index}", memory_bytes=1, compute_capability=capability)
        for index, (name, capability) in enumerate(models)
    )
    return Found(gpus=tuple(listed), driver=driver, cuda=cuda, reachable=len(models))


class Builds:
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
        self._monkeypatch.setattr(gpus, "gather_gpus", lambda: told)

    def _package(self, name: str) -> Path:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        spec = ModuleSpec(name, None, origin=str(place / "__init__.py"))
        self._monkeypatch.setattr(MODULES[name], "find_spec", lambda _: spec)
        return place

    def torch(self, cuda: str | None, version: str = "2.13.0", archs: str = "") -> None:
        """A PyTorch for this CUDA. Its library has these architectures."""
        self._versions["torch"] = version
        place = self._package("torch")
        (place / "version.py").write_text(TORCH_VERSION.format(version, cuda))
        (place / "lib").mkdir(exist_ok=True)
        # As in 2.9.1: a string without an end stands before it.
        content = b"\x7fELF\0sm_90 is no flag\0sm_90\0std::string ipc_h" + archs.encode() + b"\0get_arch_list\0"
        (place / "lib/libtorch_python.so").write_bytes(content)

    def tensorflow(self, text: str, name: str = "tensorflow") -> None:
        self._versions[name] = "2.21.0"
        place = self._package("tensorflow") / "python/platform"
        place.mkdir(parents=True, exist_ok=True)
        (place / "build_info.py").write_text(text)

    def mxnet(self, name: str) -> None:
        self._package("mxnet")
        place = self.folder / f"{name.replace('-', '_')}-1.9.1.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.9.1\n")

    def horovod(self, framework: str, *, nccl: bool) -> None:
        place = self._package("horovod") / framework
        place.mkdir(exist_ok=True)
        symbols = b"\x00ncclAllReduce\x00" if nccl else b"\x00MPI_Allreduce\x00"
        (place / "mpi_lib.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF" + symbols + hvd.OBEYS)


TORCH = tuple(f"torch:{mode}" for mode in ("plain", "nccl", "gloo", "ps-sync", "ps-async"))
TENSORFLOW = tuple(f"tensorflow:{mode}" for mode in ("plain", "ring", "nccl", "ps"))
MXNET = tuple(f"mxnet:{mode}" for mode in ("plain", "local", "device", "nccl", "dist_sync"))


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(tmp_path, monkeypatch)


# ---------------------------------------------------------------- PyTorch


@pytest.mark.parametrize(
    ("release", "model", "driver", "said"),
    [
        ("2.13.0+cu130", H100, (13, 0), None),
        ("2.13.0+cu130", GB10, (13, 0), None),
        ("2.13.0+cu130", T4, (13, 1), None),
        ("2.13.0+cu130", H100, (12, 4), "for CUDA 13.0, and driver 550.54 has CUDA up to 12.4: {12}"),
        ("2.13.0+cu130", V100, (13, 0), "none for Tesla V100-PCIE-32GB (7.0): {12}"),
        ("2.14.1+cu130", P100, (13, 0), "none for Tesla P100-PCIE-16GB (6.0): {12}"),
        ("2.14.1+cu130", NEXT, (13, 0), "none for NVIDIA Next (14.0): {13}"),
        ("2.13.0+cu132", NEXT, (13, 2), None),  # compiles PTX anew
        ("2.13.0+cu126", P100, (12, 4), None),
        ("2.4.1+cu121", V100, (13, 0), None),
        ("2.5.1+cu121", L40S, (12, 1), None),
        ("2.8.0+cu126", B200, (13, 0), "none for NVIDIA B200 (10.0): {13}"),
        ("2.7.1+cu128", B200, (12, 8), None),
        ("2.9.1+cu128", V100, (12, 8), None),
        ("2.9.1+cu128", P100, (12, 8), "none for Tesla P100-PCIE-16GB (6.0): {12}"),
        ("2.12.0+cu128", V100, (12, 8), "none for Tesla V100-PCIE-32GB (7.0): {12}"),
        ("2.13.0+cu126", A100, (11, 8), "has CUDA up to 11.8: {12}, or a driver of 525 or newer"),
        ("2.3.1+cu118", V100, (11, 4), None),
        ("2.3.1+cu118", B200, (12, 8), None),  # compiles PTX anew
        ("2.13.0+cpu", H100, (13, 0), "torch 2.13.0+cpu is built without CUDA: {13}"),
        ("2.13.0+cpu", H100, (12, 8), "torch 2.13.0+cpu is built without CUDA: {12}"),
        ("2.13.0+cpu", V100, (13, 0), "torch 2.13.0+cpu is built without CUDA: {12}"),
    ],
)
def test_torch(builds: Builds, release: str, model: Model, driver: tuple[int, int], said: str | None) -> None:
    digits = release.partition("+cu")[2]
    builds.torch(f"{digits[:2]}.{digits[2:]}" if digits else None, release, TORCH_ARCHS.get(release, ""))
    builds.hold(found(model, cuda=driver, driver="550.54"))
    (reason,) = {missing(name, "cuda") for name in TORCH}
    told = re.sub(r"\{(1[23])\}", r"./launch/install --cuda \1 torch", said or "")
    assert (reason is None) if said is None else told in (reason or "")
    assert missing("torch:gloo", "cpu") is None, "on CPUs any build will do"


def test_a_torch_that_names_no_architecture_is_taken(builds: Builds) -> None:
    builds.torch("13.0")
    builds.hold(found(H100))
    assert missing("torch:nccl", "cuda") is None
    (builds.folder / "torch/lib/libtorch_python.so").unlink()
    assert missing("torch:nccl", "cuda") is None


@pytest.mark.parametrize(
    ("device", "release", "needs"),
    [
        ("cpu", "2.5.1+cu124", "CPUs needs torch 2.9"),
        ("cpu", "2.8.0", "CPUs needs torch 2.9"),  # sums the gradients
        ("cpu", "2.9.1", None),
        ("cpu", "2.11.0a0+nv26.2", None),
        ("cuda", "2.6.0", None),
        ("cuda", "2.5.1+cu124", "GPUs needs torch 2.6"),
    ],
)
def test_fully_shard_needs_a_newer_torch(builds: Builds, device: Device, release: str, needs: str | None) -> None:
    builds.torch("12.6", release)
    builds.hold(found(V100))
    reason = missing("torch:fsdp2", device)
    assert (reason or "").startswith(f"fully_shard on {needs}, not {release}: ") if needs else reason is None


@pytest.mark.parametrize(
    ("model", "driver", "mend"),
    [
        (V100, (12, 9), "./launch/install --cuda 12 torch"),
        (B200, (12, 4), "wheels for CUDA 12.6 have none for NVIDIA B200 either, or a driver of 580"),
    ],
)
def test_a_mend_that_would_not_help_is_not_named(
    builds: Builds, model: Model, driver: tuple[int, int], mend: str
) -> None:
    """A driver too old for CUDA 13 beside a GPU too new for the wheels for CUDA 12."""
    builds.torch("13.0")
    builds.hold(found(model, cuda=driver))
    assert mend in (missing("torch:nccl", "cuda") or "")


def test_no_mend_is_worked_out_where_nothing_is_broken(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "_mend", lambda: pytest.fail("worked out"))
    builds.torch("13.0", archs=TORCH_ARCHS["2.13.0+cu130"])
    builds.hold(found(H100))
    assert torch_build.unfit() is None


def test_a_driver_that_says_nothing_is_believed_and_one_gpu_of_several_is_found(builds: Builds) -> None:
    builds.torch("13.0", archs=TORCH_ARCHS["2.13.0+cu130"])
    builds.hold(found(H100, cuda=None))
    assert missing("torch:nccl", "cuda") is None
    builds.hold(found(A100, V100))
    assert "none for Tesla V100" in (missing("torch:gloo", "cuda") or "")


# ---------------------------------------------------------------- TensorFlow, MXNet


@pytest.mark.parametrize(
    ("text", "model", "driver", "said"),
    [
        (TF_CUDA, H100, (12, 4), None),
        (TF_CUDA, B200, (12, 8), None),  # compiles PTX anew, for minutes
        (TF_CUDA, ("Tesla M40", (5, 2)), (12, 4), "none for Tesla M40 (5.2): use another framework"),
        (TF_CUDA, V100, (11, 4), "is built for CUDA 12.5, and driver 470.1 has CUDA up to 11.4"),
        (TF_CPU, H100, (13, 0), "is built without CUDA: ./launch/install tensorflow-cuda"),
    ],
)
def test_tensorflow(builds: Builds, text: str, model: Model, driver: tuple[int, int], said: str | None) -> None:
    builds.tensorflow(text)
    builds.hold(found(model, cuda=driver, driver="470.1"))
    (reason,) = {missing(name, "cuda") for name in TENSORFLOW}
    assert (reason is None) if said is None else said in (reason or "")
    assert missing("tensorflow:ring", "cpu") is None


@pytest.mark.parametrize(
    ("name", "model", "said"),
    [
        ("mxnet-cu112", V100, None),
        ("mxnet-cu117", T4, None),
        ("mxnet-cu112", L40S, None),
        ("mxnet-cu112", H100, "8.0, 8.6, none for NVIDIA H100 80GB HBM3 (9.0): use another framework"),
        ("mxnet", V100, "mxnet is built without CUDA: ./launch/install mxnet-cuda"),
    ],
)
def test_mxnet(builds: Builds, name: str, model: Model, said: str | None) -> None:
    builds.mxnet(name)
    builds.hold(found(model))
    (reason,) = {missing(each, "cuda") for each in MXNET}
    assert (reason is None) if said is None else said in (reason or "")
    assert missing("mxnet:local", "cpu") is None


# ---------------------------------------------------------------- Horovod, no GPU


@pytest.mark.parametrize("nccl", [True, False])
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "mxnet"])
def test_horovod_takes_gradients_on_gpus_over_nccl_alone(builds: Builds, framework: str, *, nccl: bool) -> None:
    builds.torch("13.0")
    builds.tensorflow(TF_CUDA)
    builds.mxnet("mxnet-cu112")
    builds.horovod(framework, nccl=nccl)
    builds.hold(found(A100))
    reason = missing(f"{framework}:horovod", "cuda")
    assert (reason is None) is nccl
    assert nccl or (reason or "").startswith("horovod is built without NCCL")
    assert missing(f"{framework}:horovod", "cpu") is None


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (Found(), "no NVIDIA GPU on this host (driver not installed); use {}"),
        (Found(driver="unusable: Z"), "no NVIDIA GPU on this host (driver unusable: Z); use {}"),
    ],
)
@pytest.mark.parametrize(
    ("name", "instead"),
    [("torch:nccl", "torch:gloo"), ("tensorflow:nccl", "tensorflow:ring"), ("mxnet:nccl", "mxnet:device")],
)
def test_what_needs_a_gpu_says_so_first(builds: Builds, told: Found, said: str, name: str, instead: str) -> None:
    """A build without CUDA is no trouble where there is none."""
    builds.torch(None)
    builds.tensorflow(TF_CPU, "tensorflow-cpu")
    builds.mxnet("mxnet")
    builds.hold(told)
    assert missing(name, "cuda") == frameworks.load(name).missing(name) == said.format(instead)


@pytest.mark.parametrize("name", ["tensorflow-cpu", "tensorflow"])
def test_the_distribution_is_named(builds: Builds, name: str) -> None:
    builds.tensorflow(TF_CPU, name)
    builds.hold(found(A100))
    assert (missing("tensorflow:ring", "cuda") or "").startswith(f"{name} 2.21.0 is built without CUDA")


# ---------------------------------------------------------------- JAX


def test_a_jax_without_shard_map_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_strategies, "find_spec", lambda _: ModuleSpec("jax", None, origin="jax/__init__.py"))
    monkeypatch.setattr(jax_strategies, "release", lambda: "0.4.38")
    why = "jax 0.4.38 has no jax.shard_map, which came with 0.6: ./launch/install jax"
    assert missing("jax:psum", "cpu") == why


def test_a_jax_for_cpus_alone_is_told_where_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("jax", None, origin="jax/__init__.py")
    monkeypatch.setattr(jax_strategies, "find_spec", lambda name: spec if name == "jax" else None)
    monkeypatch.setattr(jax_strategies, "release", lambda: "0.12.0")
    monkeypatch.setattr(gpus, "none_here", lambda _: None)
    assert missing("jax:fsdp", "cuda") == "jax 0.12.0 has no plugin for CUDA: ./launch/install jax-cuda"
