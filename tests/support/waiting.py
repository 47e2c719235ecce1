"""Waiting in tests: for a condition, up to a limit; never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")
LIMIT_S = 60.0
PAUSE_S = 0.01


def eventually(ask: Callable[[], Answer], said: Callable[[], Any] = str, *, within_s: float = LIMIT_S) -> Answer:
    """The first answer of `ask` that is true; AssertionError with what `said` tells where none is in time."""
    limit_s = time.monotonic() + within_s
    while not (answer := ask()):
        assert time.monotonic() < limit_s, f"still {answer!r} after {within_s:g} s {said()}"
        time.sleep(PAUSE_S)
    return answer
