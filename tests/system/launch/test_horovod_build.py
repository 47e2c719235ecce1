"""How Horovod is built: the settings, the key of the wheel, what a failed build's output says. Builds nothing."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import _horovod, _install
from launch._horovod import Build, Framework

TORCH, TENSORFLOW, MXNET = (Framework(name=name, version="1") for name in _horovod.FRAMEWORKS)
TORCH_CUDA = Framework(name="torch", version="1", cuda=True)
MXNET_CUDA = Framework(name="mxnet", version="1", cuda=True)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PATH is an empty folder, and no variable speaks of Horovod, CUDA or a compiler."""
    for name in list(os.environ):
        if _horovod.BUILD_VARIABLES.match(name) or name.startswith(("HOROVOD", "CUDA")):
            monkeypatch.delenv(name)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(_horovod, "releases", lambda name: [f"{name} 1"])


def tool(folder: Path, name: str, says: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / name).chmod(0o755)


def settings(*frameworks: Framework, driver: bool = False) -> dict[str, str]:
    return _horovod.plan(frameworks, driver=driver)[0].settings


# ---------------------------------------------------------------- what is built in


def test_without_a_gpu_and_an_mpi_it_is_gloo_alone() -> None:
    assert settings(TORCH, MXNET) == {
        "HOROVOD_WITH_GLOO": "1", "HOROVOD_WITHOUT_MPI": "1", "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1", "HOROVOD_WITH_MXNET": "1",
    }  # fmt: skip


def test_mpi_is_that_of_the_machine_and_never_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setenv("PATH", f"{tmp_path}/env/bin:{tmp_path}/bin")
    tool(tmp_path / "env/bin", "mpicxx")
    assert "HOROVOD_WITHOUT_MPI" in settings(TORCH)
    tool(tmp_path / "bin", "mpicxx")
    assert "HOROVOD_WITH_MPI" in settings(TORCH)


def test_what_a_person_sets_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "mpicxx")
    monkeypatch.setenv("HOROVOD_WITHOUT_MPI", "1")
    found = settings(TORCH)
    assert "HOROVOD_WITH_MPI" not in found
    assert found["HOROVOD_WITHOUT_MPI"] == "1"


def cuda_toolkit(tmp_path: Path) -> Path:
    tool(tmp_path / "cuda/bin", "nvcc", "release 13.0")
    (tmp_path / "cuda/include").mkdir()
    (tmp_path / "cuda/include/nccl.h").touch()
    return tmp_path / "cuda"


def test_nccl_where_there_is_a_driver_and_all_to_build_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = cuda_toolkit(tmp_path)
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setattr(_horovod, "pypi_nccl", lambda: tmp_path / "no NCCL of PyPI")
    build, left_out = _horovod.plan((TORCH_CUDA, TENSORFLOW), driver=True)
    assert build.settings["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert build.settings["HOROVOD_CUDA_HOME"] == build.settings["HOROVOD_NCCL_HOME"] == str(home)
    assert build.environ(tmp_path)["CUDA_HOME"] == str(home)  # torch's own question whether it can build for CUDA
    assert build.settings["HOROVOD_NCCL_LINK"] == "SHARED"
    assert build.frameworks == (TORCH_CUDA,)
    assert list(left_out) == ["tensorflow"]
    assert "without CUDA" in left_out["tensorflow"]
    assert "HOROVOD_GPU_OPERATIONS" not in settings(TORCH_CUDA)


def test_nccl_of_pypi_is_linked_by_the_name_that_cmake_looks_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(cuda_toolkit(tmp_path)))
    (tmp_path / "cuda/include/nccl.h").unlink()
    package = tmp_path / "nvidia/nccl"
    (package / "include").mkdir(parents=True)
    (package / "include/nccl.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    build, _ = _horovod.plan((TORCH_CUDA,), driver=True)
    assert _horovod.nccl_by_its_plain_name(build, tmp_path / "bin") == {"HOROVOD_NCCL_LIB": str(tmp_path / "bin")}
    assert (tmp_path / "bin/libnccl.so").readlink() == package / "lib/libnccl.so.2"


def test_nccl_is_that_of_the_framework_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workers report its version."""
    home = cuda_toolkit(tmp_path)
    monkeypatch.setenv("CUDA_HOME", str(home))
    package = tmp_path / "nvidia/nccl"
    (package / "include").mkdir(parents=True)
    (package / "include/nccl.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert settings(TORCH_CUDA, driver=True)["HOROVOD_NCCL_HOME"] == str(package)
    monkeypatch.setenv("HOROVOD_NCCL_HOME", str(home))
    build = _horovod.plan((TORCH_CUDA,), driver=True)[0]
    assert build.settings["HOROVOD_NCCL_HOME"] == str(home)
    assert _horovod.nccl_by_its_plain_name(build, tmp_path / "bin") == {}


def test_gpu_machine_without_nvcc_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    build, left_out = _horovod.plan((TORCH_CUDA, MXNET_CUDA), driver=True)
    assert not build.gpu
    assert build.frameworks == (TORCH_CUDA,)
    assert list(left_out) == ["mxnet", "horovod"]
    assert "https://developer.nvidia.com/cuda-downloads" in left_out["horovod"]


def test_shims_are_for_those_that_need_them() -> None:
    assert _horovod.plan((TORCH, TENSORFLOW), driver=False)[0].shim() == ""
    assert _horovod.plan((MXNET,), driver=False)[0].shim() == _horovod.SHIM_NUMPY
    assert _horovod.plan((TORCH_CUDA,), driver=False)[0].shim() == _horovod.SHIM_TORCH


def test_makeflags_of_a_person_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build, _ = _horovod.plan((TORCH,), driver=False)
    assert build.environ(tmp_path)["MAKEFLAGS"] == f"-k -j{_horovod.jobs()}"
    monkeypatch.setenv("MAKEFLAGS", "-j1")
    assert build.environ(tmp_path)["MAKEFLAGS"] == "-j1"


# ---------------------------------------------------------------- the key


def test_key_is_the_same_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _horovod.plan((TORCH,), driver=False)[0].key()
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    monkeypatch.setattr(sys, "prefix", "/another/environment")
    assert _horovod.plan((TORCH,), driver=False)[0].key() == first


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], None]] = {
    "horovod": lambda patch, _: patch.setattr(_horovod, "VERSION", "0.29"),
    "framework": lambda patch, _: patch.setattr(_horovod, "releases", lambda name: [f"{name} 2"]),
    "python": lambda patch, _: patch.setattr(sys.implementation, "cache_tag", "cpython-399"),
    "platform": lambda patch, _: patch.setattr(sysconfig, "get_platform", lambda: "linux-riscv64"),
    "libc": lambda patch, _: patch.setattr(platform, "libc_ver", lambda: ("glibc", "1")),
    "processor": lambda patch, _: patch.setattr(_horovod, "architecture", lambda: {"avx9"}),
    "setting": lambda patch, _: patch.setenv("HOROVOD_WITHOUT_GLOO", "1"),
    "compiler": lambda patch, _: patch.setenv("CXX", "clang++"),
    "cmake": lambda patch, folder: patch.setattr(_horovod, "CMAKE_FILES", (folder / "other.cmake",)),
    "mpi": lambda patch, folder: tool(folder / "bin", "mpicxx", "-lmpi"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_key_changes_with_all_that_decides_the_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str
) -> None:
    (tmp_path / "other.cmake").write_text("set(A 1)")
    before = _horovod.plan((TORCH,), driver=False)[0].key()
    CHANGES[change](monkeypatch, tmp_path)
    assert _horovod.plan((TORCH,), driver=False)[0].key() != before


def test_key_tells_one_mpi_from_another(tmp_path: Path) -> None:
    keys = set()
    for version in ("-lmpi -L/opt/4", "-lmpi -L/opt/5"):
        tool(tmp_path / "bin", "mpicxx", version)
        keys.add(_horovod.plan((TORCH,), driver=False)[0].key())
    assert len(keys) == 2


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("output", "reason", "bindings"),
    [
        (
            "x.cc:3:1: warning: odd\nx.cc:4:1: error: no type\nx.cc:9:1: error: other\n"
            "gmake[2]: *** [horovod/torch/CMakeFiles/pytorch.dir/build.make:76: a/x.cc.o] Error 1\n",
            "x.cc:4:1: error: no type",
            {"torch"},
        ),
        (
            "make[1]: *** [CMakeFiles/Makefile2:1: third_party/gloo/gloo/CMakeFiles/gloo.dir/all] Error 2\n"
            "CMake Error at CMakeLists.txt:1 (project):\n",
            "CMake Error at CMakeLists.txt:1 (project):",
            set(),
        ),
        ("ERROR: Could not find a version\n", "ERROR: Could not find a version", set()),
        ("", "pip wheel exited with 9", set()),
    ],
)
def test_reason_is_the_first_error(tmp_path: Path, output: str, reason: str, bindings: set[str]) -> None:
    log = tmp_path / "build.log"
    log.write_text(output)
    error = _horovod.failure(log, 9)
    assert str(error) == f"does not build: {reason}; mend that ({log}), then ./launch/install horovod"
    assert error.bindings == bindings


def test_progress_is_a_line_for_each_tenth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "\\n".join(f"[ {percent}%] Building" for percent in (1, 9, 10, 11, 19, 35, 39, 100))
    code = _horovod.follow([sys.executable, "-c", f"print('{lines}'); exit(3)"], {}, tmp_path / "log")
    shown = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert (code, shown) == (3, [f"launch: Horovod {percent} %" for percent in (10, 35, 100)])
    assert len((tmp_path / "log").read_text().splitlines()) == 8


def test_no_python_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("c++", "make"):
        tool(tmp_path / "bin", name)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert (_horovod.lacks() or "").startswith("no Python.h: apt-get install python3.")
    (tmp_path / "Python.h").touch()
    assert _horovod.lacks() is None


def test_pins_of_horovods_bindings_are_the_extras() -> None:
    """A package that an extra installs and Horovod does not know would get no binding."""
    config = (_install.ROOT / "setup.cfg").read_text()
    for name, (_, _, distributions) in _horovod.FRAMEWORKS.items():
        for distribution in distributions:
            assert f"\n    {distribution}==" in config or f"\n    {distribution}[and-cuda]==" in config, name


def test_build_is_what_it_says(tmp_path: Path) -> None:
    build = Build(frameworks=(MXNET,), settings={"HOROVOD_WITH_MXNET": "1"})
    assert build.environ(tmp_path)["HOROVOD_WITH_MXNET"] == "1"
    assert build.environ(tmp_path)["CMAKE_TOOLCHAIN_FILE"].endswith("launch/horovod.cmake")
