"""Agent-side strategies of MXNet: the plain loop, and the libraries of CUDA."""

from __future__ import annotations

import ctypes
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scaling import frameworks
from scaling.frameworks.base import PASSES
from scaling.frameworks.mx import importing, plain
from scaling.frameworks.mx.plain import STRATEGY
from scaling.records.point import Kind
from tests.support.paper_tasks import one_task

# What all MXNet strategies share before the worker: environment, what is missing, what is refused.

NAMES = [name for name in frameworks.NAMES if name.startswith("mxnet:")] + ["mxnet:plain"]
every_name = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("kind", ["solo", "together"])
def test_the_plain_loop_has_no_variables_of_servers(kind: Kind) -> None:
    """But that it is a worker: a shell's DMLC_ROLE=server would make of its import a server."""
    assert STRATEGY.environ(one_task("mxnet:plain", kind), {}) == {
        "DMLC_ROLE": "worker",
        "MXNET_CPU_WORKER_NTHREADS": "1",
        "MXNET_KVSTORE_REDUCTION_NTHREADS": "1",
    }


def test_cuda_computes_fp32_in_fp32() -> None:
    task = one_task("mxnet:plain", device="cuda")
    assert STRATEGY.environ(task, {})["NVIDIA_TF32_OVERRIDE"] == "0"


def test_traits_devices_and_options() -> None:
    assert STRATEGY.traits("mxnet:plain") == PASSES
    assert STRATEGY.devices("mxnet:plain") == ("cpu", "cuda", "emulated")
    assert STRATEGY.helpers(one_task("mxnet:plain")) == []
    assert [*STRATEGY.options] == ["accumulate"]


@pytest.mark.parametrize("spec", [None, ModuleSpec("a-folder", None)])
@every_name
def test_mxnet_is_missing(name: str, spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "find_spec", lambda _: spec)
    assert frameworks.load(name).missing(name) == "mxnet is not installed: ./launch/install mxnet"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"precision": "bf16"}, "--precision bf16: mxnet computes in fp32 (fp16 with CUDA)"),
    ({"precision": "fp16"}, "--precision fp16: mxnet computes in fp32 (fp16 with CUDA)"),
    ({"precision": "tf32", "device": "cuda"}, "--precision tf32: mxnet computes in fp32 (fp16 with CUDA)"),
    ({"memory_format": "channels_last"},
     "--memory-format channels_last: mxnet's models are contiguous (NCHW); leave it out"),
    ({"compile": True}, "--compile: mxnet always runs hybridized graphs; leave it out"),
    ({"options": {"accumulate": "3"}}, "--option accumulate=3: does not divide the batch of 4 per device"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
@every_name
def test_refuses(name: str, fields: dict[str, Any], reason: str) -> None:
    assert frameworks.load(name).refuse(one_task(name, **fields).point) == reason


@every_name
def test_refuses_nothing_of_what_it_can_do(name: str) -> None:
    asked: list[dict[str, Any]] = [
        {}, {"precision": "fp16", "device": "cuda"}, {"options": {"accumulate": "2"}}
    ]  # fmt: skip
    for fields in asked:
        assert frameworks.load(name).refuse(one_task(name, **fields).point) is None


# Which libraries MXNet finds in the process before it looks for them itself.

INSTALLED = (
    "cudnn/lib/libcudnn.so.8",
    "cudnn/lib/libcudnn_ops_infer.so.8",
    "cublas/lib/libcublas.so.11",
    "cublas/lib/libcublasLt.so.11",
    "cuda_nvrtc/lib/libnvrtc-builtins.so.11.8",
    "cuda_runtime/lib/libcudart.so.11.0",
    "nccl/lib/libnccl.so.2",
    "cublas/lib/libcublas.so.12",
)
# Before those that are linked to them.
LOADED = [
    "libcudart.so.11.0", "libnvrtc-builtins.so.11.8", "libcublasLt.so.11", "libcublas.so.11", "libcudnn.so.8",
    "libnccl.so.2",
]  # fmt: skip


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is loaded, and how, in an environment with the wheels of CUDA 11 and one of CUDA 12."""
    for name in INSTALLED:
        path = tmp_path / "nvidia" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found: list[tuple[str, int]] = []
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(importing, "find_spec", lambda _: spec)
    monkeypatch.setattr(ctypes, "CDLL", lambda path, mode: found.append((Path(path).name, mode)))
    return found


def test_mxnet_with_cuda_finds_them_all_and_their_names(
    loaded: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "cuda_build", lambda: "mxnet-cu112")
    importing.preload()
    assert loaded == [(name, ctypes.RTLD_GLOBAL) for name in LOADED]


def test_mxnet_without_cuda_loads_none(loaded: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be another framework's."""
    monkeypatch.setattr(importing, "cuda_build", lambda: None)
    importing.preload()
    assert loaded == []


def test_libraries_of_the_system_may_serve_where_there_are_no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "cuda_build", lambda: "mxnet-cu112")
    monkeypatch.setattr(importing, "find_spec", lambda _: None)
    importing.preload()
