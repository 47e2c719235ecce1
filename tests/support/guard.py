"""What a unit test must not do: start a process, sleep, open a connection, import a framework, wait for the disk
or for a real core's canary.

The interpreter tells of each by an audit event (docs.python.org/3/library/audit_events.html); a hook cannot be
taken away again, so this one is told when to look. Of a sleep no event tells before Python 3.13.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from socket import AF_INET, AF_INET6
from typing import Any

# The first import of these starts a process, in some releases: now, and not in a test.
import matplotlib.font_manager  # noqa: F401  (fc-list, if a machine has no list of its fonts yet)
import numpy.testing  # noqa: F401  (lscpu)
import pyroute2  # type: ignore[import-untyped, unused-ignore]  # noqa: F401  (file)
import pytest

from scaling.quiet import agent
from scaling.quiet.canary import Canary

FRAMEWORKS = {"torch", "torchvision", "tensorflow", "keras", "mxnet", "jax", "horovod"}
PROCESSES = {
    "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec", "pty.spawn",
}  # fmt: skip
ELSEWHERE = {
    **dict.fromkeys(PROCESSES, "starts a process: its place is tests/process"),
    "time.sleep": "sleeps: give what it tests a clock (tests/support/inline.py has one)",
    "socket.bind": "takes a port: its place is tests/process",
    "socket.connect": "connects: its place is tests/process",
    "socket.getaddrinfo": "asks for a host's address: its place is tests/process",
}
STEADY_S = 0.006
_watched: list[str] = []


@contextmanager
def watched(what: str) -> Iterator[None]:
    """Fail whatever does such a thing meanwhile, in any thread."""
    _watched.append(what)
    try:
        yield
    finally:
        _watched.pop()


def refusal(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Why a unit test may not do this."""
    if event == "import" and arguments[0].partition(".")[0] in FRAMEWORKS:
        return f"imports {arguments[0]}: its place is tests/frameworks"
    if event in ("socket.bind", "socket.connect") and arguments[0].family not in (AF_INET, AF_INET6):
        return None
    return ELSEWHERE.get(event)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and (reason := refusal(event, arguments)):
        # It is no Exception, which the code under test might take for a call that failed.
        pytest.fail(f"{_watched[-1]} {reason}")


def _sleep(seconds: Any) -> None:
    _hook("time.sleep", (seconds,))
    _really_sleep(seconds)


def _fsync(fd: Any) -> None:
    """Only a power cut could tell, and a slow disk would make minutes of it."""
    if not _watched:
        _really_fsync(fd)


def _tried(cpus: Collection[int]) -> Canary:
    """Who else uses a real core has no say in a test: only what it has scripted does."""
    if _watched and (agent.measure, agent.queued_s) == _really_measured:
        return Canary(STEADY_S)
    return _really_tried(cpus)


_really_sleep, _really_fsync = time.sleep, os.fsync
_really_tried, _really_measured = agent.tried, (agent.measure, agent.queued_s)
time.sleep, os.fsync, agent.tried = _sleep, _fsync, _tried
sys.addaudithook(_hook)
