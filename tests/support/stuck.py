"""An end to what a test still waits for after its time is over.

pytest-timeout raises in the test once. On its way out the test leaves `with subprocess.Popen(...)`, which waits
for the child for ever.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

import psutil

GRACE_S = 30.0  # for a test to end its children by itself


def free_after_alarm(grace_s: float = GRACE_S) -> None:
    """Let the alarm that is set have others after it, every `grace_s`, that kill this process's children."""
    ends_test = signal.getsignal(signal.SIGALRM)
    assert callable(ends_test), "no alarm is set"

    def alarm(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, lambda _number, _frame: kill_children())
        signal.setitimer(signal.ITIMER_REAL, grace_s, grace_s)
        ends_test(number, frame)

    signal.signal(signal.SIGALRM, alarm)


def kill_children() -> None:
    """Kill whatever descends from this process."""
    for child in psutil.Process(os.getpid()).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()
