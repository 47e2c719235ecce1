"""The command `scaling`: it runs the command that is named, lists all, and completes them in shells."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from scaling import __main__ as scaling

ROOT = Path(__file__).parents[2]


def started(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scaling", *words]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=True, timeout=60
    )


@pytest.mark.parametrize("name", scaling.COMMANDS)
def test_each_command_shows_its_own_help(name: str) -> None:
    done = started(*name.split(), "--help")
    module = "scaling.run" if name == "run" else f"scaling {name}"
    assert f"Usage: python -m {module} [OPTIONS]" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_the_help_lists_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling.main(words) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in scaling.COMMANDS if " " not in name)


def test_a_typo_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling.main(["chek"]) == 2
    assert capsys.readouterr() == ("", "scaling: error: chek: no such command; did you mean 'check'?\n")
    assert scaling.main(["--hlp"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_one_rank_of_a_launch_complains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert scaling.main(["chek"]) == 2
    assert capsys.readouterr() == ("", "")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{import_module('scaling').__version__}\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("scaling hist", ["history"]),
        ("scaling history --out", ["--output"]),
        ("scaling lab d", ["down"]),
        ("scaling run --batch-r", ["--batch-rule"]),
    ],
)
def test_a_shell_completes_commands_and_their_flags(line: str, found: list[str]) -> None:
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), scaling.COMPLETING: "complete_bash"}
    assert started(**asked).stdout.split() == found


def test_the_script_of_a_shell_asks_for_it() -> None:
    assert f"{scaling.COMPLETING}=complete_bash" in started("--show-completion", "bash").stdout


def test_the_console_script_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    name, _, target = setup["options.entry_points"]["console_scripts"].strip().partition(" = ")
    module, _, function = target.partition(":")
    monkeypatch.setattr(sys, "argv", [name, "--version"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert getattr(import_module(module), function)() == 0
    assert name == "scaling" and capsys.readouterr().out
    assert sys.path[-1] == ""
