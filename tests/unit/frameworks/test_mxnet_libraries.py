"""The libraries of CUDA that MXNet finds in the process before it looks for them itself."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaling.frameworks.mx import importing

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
