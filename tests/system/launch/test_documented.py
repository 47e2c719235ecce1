"""Each line of the pages that installs, starts locally or checks runs on a machine of stubs."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.support import documented
from tests.support.documented import Command
from tests.support.fresh_machine import Machine

LAUNCH = re.compile(r"\./launch/(?:install|local|test)\b")
ELSEWHERE = ("--pythons", "--matrix")  # test_checks.py
COMMANDS = [
    one
    for one in documented.commands()
    if LAUNCH.match(one.line) and not any(flag in one.line for flag in ELSEWHERE)
]


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_it_runs(machine: Machine, command: Command) -> None:
    for name in ("ruff", "mypy", "pytest"):
        machine.module(name, "")
    program, *arguments = shlex.split(command.line)
    done = machine.for_horovod().measuring().run(program, *arguments)
    assert done.returncode == 0, done.stderr
