"""./launch/install run for real on a machine of stubs (fresh_machine.py): nothing is fetched or compiled."""

from __future__ import annotations

import json
import re
import shutil
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.fresh_machine import REPOSITORY, Machine

TABLE = """\
            version  CUDA  Horovod 0.28.1
torch       2.13.0   no    Gloo
tensorflow  2.21.0   no    Gloo
mxnet       1.9.1    no    Gloo
jax         0.6.2    no    -
"""


@pytest.fixture
def machine(machine: Machine) -> Machine:
    return machine.for_horovod()


def wheels(machine: Machine) -> list[Path]:
    return sorted((machine.root.parent / ".cache/scaling/wheels").glob("*/*.whl"))


def verbs(machine: Machine) -> list[str]:
    calls = machine.pip_calls
    machine.calls.unlink(missing_ok=True)
    return [call[0] if call[0] != "install" else re.sub(r".*/", "", call[-1]) for call in calls]


def remove_environment(machine: Machine) -> None:
    shutil.rmtree(machine.root / ".venv")
    for path in machine.packages.glob("horovod*"):
        shutil.rmtree(path)
    verbs(machine)


def last_line(text: str) -> str:
    return text.splitlines()[-1].removeprefix("launch: ")


# ---------------------------------------------------------------- all goes well


def test_everything_is_installed_and_horovod_built_for_it(machine: Machine) -> None:
    done = machine.run("launch/install")
    assert done.returncode == 0, done.stderr
    assert done.stdout == TABLE
    wheel = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    assert verbs(machine) == ["clone[torch,tensorflow,mxnet,jax,horovod]", "wheel", wheel]
    assert "building Horovod 0.28.1 for torch, tensorflow, mxnet with Gloo: about" in done.stderr
    assert re.findall(r"Horovod \d+ %", done.stderr) == ["Horovod 47 %"]


def test_the_build_gets_what_horovod_needs_to_compile(machine: Machine) -> None:
    machine.run("launch/install", PATH=f"{machine.bin}:/nowhere", HOROVOD_FUSION_THRESHOLD="1")
    environ: dict[str, Any] = json.loads(wheels(machine)[0].read_text())[1]
    names = {"PYTORCH", "TENSORFLOW", "MXNET", "GLOO"}
    assert {name for name in environ if name.startswith("HOROVOD_WITH")} == {
        *(f"HOROVOD_WITH_{name}" for name in names),
        "HOROVOD_WITHOUT_MPI",
    }
    assert environ["CMAKE_TOOLCHAIN_FILE"] == str(machine.root / "launch/horovod.cmake")
    assert environ["PATH"] == f"{machine.root}/.venv/bin:{machine.bin}:/nowhere"
    assert environ["PYTHONPATH"].endswith(f":{machine.packages}")
    assert re.fullmatch(r"-k -j[1-9]\d*", environ["MAKEFLAGS"])


def test_second_run_only_shows_the_table(machine: Machine) -> None:
    machine.run("launch/install")
    verbs(machine)
    for arguments in ([], ["all"], ["torch"], ["horovod"]):
        done = machine.run("launch/install", *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, TABLE, "")
    assert verbs(machine) == []


def test_another_framework_version_is_built_for_anew(machine: Machine) -> None:
    machine.run("launch/install")
    machine.framework("torch", "2.14.0")
    verbs(machine)
    done = machine.run("launch/install")
    assert "torch       2.14.0 " in done.stdout
    assert verbs(machine)[0] == "wheel"
    assert len(wheels(machine)) == 2


def test_another_clone_takes_the_wheel_from_the_cache(machine: Machine) -> None:
    machine.run("launch/install")
    remove_environment(machine)
    machine.root = machine.root.rename(machine.root.with_name("moved"))
    done = machine.run("launch/install")
    assert (done.returncode, done.stdout) == (0, TABLE)
    assert "is in the cache" in done.stderr
    assert "wheel" not in verbs(machine)


def test_other_settings_are_another_wheel(machine: Machine) -> None:
    machine.run("launch/install")
    remove_environment(machine)
    assert "building Horovod" in machine.run("launch/install", HOROVOD_BUILD_ARCH_FLAGS="-mavx2").stderr
    assert len(wheels(machine)) == 2


def test_horovod_that_was_here_already_stays(machine: Machine) -> None:
    machine.run("launch/install")
    shutil.rmtree(machine.root / ".venv")
    verbs(machine)
    done = machine.run("launch/install")
    assert "Horovod 0.28.1 was installed already and is kept" in done.stderr
    assert (done.stdout, verbs(machine)) == (TABLE, ["clone[torch,tensorflow,mxnet,jax,horovod]"])


def test_what_local_installed_is_not_installed_again(machine: Machine) -> None:
    machine.prepared()
    done = machine.run("launch/install", "torch")
    assert (done.returncode, machine.pip_calls) == (0, [])
    assert done.stdout.splitlines()[0].split() == ["version", "CUDA"]
    machine.run("launch/install")
    verbs(machine)
    machine.launched()
    assert verbs(machine) == []


# ---------------------------------------------------------------- something is missing


def test_without_a_compiler_the_frameworks_are_there_and_the_package_is_named(machine: Machine) -> None:
    (machine.bin / "c++").unlink()
    done = machine.run("launch/install")
    assert done.returncode == 1
    assert done.stdout == TABLE.replace(" 0.28.1", "").replace("Gloo", "-")
    want = "horovod: no C++ compiler or no make: apt-get install g++ make (RHEL: dnf install gcc-c++ make)"
    assert last_line(done.stderr) == want
    assert verbs(machine) == ["clone[torch,tensorflow,mxnet,jax,horovod]"]
    machine.script("c++", "#!/bin/sh\n")
    done = machine.run("launch/install")
    assert (done.returncode, done.stdout) == (0, TABLE)


def test_framework_that_pip_does_not_find_leaves_the_others(machine: Machine) -> None:
    shutil.rmtree(machine.packages / "mxnet-0.dist-info")
    done = machine.run("launch/install", PIP_LACKS="mxnet")
    assert done.returncode == 1
    row = re.search(r"^mxnet .*", done.stdout, re.MULTILINE)
    assert row and row[0].split() == ["mxnet", "-", "-", "-"]
    assert re.fullmatch(r"mxnet: mxnet==1.2.3 is not available for Python 3\.\d+: .*", last_line(done.stderr))
    assert json.loads(wheels(machine)[0].read_text())[0] == ["pytorch", "tensorflow"]
    tried = ["torch,tensorflow,mxnet,jax,horovod", "torch", "torch,tensorflow", "torch,tensorflow,mxnet"]
    after = ["torch,tensorflow,jax", "torch,tensorflow,jax,horovod"]
    asked = [f"clone[{extras}]" for extras in (*tried, *after)]
    assert verbs(machine)[:7] == [asked[0], "clone", *asked[1:]]


def test_framework_without_a_wheel_for_this_python(machine: Machine) -> None:
    """setup.cfg's markers let pip install nothing for it."""
    shutil.rmtree(machine.packages / "mxnet-0.dist-info")
    done = machine.run("launch/install", "mxnet")
    assert done.returncode == 1
    assert re.fullmatch(r"mxnet: there is none for Python 3\.\d+; .* ./launch/install", last_line(done.stderr))


def test_all_is_what_this_python_can_have(machine: Machine) -> None:
    script = machine.root / "launch/_frameworks.py"
    script.write_text(
        script.read_text().replace("PYTHON_WITHOUT_MXNET = (3, 13)", "PYTHON_WITHOUT_MXNET = (3, 10)")
    )
    shutil.rmtree(machine.packages / "mxnet-0.dist-info")
    for _ in range(2):
        done = machine.run("launch/install")
        assert done.returncode == 0
        assert re.search(r"^launch: without mxnet: there is none for Python 3\.\d+; ", done.stderr, re.MULTILINE)
    assert verbs(machine)[:2] == ["clone[torch,tensorflow,jax,horovod]", "wheel"]


def test_framework_that_does_not_import(machine: Machine) -> None:
    (machine.packages / "tensorflow.py").write_text("raise ImportError('libtf.so: cannot open')")
    done = machine.run("launch/install")
    assert done.returncode == 1
    want = "tensorflow: does not import: ImportError: libtf.so: cannot open; "
    assert last_line(done.stderr).startswith(want)
    assert last_line(done.stderr).endswith("-m pip install --force-reinstall 'tensorflow-cpu==2.21.0'")
    assert json.loads(wheels(machine)[0].read_text())[0] == ["pytorch", "mxnet"]


def test_binding_that_does_not_compile_is_left_out(machine: Machine) -> None:
    done = machine.run("launch/install", NOT_COMPILING="tensorflow")
    assert done.returncode == 1
    assert done.stdout == TABLE.replace("2.21.0   no    Gloo", "2.21.0   no    -")
    line = last_line(done.stderr)
    assert line.startswith(
        "tensorflow:horovod: does not build: /a/tensorflow.cc:1:2: error: 'tensorflow' has changed"
    )
    assert line.endswith("then ./launch/install horovod")


def test_build_that_fails_names_its_log_and_is_tried_again(machine: Machine) -> None:
    done = machine.run("launch/install", NOT_COMPILING="pytorch tensorflow mxnet")
    assert done.returncode == 1
    line = last_line(done.stderr)
    assert line.startswith("horovod: does not build: /a/pytorch.cc:1:2: error: 'pytorch' has changed")
    log = re.search(r"\((/.*/build\.log)\)", line)
    assert log and "gmake[2]" in Path(log[1]).read_text()
    assert machine.run("launch/install").stdout == TABLE


def test_binding_that_does_not_import(machine: Machine) -> None:
    machine.run("launch/install")
    (machine.packages / "horovod/mxnet/__init__.py").write_text("raise ImportError('undefined symbol')")
    (machine.root / ".venv/scaling-install.json").write_text("{}")
    done = machine.run("launch/install", "horovod", NOT_COMPILING="")
    assert done.returncode == 0, "what does not import is installed anew"
    assert "is in the cache" in done.stderr


def test_no_index_at_all_ends_with_what_pip_said(machine: Machine) -> None:
    done = machine.run("launch/install", PIP_EXIT="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert last_line(done.stderr).endswith("failed (above)")
    assert verbs(machine) == ["clone[torch,tensorflow,mxnet,jax,horovod]", "clone"]


def test_home_that_cannot_be_written_costs_only_the_cache(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = machine.run("launch/install", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert (done.returncode, done.stdout) == (0, TABLE)
    assert "the wheel will not be kept: " in done.stderr


@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ("mxnett", "launch: mxnett: no such extra; did you mean mxnet\\?\n"),
        ("--nothing", "launch: --nothing: no such extra; torch tensorflow .*\n"),
    ],
)
def test_unknown_extra(machine: Machine, argument: str, answer: str) -> None:
    machine.prepared()
    done = machine.run("launch/install", argument)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(answer, done.stderr)
    assert machine.pip_calls == []


@pytest.mark.parametrize("command", ["launch/local", "launch/install"])
@pytest.mark.parametrize(
    ("release", "stays"), [("2.9.1", True), ("2.14.1+cu130", True), ("2.13.0", False), ("2.3.1", False)]
)
def test_a_torch_that_serves_is_not_replaced(machine: Machine, command: str, release: str, stays: bool) -> None:
    machine.framework("torch", release)
    done = machine.measuring().run(command, *(["torch"] if command == "launch/install" else []))
    assert done.returncode == 0, done.stderr
    assert any("torch" in extras for _, extras in machine.installs()) is not stays
    assert (f"torch {release} is installed already and is kept" in done.stderr) is stays


# ---------------------------------------------------------------- settings of pip and Python


@pytest.mark.parametrize("name", ["PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON"])
def test_a_place_that_pip_is_told_is_not_used(machine: Machine, name: str) -> None:
    done = machine.run("launch/install", "torch", **{name: "/elsewhere"})
    assert done.returncode == 0, done.stderr
    assert f"launch: {name} is not used: packages go into {machine.root}/.venv\n" in done.stderr


@pytest.mark.parametrize(
    ("name", "why"),
    [("PIP_DRY_RUN", "pip would install nothing"), ("PIP_REQUIRE_HASHES", "the packages of setup")],
)
def test_a_setting_under_which_nothing_is_installed_is_named(machine: Machine, name: str, why: str) -> None:
    done = machine.run("launch/install", "torch", **{name: "1"})
    assert done.returncode == 1
    assert last_line(done.stderr).startswith(f"{name}=1: {why}") and "Traceback" not in done.stderr
    assert machine.run("launch/install", "torch", **{name: "0"}).returncode == 0


def test_pythons_own_settings_change_nothing(machine: Machine) -> None:
    done = machine.run("launch/install", "torch", PYTHONSAFEPATH="1", PYTHONINSPECT="1")
    assert done.returncode == 0, done.stderr


def test_tensorflow_has_a_wheel_for_arm() -> None:
    """tensorflow-cpu has none for aarch64: PyPI has tensorflow-2.21.0-*-manylinux_2_27_aarch64.whl."""
    config = ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    lines = config["options.extras_require"]["tensorflow"].split("\n")
    wanted = [Requirement(line) for line in lines if line.startswith("tensorflow")]
    for machine, name in (("x86_64", "tensorflow-cpu"), ("aarch64", "tensorflow")):
        environment = {"platform_machine": machine, "python_version": "3.11"}
        assert [one.name for one in wanted if one.marker and one.marker.evaluate(environment)] == [name]
