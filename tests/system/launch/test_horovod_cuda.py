"""What is added to Horovod's source, for CUDA and for Gloo, by a real CMake and a real compiler, without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from launch import _horovod

STREAM = _horovod.HERE / "horovod_stream.cc"
PROJECT = """\
cmake_minimum_required(VERSION 3.25)
project(horovod CXX)
if(DEFINED ENV{PLANTED_CUDA})
  set(HAVE_CUDA TRUE)
endif()
add_subdirectory(binding)
"""
# All that the source wants of CUDA's.
CUDA_RUNTIME = "typedef struct CUstream_st* cudaStream_t;\n"
GLOO = "horovod/common/gloo/gloo_context.cc"
SYMBOL = "_ZN15stream_executor3gpu16AsGpuStreamValueEPNS_6StreamE"  # as Horovod's mpi_ops.cc calls it


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "binding").mkdir()
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    (tmp_path / "binding/CMakeLists.txt").write_text("add_library(tensorflow SHARED mpi_ops.cc)\n")
    (tmp_path / "binding/mpi_ops.cc").touch()
    (tmp_path / GLOO).parent.mkdir(parents=True)
    (tmp_path / GLOO).write_text("assert(global_context.IsEnabled());\n")
    return tmp_path


def compiled(project: Path, **environ: str) -> list[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cmake = shutil.which("cmake", path=path)
    if cmake is None or shutil.which("c++") is None:
        pytest.skip("no CMake, or no C++ compiler")
    toolchain = {"CMAKE_TOOLCHAIN_FILE": str(_horovod.CMAKE_FILES[0])}
    command = [cmake, "-S", str(project), "-B", str(project / "build"), "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    done = subprocess.run(
        command, env={**os.environ, **toolchain, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((project / "build/compile_commands.json").read_text())
    return sorted(Path(one["file"]).name for one in found)


def test_the_binding_for_tensorflow_gets_the_source_with_cuda(project: Path) -> None:
    assert compiled(project, PLANTED_CUDA="1") == ["horovod_stream.cc", "mpi_ops.cc"]


def test_without_cuda_it_stays_as_it_is(project: Path) -> None:
    assert compiled(project) == ["mpi_ops.cc"]


def test_a_copy_whose_process_sets_take_the_interface_is_compiled(project: Path) -> None:
    sources = f"mpi_ops.cc ${{CMAKE_SOURCE_DIR}}/{GLOO}"
    (project / "binding/CMakeLists.txt").write_text(f"add_library(tensorflow SHARED {sources})\n")
    assert compiled(project) == ["gloo_context.cc", "mpi_ops.cc"]
    commands = json.loads((project / "build/compile_commands.json").read_text())
    (copy,) = (Path(one["file"]) for one in commands if one["file"].endswith("gloo_context.cc"))
    assert copy.is_relative_to(project / "build")
    assert "gloo_iface_ = global_context.gloo_iface_;" in copy.read_text()


def test_the_wheel_is_another_where_the_source_is_another() -> None:
    assert STREAM in _horovod.CMAKE_FILES


def test_the_source_defines_what_the_binding_calls(tmp_path: Path) -> None:
    package = find_spec("tensorflow")
    if package is None or package.origin is None or shutil.which("g++") is None:
        pytest.skip("no TensorFlow, or no g++")
    (tmp_path / "cuda_runtime.h").write_text(CUDA_RUNTIME)
    headers = [f"-I{tmp_path}", f"-I{Path(package.origin).parent / 'include'}"]
    made = tmp_path / "stream.o"
    command = ["g++", "-std=c++17", "-fPIC", "-w", "-c", str(STREAM), *headers, "-o", str(made)]
    subprocess.run(command, check=True)
    symbols = subprocess.run(["nm", "--defined-only", made], capture_output=True, text=True, check=True).stdout
    assert f" T {SYMBOL}\n" in symbols
