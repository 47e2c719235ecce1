"""Who lives in a lab: processes in its network namespaces, found by the kernel's identity of these, and the
processes of a run among them, found by the mark in their environment."""

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
    """The run that is on: its process (of `lab run`; when that was killed, one that it left behind), the mark
    that all its processes carry in their environment as RUN, since when, and its arguments."""

    program: Program
    mark: str
    since_unix_s: float
    command: tuple[str, ...]

    @property
    def told(self) -> str:
        """For people: pid and arguments."""
        return f"pid {self.program.pid}: {' '.join(self.command)}"


def living(lab: Lab, rooms: Collection[str] | None = None) -> list[int]:
    """Pids of the processes in the nodes (and the switch), or in these alone; not this process.

    When the holder is gone the kernel may have given the identity of a namespace to another; then only those
    count that carry the lab's name in their environment.
    """
    inodes = {inode for room, inode in lab.holder.inodes.items() if rooms is None or room in rooms}
    sure = lab.holder.program.lives
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [
        pid
        for pid in sorted(pids)
        if pid != os.getpid() and _network(pid) in inodes and (sure or carries(pid, NAME, lab.name))
    ]


def _network(pid: int) -> int | None:
    """The identity of its network namespace; None when it has ended or is not ours to see."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return None


def carries(pid: int, key: str, value: str) -> bool:
    """Whether a process was started with this in its environment."""
    with suppress(OSError):
        return f"{key}={value}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def run_on(lab: Lab) -> Run | None:
    """The run that is on: its `lab run` lives, or processes that it left behind do."""
    try:
        run = msgspec.json.decode((lab.folder / "run.json").read_bytes(), type=Run)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    if run.program.lives:
        return run
    left = [Program(pid=pid, start_ticks=start_ticks(pid) or 0) for pid in of_run(lab, run)]
    return replace(run, program=left[0]) if left else None


def of_run(lab: Lab, run: Run) -> list[int]:
    """Pids of a run's processes in the lab."""
    return [pid for pid in living(lab) if carries(pid, RUN, run.mark)]


def end(find: Callable[[], list[int]]) -> None:
    """End all that `find` finds, by TERM and, after GRACE_S, by KILL, until it finds none. Raises LaunchError
    when one does not even go by that."""
    _signal(find(), signal.SIGTERM)
    began_s = time.monotonic()
    while left := find():
        waited_s = time.monotonic() - began_s
        if waited_s > PATIENCE_S:
            raise LaunchError(
                f"process {left[0]} does not end, not even killed; see what it waits for (ps -o wchan)"
            )
        if waited_s > GRACE_S:
            _signal(left, signal.SIGKILL)
        time.sleep(0.02)


def end_program(program: Program) -> None:
    """The same for one process."""
    end(lambda: [program.pid] if program.lives else [])


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
