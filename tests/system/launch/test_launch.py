"""The commands under launch/, run for real on a machine of stubs (fresh_machine.py)."""

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

from tests.support.fresh_machine import Machine, usable_cores
from tests.support.stub_mpirun import INTEL, MPICH, OPENMPI4, OPENMPI5, mpi_variables

OLD_PYTHON = "#!/bin/sh\n[ $1 = -c ] && exit 1\necho Python 3.9.2\n"


# ---------------------------------------------------------------- the environment


def test_first_start_makes_an_environment_installs_and_launches(machine: Machine) -> None:
    done = machine.run("launch/local", "--rounds", "2")
    python = str(machine.root / ".venv/bin/python")
    command = [str(machine.root / ".venv/bin/mpirun"), "-np", str(usable_cores()), python]
    assert json.loads(done.stdout)["argv"] == [*command, "-m", "scaling.run", "--rounds", "2"]
    assert [call[-2:] for call in machine.pip_calls] == [["--editable", f"{machine.root}[torch,mpi]"]]
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
    call = machine.launched(**{variable: str(active)})
    assert call["argv"][3] == str(active / "bin/python")
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


def test_mpirun_on_path_is_used_and_none_installed(machine: Machine) -> None:
    mpirun = machine.mpirun(OPENMPI4)
    assert machine.launched()["argv"][0] == str(mpirun)
    assert [call[-1] for call in machine.pip_calls] == [f"{machine.root}[torch]"]


@pytest.mark.parametrize(
    ("version", "unbound", "crowded"),
    [
        (OPENMPI4, {"OMPI_MCA_hwloc_base_binding_policy": "none"}, {"OMPI_MCA_rmaps_base_oversubscribe": "1"}),
        (
            OPENMPI5,
            {"PRTE_MCA_hwloc_default_binding_policy": "none"},
            {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"},
        ),
        (INTEL, {"I_MPI_PIN": "0"}, {}),
        (MPICH, {}, {}),
        ("an MPI of tomorrow", {}, {}),
    ],
    ids=["openmpi4", "openmpi5", "intel", "mpich", "other"],
)
def test_variables_for_each_mpi(
    machine: Machine, version: str, unbound: dict[str, str], crowded: dict[str, str]
) -> None:
    machine.mpirun(version)
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    root = dict.fromkeys(names, "1") if "Open MPI" in version and os.geteuid() == 0 else {}
    fits, many = (machine.launched("-np", str(usable_cores() + extra))["environ"] for extra in (0, 1))
    assert mpi_variables(fits) == unbound | root
    assert mpi_variables(many) == unbound | root | crowded


def test_variable_that_is_set_already_stays(machine: Machine) -> None:
    machine.mpirun(OPENMPI4)
    call = machine.launched(OMPI_MCA_hwloc_base_binding_policy="core")
    assert call["environ"]["OMPI_MCA_hwloc_base_binding_policy"] == "core"


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
    assert machine.launched()["environ"]["MPI4PY_LIBMPI"] == str(tmp_path / "mpi" / library)


def test_mpich_under_the_name_that_debian_gives_it(machine: Machine, tmp_path: Path) -> None:
    machine.mpirun(MPICH)
    machine.script("libmpich.so.12", "", at=tmp_path / "lib")
    done = machine.run("launch/local")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("apt-get install openmpi-bin")


def test_mpirun_that_does_not_work(machine: Machine) -> None:
    machine.mpirun("broken", exit_code=127)
    done = machine.run("launch/local")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(r"launch: \S+/mpirun does not work .* put another mpirun first on PATH", last)


@pytest.mark.parametrize(
    ("arguments", "ranks", "flags"),
    [
        (["-np", "3", "--rounds", "2"], "3", ["--rounds", "2"]),
        (["--rounds", "2", "-n", "16"], "16", ["--rounds", "2"]),
        (["--name", "a b; $HOME", "--np", "1"], "1", ["--name", "a b; $HOME"]),
    ],
)
def test_np_goes_to_mpirun_and_flags_through(
    machine: Machine, arguments: list[str], ranks: str, flags: list[str]
) -> None:
    argv = machine.launched(*arguments)["argv"]
    assert (argv[1:3], argv[4:]) == (["-np", ranks], ["-m", "scaling.run", *flags])


@pytest.mark.parametrize("arguments", [["-np"], ["-np", "0"], ["-n", "two"], ["-np", "--dry-run"]])
def test_np_that_is_no_number(machine: Machine, arguments: list[str]) -> None:
    done = machine.run("launch/local", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(f"launch: {arguments[0]} ")


@pytest.mark.parametrize(
    ("visible", "ranks"),
    [
        *((None, 3), ("0,2", 2), ("0", 1), ("0,1,2,3", 3), ("1,9,0", 1), ("GPU-1,GPU-2", 2)),
        *((nothing, usable_cores()) for nothing in ("", "NoDevFiles", "9")),
    ],
)
def test_one_rank_for_each_gpu_that_is_let_through(machine: Machine, visible: str | None, ranks: int) -> None:
    lines = "".join(f"GPU {i}: GPU of NVIDIA (UUID: GPU-{i})\n  MIG 1g.10gb Device 0\n" for i in range(3))
    machine.script("nvidia-smi", f"#!/bin/sh\n[ $1 = -L ] && printf '{lines}'\n")
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert machine.launched(**environ)["argv"][2] == str(ranks)


# ---------------------------------------------------------------- the terminal


def test_view_is_plain_where_stdout_is_no_terminal_unless_set(machine: Machine) -> None:
    environ = machine.launched()["environ"]
    assert environ["SCALING_VIEW"] == "plain"
    assert "COLUMNS" not in environ
    assert machine.launched(SCALING_VIEW="live")["environ"]["SCALING_VIEW"] == "live"


def test_view_is_live_in_a_terminal_and_knows_its_size(machine: Machine) -> None:
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 132, 0, 0))
    with subprocess.Popen([machine.root / "launch/local"], env=machine.environ, stdout=slave):
        os.close(slave)
        with os.fdopen(master) as screen:
            environ = json.loads(screen.readline())["environ"]
    assert [environ[name] for name in ("SCALING_VIEW", "COLUMNS", "LINES")] == ["live", "132", "50"]
