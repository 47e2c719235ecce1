"""The lint of wheels with CUDA (`python -m tests.bench.wheels`), on made-up ones, and of this environment."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from launch import _environments
from tests.bench import wheels

needs_tools = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("readelf")), reason="no gcc or no readelf: apt-get install gcc"
)
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin") or ""
CODE, PTX = wheels.CODE, wheels.PTX


def fatbin(*entries: tuple[int, int]) -> bytes:
    """A fat binary of these (kind, compute capability), each with a payload, aligned as nvcc does."""
    heads = (wheels.ENTRY.pack(kind, 0x101, 64, 40, capability) for kind, capability in entries)
    packed = b"".join(head.ljust(64, b"\0") + b"x" * 40 for head in heads)
    whole = wheels.HEADER.pack(wheels.FATBIN, 1, 16, len(packed)) + packed
    return whole.ljust(-(-len(whole) // 8) * 8, b"\0")


def shared(folder: Path, name: str, *needed: Path, section: bytes = b"") -> Path:
    source = folder / "source.c"
    kept = '__attribute__((section(".nv_fatbin"), used, aligned(8))) static const unsigned char'
    array = ",".join(map(str, section))
    source.write_text(f"{kept} fat[] = {{{array}}};\n" if section else "int nothing;\n")
    made = folder / name
    link = ["-Wl,--no-as-needed", *map(str, needed)]
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", made, source, *link], check=True)
    return made


def wheel(folder: Path, name: str, files: Iterable[tuple[str, Path]]) -> Path:
    made = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as packed:
        for place, file in files:
            packed.write(file, place)
    return made


@needs_tools
def test_code_and_ptx_for_which_gpus(tmp_path: Path) -> None:
    """Of several fat binaries one after the other, as of several source files."""
    section = fatbin((CODE, 75), (CODE, 90)) + fatbin((CODE, 75), (CODE, 86), (PTX, 120))
    found = wheels.library(shared(tmp_path, "libk.so", section=section))
    assert found.code == {75, 86, 90} and found.ptx == {120}


@pytest.mark.skipif(not (NVCC and shutil.which("readelf")), reason="no nvcc or no readelf")
def test_fat_binaries_of_a_real_compiler(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(
        "__global__ void k(float* x) { x[0] = 2; }\nvoid f(float* x) { k<<<1, 1>>>(x); }\n"
    )
    targets = ("arch=compute_75,code=sm_75", "arch=compute_90,code=sm_90", "arch=compute_90,code=compute_90")
    command = [NVCC, "-shared", "-Xcompiler", "-fPIC", "-o", "libk.so", "k.cu"]
    command += [word for target in targets for word in ("-gencode", target)]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = wheels.library(tmp_path / "libk.so")
    assert found.code == {75, 90} and found.ptx == {90}


@needs_tools
def test_a_library_that_nobody_brings_is_named(tmp_path: Path) -> None:
    gone, there = shared(tmp_path, "libcudnn.so.8"), shared(tmp_path, "libnccl.so.2")
    driver = shared(tmp_path, "libcuda.so.1")
    binding = shared(tmp_path, "libmxnet.so", gone, there, driver)
    one = wheel(tmp_path, "mxnet_cu112", [("mxnet/libmxnet.so", binding), ("mxnet/README", tmp_path / "source.c")])
    nccl = wheel(tmp_path, "nvidia_nccl_cu11", [("nvidia/nccl/lib/libnccl.so.2", there)])
    found = {**wheels.libraries(one), **wheels.libraries(nccl)}
    assert wheels.lacking(found) == {"mxnet/libmxnet.so": ("libcudnn.so.8",)}


@needs_tools
def test_what_it_prints_and_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nccl = shared(tmp_path, "libnccl.so.2", section=fatbin((CODE, 90)))
    paths = [
        str(wheel(tmp_path, f"nvidia_nccl_cu{n}", [("nvidia/nccl/lib/libnccl.so.2", nccl)])) for n in (12, 13)
    ]
    assert (wheels.main(paths[:1]), wheels.main(paths)) == (0, 1)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "nvidia/nccl/lib/libnccl.so.2: code [90], PTX []",
        "nvidia_nccl_cu12, nvidia_nccl_cu13: nvidia/nccl/lib/libnccl.so.2",
    ]


def test_no_library_here_has_two_owners() -> None:
    """Of the environment that the tests run in, whatever is installed."""
    assert _environments.shared_files() == {}
