"""What limits the number of processes and threads here, for messages of failures that ran into it.

The kernel answers a fork or a new thread beyond a limit with EAGAIN, "Resource temporarily unavailable", and does
not name the limit.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling.hosts import proc

# Words of failures in lower case: those of Python, libgomp, OpenBLAS and TensorFlow say what failed, ...
CLEAR = ("can't start new thread", "pthread_create failed", "pthread_create() failed", "thread creation failed")
# ... while std::system_error says no more than the kernel does, and so do sockets.
VAGUE = "resource temporarily unavailable"
# A limit is reached, or was just before its processes died, if so much of it is in use.
REACHED = 0.9


class Limit(NamedTuple):
    """A limit of processes and threads, how many there are, and how it is raised."""

    name: str
    most: int
    used: int
    mend: str


def hint(text: str, root: Path = proc.ROOT, *, is_fork: bool = False) -> str:
    """Name the limit that has least room, `; pids.max of the cgroup is 64, 64 in use: raise it (...)`, if words
    of a failure say that no process or thread could be made, or `is_fork` does; else ""."""
    words = text.lower()
    is_clear = is_fork or any(one in words for one in CLEAR)
    if not is_clear and VAGUE not in words:
        return ""
    one = min(_limits(root), key=lambda limit: limit.most - limit.used, default=None)
    if one is None or not (is_clear or one.used >= REACHED * one.most):
        return ""
    return f"; {one.name} is {one.most}, {one.used} in use: raise it ({one.mend}), or use fewer ranks"


def _limits(root: Path) -> Iterator[Limit]:
    for most, used in proc.pids(root):
        mend = "docker --pids-limit, Kubernetes podPidsLimit, systemd TasksMax"
        yield Limit("pids.max of the cgroup", most, used, mend)
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY:
        yield Limit("ulimit -u", most, _threads(), "ulimit -u unlimited; limits.d: `* - nproc unlimited`")


def _threads() -> int:
    mine = psutil.Process().uids().real
    every = psutil.process_iter(["uids", "num_threads"])
    return sum(one.info["num_threads"] or 0 for one in every if one.info["uids"] and one.info["uids"].real == mine)
