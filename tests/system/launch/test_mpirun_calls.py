"""launch/mpirun on a machine of stubs: --print, signals, which Python, which mpirun, and mistakes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.support.fresh_machine import REPOSITORY, Machine, usable_cores
from tests.support.stub_mpirun import HERE, MPICH, OPENMPI5, PROGRAM, every_mpi, launched, refused

MANY = str(usable_cores() + 1)

# ---------------------------------------------------------------- --print, signals, the terminal


@every_mpi
def test_print_runs_nothing_and_its_line_does_the_same_in_a_shell(machine: Machine, version: str) -> None:
    machine.mpirun(version)
    machine.script("enter", "")
    arguments = ("--agent", "enter lab", "--interface", "lo", "-np", MANY, "python", "-c", "a 'b'; $HOME\n")
    done = machine.run("launch/mpirun", "--print", *arguments, **HERE, NCCL_DEBUG="a b")
    assert (done.returncode, done.stderr) == (0, "")
    environ = {**machine.environ, **HERE, "NCCL_DEBUG": "a b"}
    command = ["/bin/sh", "-c", done.stdout]
    again = subprocess.run(command, capture_output=True, text=True, check=True, env=environ, cwd=machine.bin)
    call, direct = json.loads(again.stdout), launched(machine, *arguments, NCCL_DEBUG="a b")
    assert call["argv"] == direct["argv"]
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    assert {k: v for k, v in call["environ"].items() if k not in of_the_shell} == {
        k: v for k, v in direct["environ"].items() if k not in of_the_shell
    }


def test_view_is_live_in_a_terminal_and_reaches_a_rank_0_elsewhere(machine: Machine) -> None:
    machine.mpirun(OPENMPI5)
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
    command = [str(machine.root / "launch/mpirun"), "-np", "1", "a"]
    with subprocess.Popen(command, env=machine.environ | HERE, stdout=slave):
        os.close(slave)
        with os.fdopen(master) as screen:
            call = json.loads(screen.readline())
    assert [call["environ"][name] for name in ("SCALING_VIEW", "COLUMNS", "LINES")] == ["live", "132", "50"]
    assert {"SCALING_VIEW", "COLUMNS", "LINES"} <= set(call["argv"])
    assert launched(machine, "-np", "1", "a")["environ"]["SCALING_VIEW"] == "plain"


# ---------------------------------------------------------------- the environment


def test_python_of_an_environment_that_is_not_on_path_comes_first(machine: Machine) -> None:
    machine.mpirun(OPENMPI5)
    path = launched(machine, "-np", "1", *PROGRAM)["environ"]["PATH"]
    assert path == f"{sys.prefix}/bin:{machine.bin}"
    behind = f"{sys.prefix}/bin:/somewhere"
    machine.mpirun(OPENMPI5, at=machine.bin)
    path = launched(machine, "-np", "1", *PROGRAM, PATH=f"{machine.bin}:{behind}")["environ"]["PATH"]
    assert path == f"{machine.bin}:{behind}"


def test_mpirun_is_never_itself(machine: Machine) -> None:
    mpirun = machine.mpirun(MPICH)
    call = launched(machine, "-np", "1", "a", PATH=f"{machine.root}/launch:{machine.bin}")
    assert call["argv"][0] == str(mpirun)


def test_nothing_is_installed_where_scaling_is_missing(machine: Machine, tmp_path: Path) -> None:
    machine.mpirun(OPENMPI5)
    empty = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    line = refused(machine, "-np", "1", *PROGRAM, VIRTUAL_ENV=str(empty), PYTHONPATH="")
    assert line.startswith(
        f"launch: scaling is not installed in {empty} (no scaling, mpi4py, msgspec): ./launch/local"
    )
    assert machine.pip_calls == []
    assert not (machine.root / ".venv").exists()


def test_files_of_the_working_directory_do_not_replace_pythons_own(machine: Machine) -> None:
    machine.mpirun(OPENMPI5)
    for name in ("random.py", "json.py", "dataclasses.py", "msgspec.py"):
        (machine.bin / name).write_text("raise RuntimeError\n")
    assert launched(machine, "-np", "1", "a")["argv"][-1] == "a"


@pytest.mark.parametrize("name", ["scaling.py", "scaling/__init__.py"])
def test_what_hides_the_installed_scaling_is_named(machine: Machine, name: str) -> None:
    machine.mpirun(OPENMPI5)
    hiding = machine.bin / name
    hiding.parent.mkdir(exist_ok=True)
    hiding.touch()
    line = refused(machine, "-np", "1", *PROGRAM)
    assert line == f"launch: {hiding} hides the installed scaling: rename it, or start in another folder"


def test_without_any_environment_the_python_on_path_is_taken(machine: Machine) -> None:
    machine.mpirun(OPENMPI5)
    machine.script("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    line = machine.run("launch/mpirun", "-np", "1", "a", PYTHONPATH=str(REPOSITORY))
    assert line.returncode == 0, line.stderr
    (machine.bin / "python3").unlink()
    assert "no Python 3.10 or newer on PATH" in refused(machine, "a", VIRTUAL_ENV="")


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to run; write for example ./launch/mpirun -np 2 python -m scaling.run"),
        (["--print"], "nothing to run"),
        (["--agent"], "--agent: needs a command"),
        (["--agent", "--print", "a"], "--agent: needs a command"),
        (["--agent", "", "a"], "--agent: needs a command"),
        (["--agent=", "a"], "--agent: needs a command"),
        (["--interface", "-np", "2", "a"], "--interface: needs the name of a network interface"),
        (["--agent", "no-such-command x", "a"], "--agent no-such-command x: no-such-command is no command"),
        (["--interface", "wlan7", "a"], "--interface wlan7: no such interface on "),
        (["-np", "2", "--print", "a"], "--print comes first: ./launch/mpirun --print ..."),
        (["-np", "2", "--agent", "ssh", "a"], "--agent comes first"),
        (["-np", "two", "a"], "-np two: not a number of ranks; write for example -np 4"),
        (["-n", "0", "a"], "-n 0: not a number of ranks"),
        (["-np"], "-np (nothing): not a number of ranks"),
        (["-np", "1", "a", ":", "-np", "-2", "b"], "-np -2: not a number of ranks"),
        (["-x", "A", "--interface=lo", "a"], "--interface comes first"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_and_reach_no_mpirun(machine: Machine, arguments: list[str], said: str) -> None:
    machine.mpirun(OPENMPI5)
    assert refused(machine, *arguments).startswith(f"launch: {said}")


def test_a_subnet_is_for_open_mpi(machine: Machine) -> None:
    machine.mpirun(OPENMPI5)
    environ = launched(machine, "--interface", "10.0.0.0/8", "-np", "1", "a")["environ"]
    assert environ["PRTE_MCA_prte_if_include"] == "10.0.0.0/8"
    machine.mpirun(MPICH)
    assert "--interface 10.0.0.0/8: no such interface" in refused(machine, "--interface", "10.0.0.0/8", "a")


def test_an_unknown_mpi_is_started_as_it_is_but_takes_no_flags(machine: Machine) -> None:
    machine.mpirun("an MPI of tomorrow")
    assert launched(machine, "-np", MANY, "a")["argv"][1:] == ["-np", MANY, "a"]
    assert "--interface: this mpirun belongs to no known MPI" in refused(machine, "--interface", "lo", "a")


def test_no_mpirun_at_all(machine: Machine, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    packages = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))
    path = f"{REPOSITORY}{os.pathsep}{packages}"
    line = refused(machine, "-np", "1", "a", VIRTUAL_ENV=str(bare), PYTHONPATH=path)
    assert line == "launch: no mpirun on PATH and none in the environment: ./launch/install mpi installs one"


def test_help_needs_no_environment(machine: Machine) -> None:
    done = machine.run("launch/mpirun", "--help", VIRTUAL_ENV="/nowhere")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("--print", "--agent COMMAND", "--interface NAME", "ARGUMENT..."):
        assert re.search(rf"^  +{re.escape(word)}", done.stdout, re.MULTILINE), word
