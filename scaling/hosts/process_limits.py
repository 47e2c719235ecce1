"""Find the limit of processes and threads that made a fork or a thread fail, for messages.

The kernel only answers EAGAIN, "Resource temporarily unavailable".
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling.hosts import proc

# Messages of Python, libgomp, OpenBLAS and TensorFlow, in lower case.
CLEAR = ("can't start new thread", "pthread_create failed", "pthread_create() failed", "thread creation failed")
VAGUE = "resource temporarily unavailable"
# A limit counts as reached from this part on: processes may have ended since.
REACHED = 0.9


class Limit(NamedTuple):
    """A limit of processes and threads, their number, and how to raise it."""

    name: str
    most: int
    used: int
    mend: str


def hint(text: str, root: Path = proc.ROOT, *, is_fork: bool = False) -> str:
    """Return `; pids.max of the cgroup is 64, 64 in use: raise it (...)` for the limit with the least room.
    "" unless `text` says that no process or thread could be made, or `is_fork` is set."""
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
