"""Children of this process's agents, found by the mark that each carries in its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from scaling.records.task import CHILD_MARK


def marked(pid: int) -> Iterator[psutil.Process]:
    """Every process that descends from a child of the agents of `pid`."""
    mark = f"{CHILD_MARK}={pid}-".encode()
    return (process for process in psutil.process_iter() if mark in environ_of(process.pid))


def environ_of(pid: int) -> bytes:
    """What a process was started with, empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def nothing_left() -> None:
    """Assert that no process carries the mark of a child of this process."""
    assert not list(marked(os.getpid()))
