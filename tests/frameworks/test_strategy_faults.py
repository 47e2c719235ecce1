"""A worker or a helper of a real strategy is killed amid the windows: its point fails with that cause, the
others are ended, no process and no port is left, and the next point runs."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from scaling import frameworks
from scaling.records.events import Failed, Finished
from scaling.records.run import PointRecord
from scaling.records.task import Task
from scaling.sweep.state import PointState
from tests.support import kept_forks
from tests.support.children import nothing_left
from tests.support.inline import Launch
from tests.support.matrix import cases
from tests.support.ranks import ports_of, tasks

# Workers alone, with servers, in one process, by Horovod: each of these once, in each framework; and over NCCL.
KINDS = [
    "torch:gloo", "torch:ps-async", "tensorflow:ring", "mxnet:dist_async", "mxnet:horovod", "mxnet:local",
    "torch:nccl", "tensorflow:nccl", "mxnet:nccl",
]  # fmt: skip
STALL_S = 60.0
QUICK: dict[str, Any] = {
    "kinds": ["exchange"], "world_sizes": [2], "windows": 20, "window_s": 0.05, "batch_size": 4,
    "stall_timeout_s": STALL_S,
}  # fmt: skip


class Striker:
    """A view that, in each round but the last, kills another child of the point once windows are measured:
    the last worker, then one helper of each kind."""

    def __init__(self) -> None:
        self.struck: dict[int, str] = {}
        self.tasks: list[Task] = []

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args: None

    def progress(self, state: PointState) -> None:
        number = state.point.round
        if state.phase != "measuring" or not state.ranks[0].windows or number in self.struck:
            return
        self.tasks.append(state.ranks[0].task)
        victims = [("worker", state.ranks[-1].pid), *kinds(state).items()]
        role, pid = victims[number] if number < len(victims) else ("", 0)
        self.struck[number] = role
        if pid:
            os.kill(pid, signal.SIGKILL)


def kinds(state: PointState) -> dict[str, int]:
    """The pid of the last helper of each kind: `server-1` and `server-0` are of one."""
    return {helper.task.role.partition("-")[0]: helper.pid for helper in state.helpers}


def helper_kinds(name: str) -> int:
    task = tasks(name, "exchange", 2)[0]
    return len({helper.name.partition("-")[0] for helper in frameworks.load(name).helpers(task)})


@pytest.mark.parametrize("name", cases(frameworks.NAMES, KINDS))
def test_a_killed_child_is_the_cause_and_the_sweep_goes_on(name: str, tmp_path: Path) -> None:
    module = frameworks.load(name)
    if reason := module.missing(name):
        pytest.skip(reason)
    if "cpu" not in module.devices(name):
        pytest.skip("needs GPUs")
    view: Any = Striker()
    strikes = 1 + helper_kinds(name)
    launch = Launch(2, real=True, start=kept_forks.fork)
    found = launch.sweep(tmp_path, view=view, strategy=[name], rounds=strikes + 1, **QUICK)
    records = {record.point.round: record for record in found.records}
    assert len(records) == strikes + 1
    for number in range(strikes):
        assert number in view.struck, records[number].outcome
        is_the_cause(records[number], view.struck[number])
    assert isinstance(records[strikes].outcome, Finished), records[strikes].outcome
    nothing_left()
    for task in view.tasks:
        for port in ports_of(task):
            with socket.socket() as probe:
                assert probe.connect_ex((task.address, port)) != 0, f"somebody still listens on {port}"


def is_the_cause(record: PointRecord, role: str) -> None:
    outcome = record.outcome
    assert isinstance(outcome, Failed), f"{role} was killed and the point went on"
    assert outcome.cause == "crash(SIGKILL)", (role, outcome)
    if role == "worker":
        assert outcome.message == "ended by SIGKILL"
        assert outcome.rank == len(record.ranks) - 1
    else:
        assert outcome.message.startswith(f"helper {role}")
        (helper,) = [one for one in record.helpers if outcome.message.startswith(f"helper {one.name}:")]
        assert outcome.rank == helper.launch_rank
