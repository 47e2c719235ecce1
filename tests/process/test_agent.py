"""What happens to the children when the agent itself is gone, and what a child's environment holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from scaling.agent.child import MARK, child_environ
from scaling.records.events import Ended, Event, Failed, Ready
from scaling.records.messages import ENCODER, SWEEP_DECODER, Assign, Release, Report
from scaling.records.task import Task
from tests.support.inline import Launch
from tests.support.points import make_point

POINT = make_point(
    strategy="fake:a", kind="exchange", world_size=1, round=0, model="digits-cnn", data="digits",
    device="cpu", batch_rule="weak", batch_size=32,
)  # fmt: skip
TASK = Task(
    point=POINT, attempt=1, rank=0, launch_rank=0, local_rank=0, local_world_size=1, hosts=("node1",),
    device_index=0, cpus=(), threads=3, seed=1, log="log",
)  # fmt: skip


def test_a_worker_does_not_see_the_launcher() -> None:
    base = {
        "OMPI_COMM_WORLD_RANK": "1",
        "PMIX_RANK": "1",
        "PMI_SIZE": "2",
        "PRTE_X": "",
        "HYDRA_X": "",
        "HOME": "/h",
    }
    environ = child_environ(base, TASK, {"MASTER_ADDR": "127.0.0.1"})
    assert environ["HOME"] == "/h"
    assert environ["MASTER_ADDR"] == "127.0.0.1"
    assert environ["OMP_NUM_THREADS"] == "3"
    assert not [key for key in environ if key.startswith(("OMPI_", "PMI", "PRTE_", "HYDRA_"))]


AGENT = """
import sys
from pathlib import Path
from tests.support.inline import Launch
Launch(2, real=True).sweep(Path(sys.argv[1]), option=["fail=hang", "fail_world=2", "step_s=0.002"],
                           strategy=["fake:a"], world_sizes=[2], kinds=["exchange"], windows=3, window_s=0.01)
"""


def test_no_worker_survives_a_killed_agent(tmp_path: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)])
    try:
        workers = wait_for(agent.pid, 2)
        agent.send_signal(signal.SIGKILL)
    finally:
        agent.kill()
        agent.wait()
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert len(gone) == 2


def wait_for(pid: int, count: int, within_s: float = 20.0) -> list[psutil.Process]:
    """The marked children of `pid`, once there are so many and they hang in their step."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        mark = f"{MARK}={pid}-".encode()
        found = [child for child in psutil.Process(pid).children() if mark in environ_of(child.pid)]
        if len(found) == count:
            time.sleep(0.5)
            return found
        time.sleep(0.05)
    raise AssertionError(f"{pid} has not started {count} workers within {within_s} s")


def environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


LATE = """#!/bin/sh
# Reads nothing until `go` is there, for ten seconds at most.
tries=0
while [ ! -e '{folder}/go' ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
[ -e '{folder}/go' ] || : > '{folder}/gave-up'
exec '{python}' "$@"
"""


def test_a_task_longer_than_a_pipe_takes_does_not_block_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "python"
    late.write_text(LATE.format(folder=tmp_path, python=sys.executable))
    late.chmod(0o755)
    hosts = tuple(f"a-host-with-a-long-name-{number}" for number in range(20_000))
    task = replace(TASK, hosts=hosts, log=str(tmp_path / "log"))
    assert len(msgspec.json.encode(task)) > 5 * 65536
    launch = Launch(1, real=True)
    monkeypatch.setattr(sys, "executable", str(late))
    launch.hub.rank(0).send(0, "agent", ENCODER.encode(Assign(task=task)))
    for _ in range(3):
        launch.turn()
    assert launch.agents[0].busy
    assert not (tmp_path / "gave-up").exists()
    (tmp_path / "go").touch()
    # It says that it is ready once it has read all of its task.
    assert isinstance(heard(launch, Ready), Ready)
    launch.hub.rank(0).send(0, "agent", ENCODER.encode(Release(attempt=task.attempt, reason="seen")))
    ended = heard(launch, Ended)
    assert isinstance(ended, Ended)
    assert ended.outcome == Failed(cause="cancelled", message="seen", log=task.log)
    assert not (tmp_path / "gave-up").exists()


def heard(launch: Launch, kind: type[Event], within_s: float = 60.0) -> Event | None:
    """The next event of a kind that rank 0 is told."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        launch.turn()
        launch.agents[0].wait()
        while (message := launch.hub.rank(0).receive("sweep")) is not None:
            for said in SWEEP_DECODER.decode(message[1]):
                if isinstance(said, Report) and isinstance(said.event, kind):
                    return said.event
    return None


def test_the_mark_is_this_process() -> None:
    assert MARK not in os.environ
