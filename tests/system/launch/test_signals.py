"""What launch/local and launch/mpirun make of signals and of mpirun's exit code."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.support.fresh_machine import Machine
from tests.support.stub_mpirun import HERE, OPENMPI5

# Each with its words and its environment.
COMMANDS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "launch/local": ((), {}),
    "launch/mpirun": (("-np", "1", "a"), HERE),
}
every_command = pytest.mark.parametrize("command", COMMANDS)


@every_command
def test_exit_code_is_mpiruns(machine: Machine, command: str) -> None:
    machine.mpirun(OPENMPI5)
    words, environ = COMMANDS[command]
    assert machine.run(command, "--fail", *words, **environ).returncode == 7


@every_command
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_ranks_as_usr1(machine: Machine, number: int, code: int, command: str) -> None:
    """mpirun hands USR1 on, while it would answer the signal itself by cutting off its ranks."""
    machine.waiting_mpirun()
    words, environ = COMMANDS[command]
    called = [str(machine.root / command), *words]
    with subprocess.Popen(called, env=machine.environ | environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.stdout.read() == "got USR1\n"
    assert process.returncode == code


def test_a_launcher_that_is_killed_takes_the_ranks_along(machine: Machine) -> None:
    machine.waiting_mpirun()
    command = [str(machine.root / "launch/local")]
    with subprocess.Popen(command, env=machine.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
        assert process.stdout.read() == "got USR1\n"


def test_nohup_outlives_the_terminal(machine: Machine) -> None:
    machine.waiting_mpirun()
    command = ["bash", "-c", 'trap "" HUP; exec "$0"', str(machine.root / "launch/local")]  # as nohup does
    with subprocess.Popen(command, env=machine.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "got USR1\n"
    assert process.returncode == 130
