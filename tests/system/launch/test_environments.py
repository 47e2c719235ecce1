"""The environments that frameworks with CUDA have by themselves, on a machine of stubs (fresh_machine.py)."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from launch import _environments
from scaling.agent import environment
from tests.support.fresh_machine import Machine

A100, H100 = "8.0", "9.0"


@pytest.fixture
def machine(machine: Machine) -> Machine:
    return machine.for_horovod()


def test_frameworks_with_cuda_have_an_environment_each(machine: Machine) -> None:
    machine.gpus(A100)
    done = machine.run("launch/install")
    assert machine.indexes() == set()
    assert machine.installs() == [
        (".venv", "torch,horovod"),
        (".venv-tensorflow", "tensorflow-cuda,horovod"),
        (".venv-mxnet", "mxnet-cuda,horovod"),
        (".venv-jax", "jax-cuda"),
    ]
    told = "launch: wheels for CUDA 13: driver 580.65.06; --cuda 12, 13 or none says otherwise"
    assert done.stderr.splitlines().count(told) == 1
    head, torch, tensorflow, mxnet, jax = done.stdout.splitlines()
    assert head.split()[-1] == "environment"
    assert torch.split()[:2] == ["torch", "2.13.0"]
    assert tensorflow.split()[-1] == f"{machine.root}/.venv-tensorflow"
    assert mxnet.split()[-1] == f"{machine.root}/.venv-mxnet"
    assert jax.split() == ["jax", "0.6.2", "no", "-", f"{machine.root}/.venv-jax"]


def test_agents_find_what_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    python = _environments.path("tensorflow") / "bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert environment.python_of("tensorflow", {}) == str(python)


def test_second_run_asks_pip_for_nothing(machine: Machine) -> None:
    machine.gpus(A100)
    first = machine.run("launch/install")
    assert first.returncode == 0, first.stderr
    machine.calls.unlink()
    second = machine.run("launch/install")
    assert (second.returncode, second.stdout, second.stderr) == (0, first.stdout, "")
    assert machine.pip_calls == []


@pytest.mark.parametrize(
    ("words", "installs"),
    [
        # Tests import them all in one environment: with CUDA they would collide.
        ("all test", {".venv": "torch,tensorflow,mxnet,jax,horovod,test"}),
        ("--here", {".venv": "torch,tensorflow,mxnet,jax,horovod"}),
        # As for an image, which has a single one.
        ("--here tensorflow-cuda mpi", {".venv": "tensorflow-cuda,mpi"}),
        ("tensorflow-cuda", {".venv-tensorflow": "tensorflow-cuda"}),
    ],
)
def test_environments_are_those_that_are_asked_for(machine: Machine, words: str, installs: dict[str, str]) -> None:
    machine.gpus(A100)
    done = machine.run("launch/install", *words.split())
    assert done.returncode == 0, done.stderr
    assert dict(machine.installs()) == installs
    made = {path.name for path in machine.root.glob(".venv*")}
    assert made == {".venv", *installs}


def test_an_environment_that_fails_costs_itself_alone(machine: Machine) -> None:
    machine.gpus(A100)
    machine.script("bin", "", at=machine.root / ".venv-tensorflow")
    done = machine.run("launch/install")
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert re.fullmatch(r"launch: tensorflow-cuda: \S+ -m venv \S+/\.venv-tensorflow failed \(above\)", line)
    assert [name for name, _ in machine.installs()] == [".venv", ".venv-mxnet", ".venv-jax"]


# ---------------------------------------------------------------- MXNet


def test_gpus_that_mxnet_has_no_code_for_get_the_one_for_cpus(machine: Machine) -> None:
    machine.gpus(H100)
    done = machine.run("launch/install")
    assert done.returncode == 0, done.stderr
    assert machine.installs() == [
        (".venv", "torch,mxnet,horovod"),
        (".venv-tensorflow", "tensorflow-cuda,horovod"),
        (".venv-jax", "jax-cuda"),
    ]
    why = "MXNet 1.9.1 has no code for compute capability 9.0 (5.0 to 8.9)"
    assert f"launch: mxnet for CPUs: {why}\n" in done.stderr


def test_mxnet_for_such_gpus_is_refused_and_the_one_for_cpus_there(machine: Machine) -> None:
    machine.gpus(H100)
    done = machine.run("launch/install", "mxnet-cuda")
    assert done.returncode == 1
    assert machine.installs() == [(".venv", "mxnet")]
    why = "MXNet 1.9.1 has no code for compute capability 9.0 (5.0 to 8.9)"
    assert done.stderr.splitlines()[-1] == f"launch: mxnet-cuda: {why}; the one for CPUs is installed instead"


# Imports unless the last that pip installed is the one with CUDA.
PARTICULAR = """
import os, pathlib
if "[mxnet-cuda" in pathlib.Path(os.environ["PIP_CALLS"]).read_text().splitlines()[-1]:
    raise ImportError("libcudart.so.11.0: cannot open shared object file")
"""


def test_mxnet_with_cuda_that_does_not_import_costs_not_the_one_for_cpus(machine: Machine) -> None:
    machine.gpus(A100)
    module = machine.packages / "mxnet.py"
    module.write_text(PARTICULAR + module.read_text())
    done = machine.run("launch/install", "mxnet-cuda")
    assert done.returncode == 1
    assert machine.installs()[-2:] == [(".venv-mxnet", "mxnet-cuda"), (".venv-mxnet", "mxnet")]
    assert re.search(r"^mxnet +1.9.1 +no +\S+/.venv-mxnet$", done.stdout, re.MULTILINE)
    line = done.stderr.splitlines()[-1]
    assert line.startswith("launch: mxnet-cuda: does not import: ImportError: libcudart.so.11.0: cannot open")


def test_mxnet_with_cuda_can_be_installed_without_a_driver(machine: Machine) -> None:
    """It cannot be imported there: an image's build is no reason to take it away again."""
    (machine.packages / "mxnet.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')\n")
    done = machine.run("launch/install", "--cuda", "12", "mxnet-cuda")
    assert done.returncode == 0, done.stderr
    assert machine.installs() == [(".venv-mxnet", "mxnet-cuda")]
    assert re.search(r"^mxnet +1.9.1 +yes +\S+/.venv-mxnet$", done.stdout, re.MULTILINE)
    done = machine.run("launch/install", "--cuda", "12", "mxnet-cuda", "horovod")
    assert done.returncode == 1
    assert "launch: mxnet:horovod: cannot be built without a driver; on a machine with one: " in done.stderr


def test_an_environment_that_hides_the_one_just_installed_is_named(machine: Machine) -> None:
    machine.gpus(A100)
    machine.run("launch/install")
    folder = machine.root / ".venv-tensorflow"
    done = machine.run("launch/install", "--cuda", "none")
    assert (
        f"launch: tensorflow's workers run in {folder} while it exists; to remove it: rm -r {folder}\n"
        in done.stderr
    )
    shutil.rmtree(folder)
    assert "tensorflow's workers" not in machine.run("launch/install", "--cuda", "none").stderr


# ---------------------------------------------------------------- files of two owners

NCCL = ["nvidia/nccl/lib/libnccl.so.2", "nvidia/nccl/include/nccl.h", "nvidia/nccl/lib/__init__.py"]
CUDNN = [f"nvidia/cudnn/lib/libcudnn{part}.so.9" for part in ("", "_ops", "_cnn")]


def test_libraries_of_two_wheels_are_found() -> None:
    owned = {
        "nvidia-nccl-cu12": NCCL,
        "nvidia-nccl-cu13": NCCL,
        "nvidia-cudnn-cu12": [*CUDNN, "nvidia/__init__.py"],
        "nvidia-cudnn-cu13": [*CUDNN[:2], "nvidia/__init__.py"],
        "nvidia-cublas": ["nvidia/cu13/lib/libcublas.so.13", "../../../bin/nvcc"],
        "nvidia-cublas-cu12": ["nvidia/cublas/lib/libcublas.so.12"],
    }
    found = _environments.overlaps(owned)
    assert found == {
        ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"): CUDNN[:2],
        ("nvidia-nccl-cu12", "nvidia-nccl-cu13"): NCCL[:1],
    }
    told = _environments.told(found) or ""
    assert "nvidia/cudnn/lib/libcudnn.so.9 and 1 more of nvidia-cudnn-cu12 and nvidia-cudnn-cu13; " in told


def test_libraries_of_one_wheel_each_are_fine() -> None:
    found = _environments.overlaps({"nvidia-nccl-cu13": NCCL, "nvidia-cudnn-cu13": CUDNN})
    assert (found, _environments.told(found)) == ({}, None)


def test_what_is_overwritten_is_told_after_installing(machine: Machine) -> None:
    for name in ("nvidia_nccl_cu12", "nvidia_nccl_cu13"):
        machine.distribution(name, "2.29.7")
        machine.owns(name, NCCL)
    done = machine.run("launch/install", "torch")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "launch: CUDA's libraries: overwritten by each other: nvidia/nccl/lib/libnccl.so.2 of nvidia_nccl_cu12 "
        f"and nvidia_nccl_cu13; make the environment anew (rm -r {machine.root}/.venv)"
    )


def test_another_project_of_this_name_is_told_after_installing(machine: Machine) -> None:
    machine.distribution("scaling", "0.4")
    done = machine.run("launch/install", "torch")
    assert done.returncode == 0  # an editable install owns no file of the module
    machine.owns("scaling", ["scaling/__init__.py"])
    done = machine.run("launch/install", "torch")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("launch: scaling: ")]
    assert line.startswith("launch: scaling: PyPI's scaling 0.4 is another project with a module of this name: ")
    assert line.endswith("/.venv/bin/python -m pip uninstall scaling")
