"""What launch/mpirun makes of signals and of mpirun's exit code."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.support.fresh_machine import Machine
from tests.support.stub_mpirun import HERE, OPENMPI5

COMMAND = ("launch/mpirun", "-np", "1", "a")


def started(machine: Machine, *before: str) -> subprocess.Popen[str]:
    command = [*before, str(machine.root / COMMAND[0]), *COMMAND[1:]]
    return subprocess.Popen(command, env=machine.environ | HERE, stdout=subprocess.PIPE, text=True)


def test_exit_code_is_mpiruns(machine: Machine) -> None:
    machine.mpirun(OPENMPI5)
    assert machine.run(COMMAND[0], "--fail", *COMMAND[1:], **HERE).returncode == 7


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_ranks_as_usr1(machine: Machine, number: int, code: int) -> None:
    """mpirun hands USR1 on, while it would answer the signal itself by cutting off its ranks."""
    machine.waiting_mpirun()
    with started(machine) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.read() == "got USR1\n"
    assert process.returncode == code


def test_a_launcher_that_is_killed_takes_the_ranks_along(machine: Machine) -> None:
    machine.waiting_mpirun()
    with started(machine) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
        assert process.stdout.read() == "got USR1\n"


def test_nohup_outlives_the_terminal(machine: Machine) -> None:
    machine.waiting_mpirun()
    with started(machine, "bash", "-c", 'trap "" HUP; exec "$0" "$@"') as process:  # as nohup does
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "got USR1\n"
    assert process.returncode == 130
