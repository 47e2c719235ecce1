"""What programs that take turns leave behind: nothing, however the benchmark ends; what is read of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.bench import turns
from tests.bench.paired import Answer
from tests.support.waiting import LIMIT_S, eventually

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
KILLED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from tests.process.test_bench_turns import Sleeper
from tests.bench.turns import Guard, Program
with Guard() as guard, Program("sleeps", guard, asynchronous=False) as program:
    print(program.add(Sleeper()).pid, flush=True)
    program.pause()
    os.kill(os.getpid(), signal.{how})
"""


class Sleeper:
    name, measures = "sleeper", True

    def __init__(self) -> None:
        self._popen = subprocess.Popen(SLEEPER, stdout=subprocess.PIPE, start_new_session=True)
        assert self._popen.stdout is not None
        self._stdout = self._popen.stdout
        self.pid, self.fd = self._popen.pid, self._stdout.fileno()
        self._stdout.readline()

    def tell(self, steps: int) -> None:
        return

    def answer(self) -> Answer | None:
        return None

    def ended(self) -> bool:
        return self._popen.poll() is not None

    def log_tail(self) -> str:
        return "its last words"

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()
        self._stdout.close()


def gone(pid: int) -> bool:
    """Whether there is no such process, but for one that nobody has reaped."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_what_was_stopped_ends_with_a_benchmark_that_is_killed(how: str) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(how=how)], cwd=root, capture_output=True, text=True, check=False,
        timeout=LIMIT_S, env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == -signal.Signals[how], done.stderr
    eventually(lambda: gone(int(done.stdout)))


def test_a_pause_lasts_until_the_next_turn_and_a_stopped_process_can_be_ended() -> None:
    with turns.Guard() as guard, turns.Program("sleeps", guard, asynchronous=False) as program:
        process = psutil.Process(program.add(Sleeper()).pid)
        program.pause()
        assert process.status() == psutil.STATUS_STOPPED
        program.go_on()
        eventually(lambda: process.status() != psutil.STATUS_STOPPED)
        program.pause()
    assert gone(process.pid)


class Grandchild(Sleeper):
    def __init__(self) -> None:
        super().__init__()
        popen = f"subprocess.Popen({SLEEPER!r}, start_new_session=True, stdout=2)"
        told = subprocess.run(
            [sys.executable, "-c", f"import subprocess; print({popen}.pid)"],
            stdout=subprocess.PIPE,
            check=True,
            timeout=LIMIT_S,
            text=True,
        )
        self._process = psutil.Process(int(told.stdout))
        self.pid = self._process.pid

    def ended(self) -> bool:
        return gone(self.pid)

    def kill(self) -> None:
        super().kill()
        self._process.kill()
        eventually(lambda: gone(self._process.pid))


def test_who_is_no_child_of_this_process_is_stopped_too() -> None:
    with turns.Guard() as guard, turns.Program("sleeps", guard, asynchronous=False) as program:
        process = psutil.Process(program.add(Grandchild()).pid)
        program.pause()
        assert process.status() == psutil.STATUS_STOPPED
    assert gone(process.pid)


def test_what_cannot_be_killed_in_the_end_is_killed_by_the_guard() -> None:
    def fail() -> None:
        raise OSError("planted")

    sleeper = Sleeper()
    with pytest.raises(OSError, match="planted"), turns.Guard() as guard:
        turns.Program("sleeps", guard, asynchronous=False).add(sleeper)
        fail()
    eventually(sleeper.ended)
    sleeper.kill()


def test_a_process_that_ends_is_told_with_its_log() -> None:
    with turns.Guard() as guard, turns.Program("sleeps", guard, asynchronous=False) as program:
        os.killpg(program.add(Sleeper()).pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"sleeps: sleeper ended\n---- sleeper\nits last words"):
            program.turn(3)
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(program.members[0].pid)
