"""The commands under launch/, run for real on a machine of stubs (fresh_machine.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fresh_machine import Machine
from tests.support.stub_mpirun import INTEL, MPICH, OPENMPI4, OPENMPI5, PROGRAM, launched, refused

OLD_PYTHON = "#!/bin/sh\n[ $1 = -c ] && exit 1\necho Python 3.9.2\n"


# ---------------------------------------------------------------- the environment


def test_first_start_makes_an_environment_installs_and_launches(machine: Machine) -> None:
    done = machine.measuring().run("launch/local", "--rounds", "2", "--name", "a b; $HOME")
    python = str(machine.root / ".venv/bin/python")
    flags = ["--rounds", "2", "--name", "a b; $HOME"]
    assert json.loads(done.stdout) == [python, "-m", "scaling.run", *flags]
    assert [call[-2:] for call in machine.pip_calls] == [["--editable", f"{machine.root}[torch]"]]
    assert "torch-2.13.0 (190.2 MB)" in done.stderr
    assert "a line that only a failure shows" not in done.stderr


def test_second_start_calls_no_pip_until_the_requirements_change(machine: Machine) -> None:
    machine.prepared().launched()
    assert machine.pip_calls == []
    with (machine.root / "setup.cfg").open("a") as file:
        file.write("# changed\n")
    machine.launched()
    assert [call[-1] for call in machine.pip_calls] == [f"{machine.root}[torch]"]


def test_environment_of_another_clone_is_installed_anew(machine: Machine) -> None:
    machine.prepared()
    machine.root = machine.root.rename(machine.root.with_name("moved"))
    machine.launched()
    assert [call[-1] for call in machine.pip_calls] == [f"{machine.root}[torch]"]


@pytest.mark.parametrize("stamp", ["", '{"key": "'])
def test_stamp_cut_short_does_not_count(machine: Machine, stamp: str) -> None:
    (machine.prepared().root / ".venv/scaling-install.json").write_text(stamp)
    machine.launched()
    assert len(machine.pip_calls) == 1


def test_failed_install_shows_what_pip_said_and_is_tried_again(machine: Machine) -> None:
    done = machine.run("launch/local", PIP_EXIT="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "a line that only a failure shows" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("failed (above)")
    machine.launched()
    assert len(machine.pip_calls) == 2


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_active_environment_is_used(machine: Machine, tmp_path: Path, variable: str) -> None:
    active = tmp_path / "active"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", active], check=True)
    assert machine.launched(**{variable: str(active)})[0] == str(active / "bin/python")
    assert not (machine.root / ".venv").exists()


def test_old_pip_is_upgraded_first(machine: Machine) -> None:
    machine.pip_version("22.2.9")
    machine.launched()
    assert machine.pip_calls[0][-2:] == ["--upgrade", "pip"]


def test_no_new_python_names_the_fix(machine: Machine) -> None:
    machine.script("python3", OLD_PYTHON)
    done = machine.run("launch/local")
    assert done.returncode == 2
    assert re.fullmatch(r"launch: no Python 3.10 or newer on PATH .*apt-get install python3.*\n", done.stderr)


def test_new_python_behind_an_old_python3_is_found(machine: Machine) -> None:
    (machine.bin / "python3").rename(machine.bin / "python3.12")
    machine.script("python3", OLD_PYTHON)
    machine.launched()


@pytest.mark.parametrize(
    ("python", "message"),
    [(None, "has no working bin/python"), (OLD_PYTHON, "has Python 3.9.2, 3.10 or newer is needed")],
)
def test_active_environment_that_cannot_work(
    machine: Machine, tmp_path: Path, python: str | None, message: str
) -> None:
    if python:
        machine.script("python", python, at=tmp_path / "active/bin")
    done = machine.run("launch/local", VIRTUAL_ENV=str(tmp_path / "active"))
    assert done.returncode == 2
    assert re.fullmatch(rf"launch: \S+/active {message}: deactivate that environment.*\n", done.stderr)


@pytest.mark.parametrize("active", [True, False])
def test_a_pythonhome_without_a_library_is_named(machine: Machine, tmp_path: Path, active: bool) -> None:
    environ = {"PYTHONHOME": str(tmp_path / "nonsense")}
    if active:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "active"], check=True)
        environ["VIRTUAL_ENV"] = str(tmp_path / "active")
    done = machine.run("launch/local", **environ)
    assert (done.returncode, done.stdout) == (2, "")
    python = tmp_path / "active/bin/python" if active else machine.bin / "python3"
    assert done.stderr == (
        f"launch: {python} does not start with PYTHONHOME={tmp_path}/nonsense, where its library is not: "
        "unset PYTHONHOME\n"
    )
    assert machine.pip_calls == []


# ---------------------------------------------------------------- mpirun


@pytest.mark.parametrize(
    ("version", "library"),
    [
        (OPENMPI4, "lib/libmpi.so.40"),
        (OPENMPI5, "lib64/libmpi.so.40"),
        (MPICH, "lib/libmpi.so.12"),
        (INTEL, "lib/release/libmpi.so.12"),
    ],
)
def test_mpi4py_is_pointed_at_the_library_of_a_linked_mpirun(
    machine: Machine, tmp_path: Path, version: str, library: str
) -> None:
    (machine.bin / "mpirun").symlink_to(machine.mpirun(version, at=tmp_path / "mpi/bin"))
    for name in ("lib/libmpi.so", library):
        machine.script(Path(name).name, "", at=(tmp_path / "mpi" / name).parent)
    environ = launched(machine, "-np", "1", *PROGRAM)["environ"]
    assert environ["MPI4PY_LIBMPI"] == str(tmp_path / "mpi" / library)


def test_mpich_under_the_name_that_debian_gives_it(machine: Machine, tmp_path: Path) -> None:
    machine.mpirun(MPICH)
    machine.script("libmpich.so.12", "", at=tmp_path / "lib")
    assert refused(machine, "-np", "1", *PROGRAM).endswith("apt-get install openmpi-bin")


def test_mpirun_that_does_not_work(machine: Machine) -> None:
    machine.mpirun("broken", exit_code=127)
    line = refused(machine, "-np", "1", *PROGRAM)
    assert re.fullmatch(r"launch: \S+/mpirun does not work .* put another mpirun first on PATH", line)
