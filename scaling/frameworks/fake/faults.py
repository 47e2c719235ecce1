"""The faults that the scripted strategy plants in a worker."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeAlias

from scaling.records.task import Task

# Above the limit of a test's cgroup, below the memory of any machine.
EATEN_BYTES = 1 << 30


def fault(name: str) -> str:
    """Check a fault's name. Raises ValueError for any other word."""
    if name and name not in (*FAULTS, *LEAVING_FAULTS, *EARLY_FAULTS, *ELSEWHERE):
        raise ValueError(name)
    return name


def _raise(task: Task) -> None:
    raise RuntimeError(f"scripted failure of rank {task.rank}")


def _out_of_memory(_: Task) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, hard))
    try:
        bytearray(2 << 30)
    finally:  # tests run this in their own process
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _eat(_: Task) -> None:
    # Written pages: the kernel does not back untouched ones with memory.
    bytearray(b"x") * EATEN_BYTES


def _print(_: Task) -> None:
    for _line in range(5 * 1024):
        sys.stdout.write("x" * 1023 + "\n")


def _hang(_: Task) -> None:
    time.sleep(3600)


def _fork(_: Task) -> None:
    # One stays in the worker's group, the other starts its own session.
    subprocess.Popen(["sleep", "3600"])
    subprocess.Popen(["sleep", "3600"], start_new_session=True)


def _port(task: Task) -> None:
    if task.retry == 0:
        raise OSError(errno.EADDRINUSE, f"Address already in use: port {task.ports[0]}")


def _port_always(_: Task) -> None:
    raise OSError(errno.EADDRINUSE, "Address already in use")


Fault: TypeAlias = Callable[[Task], object]
FAULTS: dict[str, Fault] = {
    "raise": _raise,
    "exit-0": lambda _: os._exit(0),
    "segfault": lambda _: ctypes.string_at(0),
    "bus": lambda _: os.kill(os.getpid(), signal.SIGBUS),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "oom": _out_of_memory,
    "eat": _eat,
    "print": _print,
    "hang": _hang,
    "fork": _fork,
}
LEAVING_FAULTS: dict[str, Fault] = {
    "hang-leaving": _hang,
    "raise-leaving": _raise,
    "abort-leaving": lambda _: os.abort(),
}
EARLY_FAULTS: dict[str, Fault] = {"hang-before-ready": _hang, "port": _port, "port-always": _port_always}
# The trainer, its tracer and the server have these.
ELSEWHERE = ("nan", "digest", "trace", "server")
