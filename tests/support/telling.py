"""A strategy from outside whose workers tell of themselves what only they know, into a file beside their log.

`plain` tells; `daemon` also leaves a process in a session of its own that was never exec'd, `hidden` one whose
environment is empty and whose parent has ended; `large` also touches some hundred MB. `nccl` writes into
NCCL_DEBUG_FILE as NCCL does: rank 0 with InfiniBand, the others with sockets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from scaling.frameworks.base import Trainer
from scaling.frameworks.fake.strategy import Fake, FakeTrainer
from scaling.frameworks.network_env import nccl_log
from scaling.records.point import Record
from scaling.records.task import Task
from tests.support.points import changed

MODULE = "tests.support.telling"
MODES = ("plain", "daemon", "hidden", "large", "nccl")
LARGE_BYTES = 300 << 20


class Told(Record, frozen=True, kw_only=True):
    """Of a worker: `fds` are what its descriptors point to, `modules` those that were imported before its own."""

    pid: int
    parent: int
    session: int
    group: int
    affinity: list[int]
    environ: dict[str, str]
    fds: dict[int, str]
    modules: list[str]


CHOSEN = {
    True: ("Using network IB", "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA"),
    False: ("Using network Socket", "Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0"),
}


class Telling(Fake):
    """Like the fake one, but for its trainer; `nccl` is told what strategies with NCCL are told on GPUs."""

    names: tuple[str, ...] = tuple(f"{MODULE}:{mode}" for mode in MODES)  # type: ignore[assignment]
    trainer = MODULE

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        on_gpus = replace(task, point=changed(task.point, device="cuda"))
        log = nccl_log(on_gpus) if _mode(task) == "nccl" else {}
        return {**super().environ(task, announced), **log}


def _mode(task: Task) -> str:
    return task.point.strategy.partition(":")[2]


def told(task: Task) -> Told:
    return msgspec.json.decode(Path(f"{task.log}.told").read_bytes(), type=Told)


def connect(task: Task) -> Trainer:
    one = Told(
        pid=os.getpid(), parent=os.getppid(), session=os.getsid(0), group=os.getpgrp(),
        affinity=sorted(os.sched_getaffinity(0)), environ=dict(os.environ), fds=_fds(),
        modules=sorted(sys.modules),
    )  # fmt: skip
    Path(f"{task.log}.told").write_bytes(msgspec.json.encode(one))
    mode = _mode(task)
    if mode == "nccl" and (name := os.environ.get("NCCL_DEBUG_FILE", "")).endswith("%p"):
        lines = [f"node1:{os.getpid()}:1 [0] NCCL INFO {line}" for line in CHOSEN[task.rank == 0]]
        Path(name.replace("%p", str(os.getpid()))).write_text("\n".join(lines))
    if mode == "daemon":
        _leave_a_daemon()
    trainer = FakeTrainer(task)
    if mode == "hidden":
        _hide_a_daemon(task)
    if mode == "large":
        trainer.ballast = bytearray(os.urandom(1 << 20)) * (LARGE_BYTES >> 20)  # type: ignore[attr-defined]
    return trainer


def _fds() -> dict[int, str]:
    found = {}
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # that of the listing itself
            found[int(link.name)] = str(link.readlink())
    return found


def _leave_a_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(3600)


def daemon_of(task: Task) -> int:
    """The pid of what `hidden` has left."""
    return int(Path(f"{task.log}.daemon").read_text())


def _hide_a_daemon(task: Task) -> None:
    script = f"sleep 3600 & echo $! > {task.log}.daemon"
    subprocess.run(["/bin/sh", "-c", script], env={}, start_new_session=True, check=True)
