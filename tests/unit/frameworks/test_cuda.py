"""Which builds of the frameworks run on which GPUs under which driver, by their files and NVML alone."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from scaling import frameworks
from scaling.frameworks import cuda
from scaling.frameworks.pytorch import installed
from scaling.frameworks.pytorch.build import COMPILED
from scaling.hosts.gpus import Found
from tests.support.gpu_builds import (
    A100,
    B200,
    GB10,
    H100,
    L40S,
    P100,
    T4,
    TF_CPU,
    TF_CUDA,
    TORCH_RELEASES,
    V100,
    Builds,
    Model,
    found,
)

TORCH = tuple(f"torch:{mode}" for mode in ("plain", "nccl", "gloo", "ps-sync", "ps-async"))
TENSORFLOW = tuple(f"tensorflow:{mode}" for mode in ("plain", "ring", "nccl", "ps"))
MXNET = tuple(f"mxnet:{mode}" for mode in ("plain", "local", "device", "nccl", "dist_sync"))


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(tmp_path, monkeypatch)


# ---------------------------------------------------------------- PyTorch


@pytest.mark.parametrize(
    ("built", "model", "driver", "said"),
    [
        ("13.0", H100, (13, 0), None),
        ("13.0", GB10, (13, 0), None),
        ("13.0", T4, (13, 1), None),
        ("13.0", H100, (12, 4), "is built for CUDA 13.0, and driver 550.54 knows CUDA up to 12.4: {12}"),
        ("13.0", V100, (13, 0), "none for Tesla V100-PCIE-32GB (7.0): {12}"),
        ("13.0", P100, (13, 0), "none for Tesla P100-PCIE-16GB (6.0): {12}"),
        ("12.6", P100, (12, 4), None),
        ("12.6", V100, (13, 0), None),
        ("12.6", L40S, (12, 0), None),
        ("12.6", B200, (13, 0), "none for NVIDIA B200 (10.0): {13}"),
        ("12.8", B200, (12, 8), None),
        ("12.8", P100, (12, 8), "none for Tesla P100-PCIE-16GB (6.0): {12}"),
        ("12.6", A100, (11, 8), "and driver 550.54 knows CUDA up to 11.8: {12}, or a driver of 525 or newer"),
        ("11.8", V100, (11, 4), None),
        (None, H100, (13, 0), "torch 2.13.0 is built without CUDA: {13}"),
        (None, H100, (12, 8), "torch 2.13.0 is built without CUDA: {12}"),
        (None, V100, (13, 0), "torch 2.13.0 is built without CUDA: {12}"),
    ],
)
def test_torch(builds: Builds, built: str | None, model: Model, driver: tuple[int, int], said: str | None) -> None:
    builds.torch(built)
    builds.hold(found(model, cuda=driver, driver="550.54"))
    reasons = {frameworks.missing(name, "cuda") for name in TORCH}
    (reason,) = reasons
    if said is None:
        assert reason is None
    else:
        mends = {"12": "./launch/install --cuda 12 torch", "13": "./launch/install --cuda 13 torch"}
        assert reason is not None and said.replace("{12}", mends["12"]).replace("{13}", mends["13"]) in reason
    assert frameworks.missing("torch:gloo", "cpu") is None, "on CPUs any build will do"


@pytest.mark.parametrize(
    ("listed", "machine", "model", "runs"),
    [
        (TORCH_RELEASES, "x86_64", V100, False),
        (TORCH_RELEASES, "x86_64", T4, True),
        (TORCH_RELEASES, "aarch64", T4, False),
        (TORCH_RELEASES, "aarch64", GB10, True),
        (TORCH_RELEASES, "riscv64", V100, True),  # not listed, so by the table of older ones
        ("", "x86_64", V100, True),
        ("PYTORCH_RELEASES_CODE_CC = {\n    no\n}\n", "x86_64", V100, True),
    ],
)
def test_what_torch_lists_of_its_wheels_goes_before_what_is_known_of_older_ones(
    builds: Builds, monkeypatch: pytest.MonkeyPatch, listed: str, machine: str, model: Model, *, runs: bool
) -> None:
    """Its builds for CUDA 12.9 have lost the V100, and for ARM they never had a T4."""
    monkeypatch.setattr(installed.capabilities, "__defaults__", (machine,))
    builds.torch("12.9", listed=listed)
    builds.hold(found(model, cuda=(12, 9)))
    reason = frameworks.missing("torch:nccl", "cuda")
    assert (reason is None) is runs
    assert runs or f"none for {model[0]}" in (reason or "")


def test_the_torch_that_is_installed_here_lists_its_wheels() -> None:
    if find_spec("torch") is None:
        pytest.skip("no torch")
    assert installed.capabilities("13.0", "x86_64") == ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
    assert installed.capabilities("12.6", "x86_64")[:3] == ((5, 0), (6, 0), (7, 0))
    assert installed.capabilities("0.1", "x86_64") == ()


def test_a_driver_that_says_nothing_of_cuda_is_believed(builds: Builds) -> None:
    builds.torch("13.0")
    builds.hold(found(H100, cuda=None))
    assert frameworks.missing("torch:nccl", "cuda") is None


def test_one_gpu_of_several_that_it_does_not_run_on(builds: Builds) -> None:
    builds.torch("13.0")
    builds.hold(found(A100, V100))
    assert "none for Tesla V100" in (frameworks.missing("torch:gloo", "cuda") or "")


def test_a_build_with_ptx_runs_on_newer_gpus_and_one_without_does_not() -> None:
    assert {built: has_ptx for built, (_, has_ptx) in COMPILED.items()}[12, 6] is False
    compiled = COMPILED[12, 9][0]
    assert max(compiled) == (12, 0) < (13, 0)


@pytest.mark.parametrize(("has_ptx", "runs"), [(True, True), (False, False)])
def test_newer_gpus_than_a_build_knows(builds: Builds, *, has_ptx: bool, runs: bool) -> None:
    builds.hold(found(("NVIDIA Next", (14, 0))))
    reason = cuda.no_kernels("it 1.0", ((8, 0), (9, 0)), "mend it", newer=has_ptx)
    assert (reason is None) is runs


# ---------------------------------------------------------------- TensorFlow, MXNet


@pytest.mark.parametrize(
    ("text", "model", "driver", "said"),
    [
        (TF_CUDA, H100, (12, 4), None),
        (TF_CUDA, B200, (12, 8), None),  # compiles PTX anew, for minutes
        (TF_CUDA, ("Tesla M40", (5, 2)), (12, 4), "none for Tesla M40 (5.2): use another framework"),
        (TF_CUDA, V100, (11, 4), "is built for CUDA 12.5, and driver 470.1 knows CUDA up to 11.4"),
        (TF_CPU, H100, (13, 0), "is built without CUDA: ./launch/install tensorflow-cuda"),
    ],
)
def test_tensorflow(builds: Builds, text: str, model: Model, driver: tuple[int, int], said: str | None) -> None:
    builds.tensorflow(text)
    builds.hold(found(model, cuda=driver, driver="470.1"))
    (reason,) = {frameworks.missing(name, "cuda") for name in TENSORFLOW}
    assert (reason is None) if said is None else said in (reason or "")
    assert frameworks.missing("tensorflow:ring", "cpu") is None


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
    (reason,) = {frameworks.missing(each, "cuda") for each in MXNET}
    assert (reason is None) if said is None else said in (reason or "")
    assert frameworks.missing("mxnet:local", "cpu") is None


# ---------------------------------------------------------------- Horovod, no GPU


@pytest.mark.parametrize("nccl", [True, False])
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "mxnet"])
def test_horovod_takes_gradients_on_gpus_over_nccl_alone(builds: Builds, framework: str, *, nccl: bool) -> None:
    builds.torch("13.0")
    builds.tensorflow(TF_CUDA)
    builds.mxnet("mxnet-cu112")
    builds.horovod(framework, nccl=nccl)
    builds.hold(found(A100))
    reason = frameworks.missing(f"{framework}:horovod", "cuda")
    assert (reason is None) is nccl
    assert nccl or (reason or "").startswith("horovod is built without NCCL")
    assert frameworks.missing(f"{framework}:horovod", "cpu") is None


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
    assert frameworks.missing(name, "cuda") == frameworks.load(name).missing(name) == said.format(instead)


@pytest.mark.parametrize("name", ["tensorflow-cpu", "tensorflow"])
def test_the_distribution_is_named(builds: Builds, name: str) -> None:
    builds.tensorflow(TF_CPU, name)
    builds.hold(found(A100))
    assert (frameworks.missing("tensorflow:ring", "cuda") or "").startswith(f"{name} 2.21.0 is built without CUDA")
