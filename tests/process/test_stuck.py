"""A test whose time is over ends even where it waits for a child that does not."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support import stuck


class OverError(Exception):
    """As pytest-timeout's in a test."""


@pytest.fixture
def alarm() -> Iterator[None]:
    def over(_number: int, _frame: object) -> None:
        raise OverError

    timer, handler = signal.getitimer(signal.ITIMER_REAL), signal.signal(signal.SIGALRM, over)
    yield
    signal.setitimer(signal.ITIMER_REAL, *timer)
    signal.signal(signal.SIGALRM, handler)


def test_a_test_that_waits_for_its_child_ends(alarm: None) -> None:
    stuck.free_after_alarm(grace_s=0.1)
    with pytest.raises(OverError), subprocess.Popen(["sleep", "1000"]) as child:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        child.wait()
    assert child.returncode == -signal.SIGKILL


def test_every_test_has_it() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    assert getattr(handler, "__module__", None) == stuck.__name__
