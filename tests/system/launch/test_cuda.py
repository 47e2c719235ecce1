"""Which CUDA ./launch/install and ./launch/local choose, run for real on a machine of stubs (fresh_machine.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import _cuda
from tests.support.fresh_machine import Machine

INDEX = "https://download.pytorch.org/whl"
V100, A100 = "7.0", "8.0"


@pytest.fixture
def machine(machine: Machine) -> Machine:
    return machine.for_horovod()


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("capabilities", "driver", "wheels", "why"),
    [
        ((), None, "none", "no NVIDIA driver here"),
        ((8.0,), "580.65.06", "13", "driver 580.65.06"),
        ((12.0,), "590.1", "13", "driver 590.1"),
        ((), "", "13", "a driver of no known version"),
        ((8.0,), "550.54.15", "12", "driver 550.54.15; CUDA 13 needs 580"),
        ((), "535.1", "12", "driver 535.1; CUDA 13 needs 580"),
        ((7.0,), "580.65", "12", "a GPU of compute capability 7.0, for which CUDA 13 has nothing"),
        ((7.5,), "580.65", "13", "driver 580.65"),
        ((8.6, 6.1), "580.65", "12", "a GPU of compute capability 6.1, for which CUDA 13 has nothing"),
        (
            (12.0,),
            "570.9",
            "12",
            "driver 570.9; CUDA 13 needs 580; but torch for CUDA 12.6 has nothing for compute capability 12.0",
        ),
        ((7.0,), "470.82", "none", "driver 470.82 is older than 525, which CUDA 12 needs"),
    ],
)
def test_driver_and_gpus_choose(
    capabilities: tuple[float, ...], driver: str | None, wheels: str, why: str
) -> None:
    choice = _cuda.judged(capabilities, driver)
    assert (choice.wheels, choice.why) == (wheels, why)


@pytest.mark.parametrize(
    ("capabilities", "refused"),
    [((), ""), ((5.2, 6.0, 7.5, 8.9), ""), ((9.0,), "9.0"), ((8.0, 10.0, 10.0), "10.0"), ((3.7,), "3.7")],
)
def test_mxnet_has_code_for_some_gpus_alone(capabilities: tuple[float, ...], refused: str) -> None:
    why = _cuda.Choice(wheels="13", why="", capabilities=capabilities).without_mxnet()
    want = f"MXNet 1.9.1 has no code for compute capability {refused} (5.0 to 8.9)" if refused else None
    assert why == want


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that is nvidia-smi, on a machine whose kernel says nothing of a driver."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(_cuda, "PROC", tmp_path / "version")
    script = tmp_path / "nvidia-smi"
    script.touch(mode=0o755)
    return script


OLD = "#!/bin/sh\ncase $1 in *compute_cap*) echo 'Field \"compute_cap\" is not a valid field.'; exit 2;; esac\n"


def test_nvidia_smi_is_asked(smi: Path) -> None:
    smi.write_text("#!/bin/sh\necho '7.0, 550.54.15'\necho '8.0, 550.54.15'\n")
    assert _cuda.machine() == ((7.0, 8.0), "550.54.15")


def test_one_that_knows_no_compute_capability_tells_its_driver(smi: Path) -> None:
    smi.write_text(f"{OLD}echo 470.82.01\n")
    assert _cuda.machine() == ((), "470.82.01")


def test_without_nvidia_smi_the_kernel_tells_the_driver(smi: Path) -> None:
    smi.unlink()
    assert _cuda.machine() == ((), None)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    smi.with_name("version").write_text(line)
    assert _cuda.machine() == ((), "535.104.05")
    open_line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    smi.with_name("version").write_text(open_line)
    assert _cuda.machine() == ((), "580.65.06")


HANGS = "#!/bin/sh\nexec sleep 600\n"


def test_a_wedged_driver_holds_nobody_up(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.write_text(HANGS)
    monkeypatch.setattr(_cuda, "ANSWER_S", 0.1)
    assert _cuda.machine() == ((), "")


def test_local_chooses_too_and_only_once(machine: Machine) -> None:
    machine.gpus(A100, A100, driver="550.1")
    machine.launched()
    assert machine.indexes() == {f"{INDEX}/cu126"}
    machine.calls.unlink()
    machine.launched()
    assert machine.pip_calls == []


@pytest.mark.parametrize("command", ["launch/local", "launch/install"])
def test_what_was_installed_for_want_of_a_driver_is_looked_at_again_where_there_is_one(
    machine: Machine, command: str
) -> None:
    """A login node installs, a node with GPUs runs, on one file system."""
    arguments = ["torch"] if command == "launch/install" else []
    torch_of(machine, "None")
    machine.run(command, *arguments)
    machine.gpus(A100)
    done = machine.run(command, *arguments)
    assert "launch: removing torch, which is built for CPUs\n" in done.stderr
    machine.calls.unlink()
    machine.run(command, *arguments)
    assert machine.pip_calls == []


def test_what_was_asked_for_without_a_driver_stays_where_there_is_one(machine: Machine) -> None:
    machine.run("launch/install", "--cuda", "none", "torch")
    machine.calls.unlink()
    machine.gpus(A100)
    machine.run("launch/install", "torch")
    assert machine.pip_calls == []


# ---------------------------------------------------------------- --cuda


ALL = "torch,tensorflow,mxnet,jax,horovod"
TWO = {".venv": "torch", ".venv-tensorflow": "tensorflow-cuda"}
EACH = {
    ".venv": "torch,horovod", ".venv-tensorflow": "tensorflow-cuda,horovod", ".venv-mxnet": "mxnet-cuda,horovod",
    ".venv-jax": "jax-cuda",
}  # fmt: skip
FOR_VOLTA = (
    "CUDA 12: a GPU of compute capability 7.0, for which CUDA 13 has nothing; --cuda 12, 13 or none says otherwise"
)


@pytest.mark.parametrize(
    ("gpus", "words", "index", "installs", "said"),
    [
        ((V100, V100), "torch", "cu126", {".venv": "torch"}, FOR_VOLTA),
        ((A100,), "--cuda none", "cpu", {".venv": ALL}, "CPUs: --cuda none"),
        ((), "--cuda=12 torch tensorflow-cuda", "cu126", TWO, "CUDA 12: --cuda 12"),
        ((), "--cuda=13 torch tensorflow-cuda", "", TWO, "CUDA 13: --cuda 13"),
        ((), "--cuda 13", "", EACH, "CUDA 13: --cuda 13"),
        ((), "torch", "", {".venv": "torch"}, ""),
    ],
)
def test_what_is_installed_by_driver_and_flag(
    machine: Machine, gpus: tuple[str, ...], words: str, index: str, installs: dict[str, str], said: str
) -> None:
    if gpus:
        machine.gpus(*gpus)
    done = machine.run("launch/install", *words.split())
    assert done.returncode == 0, done.stderr
    assert machine.indexes() == ({f"{INDEX}/{index}"} if index else set())
    assert dict(machine.installs()) == installs
    assert f"launch: wheels for {said}\n" in done.stderr if said else "wheels for" not in done.stderr


def test_local_takes_cuda_for_itself(machine: Machine) -> None:
    assert machine.launched("--cuda", "none", "--ranks", "3")[1:] == ["-m", "scaling.run", "--ranks", "3"]
    assert machine.indexes() == {f"{INDEX}/cpu"}
    machine.calls.unlink()
    machine.launched("--cuda=none")
    assert machine.pip_calls == []
    machine.launched("--cuda=13")
    assert len(machine.pip_calls) == 1


@pytest.mark.parametrize("command", ["launch/install", "launch/local"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--cuda", "11"], "11"), (["--cuda"], "(nothing)"), (["--cuda="], "(nothing)"), (["--cuda", "x"], "x")],
)
def test_cuda_that_there_is_not(machine: Machine, command: str, arguments: list[str], said: str) -> None:
    done = machine.run(command, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == f"launch: --cuda {said}: expected 12, 13 or none"
    assert machine.pip_calls == []


def torch_of(machine: Machine, cuda: str) -> None:
    (machine.packages / "torch.py").unlink()
    folder = machine.packages / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text("from torch import version\n__version__ = '2.13.0'\n")
    (folder / "version.py").write_text(f"from typing import Optional\ncuda: Optional[str] = {cuda}\nhip = None\n")


@pytest.mark.parametrize(
    ("cuda", "asked", "removed"),
    [
        ("'13.0'", "12", "launch: removing torch, which is built for CUDA 13\n"),
        ("None", "12", "launch: removing torch, which is built for CPUs\n"),
        ("'12.6'", "none", "launch: removing torch, which is built for CUDA 12\n"),
        ("'12.6'", "12", ""),
        ("None", "none", ""),
    ],
)
def test_a_torch_of_another_cuda_goes_first(machine: Machine, cuda: str, asked: str, removed: str) -> None:
    """pip takes 2.13.0 of CUDA 13 for the 2.13.0 that is wanted, whatever index it is given."""
    torch_of(machine, cuda)
    done = machine.run("launch/install", "--cuda", asked, "torch")
    assert removed in done.stderr
    assert ("uninstall" in [call[0] for call in machine.pip_calls]) == bool(removed)


@pytest.mark.parametrize(
    ("cuda", "driver", "calls"),
    [
        ("'13.0'", None, ["install"]),
        ("'12.6'", "580.65", ["install"]),
        ("'13.0'", "550.54", ["uninstall", "install"]),
        ("None", "580.65", ["uninstall", "install"]),
    ],
)
def test_a_torch_that_runs_here_stays_where_nobody_asks(
    machine: Machine, cuda: str, driver: str | None, calls: list[str]
) -> None:
    if driver:
        machine.gpus(A100, driver=driver)
    torch_of(machine, cuda)
    machine.run("launch/install", "torch")
    assert [call[0] for call in machine.pip_calls] == calls
