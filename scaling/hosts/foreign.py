"""Which processes of this host that are none of the launch's use its CPUs.

Read from /proc/PID/stat, some 15 us a process, only while somebody is suspected (agent/suspicion.py).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scaling.records.telemetry import Foreign
from scaling.text import one_line

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Of a core: who uses less is not named.
LEAST_CORES = 0.1
NAMED = 3
INIT = 1
ARGUMENTS = 2
NAME_LENGTH = 40


class _Process(NamedTuple):
    """One process: its name as the kernel has it, its parent, the CPU seconds that it has used, and those of its
    children that have ended and that it has waited for, with theirs."""

    name: str
    parent: int
    used_s: float
    children_s: float = 0.0


# One that was not there before has used all of it since.
NEW = _Process("", 0, 0.0)


class Census(NamedTuple):
    """All processes at one time."""

    at_s: float
    processes: dict[int, _Process]


def census(root: Path = Path("/proc")) -> Census:
    """Look at all processes that this one sees."""
    found = {int(folder.name): process for folder in root.iterdir() for process in _read(folder)}
    return Census(time.monotonic(), found)


def busiest(before: Census, now: Census, launcher: int | None = None) -> tuple[Foreign, ...]:
    """Who used the CPUs between the two, most first, processes of one name together; the descendants of `launcher`
    (by default this process's parent) and of this process are the launch's own, and so are its twins'. Whoever
    waited for children that have ended since, as `make` does, has used what they have."""
    ours = {os.getpid(), os.getppid() if launcher is None else launcher} - {0}
    if os.getpid() != INIT:
        ours -= {INIT}  # init's are nobody's
    over_s = now.at_s - before.at_s
    by_name: defaultdict[str, float] = defaultdict(float)
    gone_s = _gone_s(before, now)
    for pid, process in now.processes.items():
        old = before.processes.get(pid, NEW)
        used_s = process.used_s - old.used_s + max(0.0, process.children_s - old.children_s - gone_s[pid])
        if used_s >= LEAST_CORES * over_s and not _is_ours(pid, ours, now.processes):
            by_name[_command(pid, process.name)] += used_s
    found = sorted(by_name.items(), key=lambda item: -item[1])
    return tuple(Foreign(name=name, run_s=run_s, over_s=over_s) for name, run_s in found[:NAMED])


def _gone_s(before: Census, now: Census) -> defaultdict[int, float]:
    """By process, what those of its descendants had used before that have ended since: whoever waited for them is
    given all that they have used. Who that was is unknown where parents ended too, so it is taken from all."""
    found: defaultdict[int, float] = defaultdict(float)
    for pid, process in before.processes.items():
        if pid not in now.processes:
            for ancestor in _line(pid, before.processes)[1:]:
                found[ancestor] += process.used_s + process.children_s
    return found


def _read(folder: Path) -> Iterator[_Process]:
    """One, if it is still there. The command's name may hold spaces and brackets."""
    if not folder.name.isdecimal():
        return
    with suppress(OSError, IndexError, ValueError):
        head, _, tail = (folder / "stat").read_text().rpartition(")")
        fields = tail.split()
        used, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        yield _Process(head.partition("(")[2], int(fields[1]), used / TICKS_PER_S, children / TICKS_PER_S)


def _is_ours(pid: int, ours: Set[int], processes: dict[int, _Process]) -> bool:
    """Whether a process is one of `ours` or a descendant of one or of a twin of this process: a rank of the launch
    runs the same command under the same launcher, behind a shell or a container's starter of its own."""
    line = _line(pid, processes)
    if not ours.isdisjoint(line):
        return True
    mine = _line(os.getpid(), processes)
    common = {*line} & {*mine} - ({0, INIT} if INIT not in mine[1:2] else {0})
    return bool(common) and any(_arguments(one) == _arguments(os.getpid()) for one in line if one not in common)


def _line(pid: int, processes: dict[int, _Process]) -> list[int]:
    """A process, its parent, and so on. Processes end and begin while they are looked at, so that one may seem to
    be its own ancestor."""
    found = [pid]
    while found[-1] in processes and (parent := processes[found[-1]].parent) not in found:
        found.append(parent)
    return found


def _command(pid: int, name: str) -> str:
    """The program and its first arguments, which tell programs apart and not each run of one; its name where there
    are none (kernel threads)."""
    with suppress(ValueError):
        program, *arguments = _arguments(pid)
        text = one_line(" ".join((Path(program).name, *arguments[:ARGUMENTS])))
        return text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…"
    return name


def _arguments(pid: int) -> list[str]:
    """The words with which a process was started; none where the kernel does not tell."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return [word for word in words if word]
    return []
