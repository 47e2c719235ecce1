"""Waiting in tests: for a condition, up to a limit; never for a time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")
LIMIT_S = 60.0
PAUSE_S = 0.01


def eventually(
    ask: Callable[[], Answer],
    said: Callable[[], Any] = str,
    *,
    within_s: float = LIMIT_S,
    every_s: float = PAUSE_S,
    of: subprocess.Popen[Any] | None = None,
) -> Answer:
    """The first answer of `ask` that is true; AssertionError with what `said` tells where none comes in time, or
    where the process `of` which it is asked has ended."""
    limit_s = time.monotonic() + within_s
    while not (answer := ask()):
        assert of is None or of.poll() is None, f"{answer!r}, and it has ended: {said()}"
        assert time.monotonic() < limit_s, f"still {answer!r} after {within_s:g} s: {said()}"
        time.sleep(every_s)
    return answer
