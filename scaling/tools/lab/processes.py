"""Processes of a lab, found by their network namespace, and of a run, found by a mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from scaling.errors import LaunchError
from scaling.records.point import Record
from scaling.tools.lab.remote import NAME, RUN
from scaling.tools.lab.state import Lab, Program, start_ticks

GRACE_S, PATIENCE_S = 2.0, 15.0


class Run(Record, frozen=True, kw_only=True):
    """The active run, or a process that it left behind. `mark` is RUN in the environment of all its processes."""

    program: Program
    mark: str
    since_unix_s: float
    command: tuple[str, ...]

    @property
    def told(self) -> str:
        return f"pid {self.program.pid}: {' '.join(self.command)}"


def living(lab: Lab, rooms: Collection[str] | None = None) -> list[int]:
    """List pids in the nodes and the switch, or only in `rooms`. Without the holder the kernel may reuse an inode,
    so only processes with the lab's name in their environment count."""
    inodes = {inode for room, inode in lab.holder.inodes.items() if rooms is None or room in rooms}
    sure = lab.holder.program.lives
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [
        pid
        for pid in sorted(pids)
        if pid != os.getpid() and _network(pid) in inodes and (sure or carries(pid, NAME, lab.name))
    ]


def _network(pid: int) -> int | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return None


def carries(pid: int, key: str, value: str) -> bool:
    with suppress(OSError):
        return f"{key}={value}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def run_on(lab: Lab) -> Run | None:
    """Find the active run: its `lab run` lives, or processes that it left behind."""
    try:
        run = msgspec.json.decode((lab.folder / "run.json").read_bytes(), type=Run)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    if run.program.lives:
        return run
    left = [Program(pid=pid, start_ticks=start_ticks(pid) or 0) for pid in of_run(lab, run)]
    return replace(run, program=left[0]) if left else None


def of_run(lab: Lab, run: Run) -> list[int]:
    return [pid for pid in living(lab) if carries(pid, RUN, run.mark)]


def end(find: Callable[[], list[int]]) -> None:
    """End all processes that `find` finds: SIGTERM, after GRACE_S SIGKILL. Raises LaunchError if one survives."""
    _signal(find(), signal.SIGTERM)
    began_s = time.monotonic()
    while left := find():
        waited_s = time.monotonic() - began_s
        if waited_s > PATIENCE_S:
            raise LaunchError(f"process {left[0]} survives SIGKILL; ps -o wchan shows what it waits for")
        if waited_s > GRACE_S:
            _signal(left, signal.SIGKILL)
        time.sleep(0.02)


def end_program(program: Program) -> None:
    end(lambda: [program.pid] if program.lives else [])


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
