"""What launch/local makes of signals and of mpirun's exit code."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.support.fresh_machine import Machine


def test_exit_code_is_mpiruns(machine: Machine) -> None:
    assert machine.run("launch/local", "--fail").returncode == 7


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_ranks_as_usr1(machine: Machine, number: int, code: int) -> None:
    """mpirun hands USR1 on, while it would answer the signal itself by cutting off its ranks."""
    waits = "#!/bin/bash\n[ $1 = --version ] && echo 'mpirun (Open MPI) 5.0.11' && exit\n"
    waits += "trap 'echo got USR1; exit 1' USR1\necho up\nwhile :; do read -t 1 <> <(:); done\n"
    machine.script("mpirun", waits)
    command = [str(machine.root / "launch/local")]
    with subprocess.Popen(command, env=machine.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.read() == "got USR1\n"
    assert process.returncode == code
