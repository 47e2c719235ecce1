"""What happens to the children when the agent itself is gone."""

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

from scaling.records.events import Ended, Event, Failed, Ready
from scaling.records.messages import ENCODER, SWEEP_DECODER, Assign, Release, Report
from tests.support.children import marked
from tests.support.inline import Launch
from tests.support.points import TASK
from tests.support.waiting import eventually

AGENT = """
import sys
from pathlib import Path
from tests.support.inline import Launch

class Telling:
    told = False
    def __getattr__(self, name):
        return lambda *args: None
    def progress(self, state):
        if state.phase == "warming" and not self.told:
            self.told = True
            print(*(rank.pid for rank in state.ranks), flush=True)

Launch(2, real=True).sweep(Path(sys.argv[1]), option=["fail=hang", "fail_world=2", "step_s=0.002"], view=Telling(),
                           strategy=["fake:a"], world_sizes=[2], kinds=["exchange"], windows=3, window_s=0.01)
"""


def test_no_worker_survives_a_killed_agent(tmp_path: Path) -> None:
    """One of them hangs in its step, the other waits for a command."""
    command = [sys.executable, "-c", AGENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            workers = [psutil.Process(int(pid)) for pid in agent.stdout.readline().split()]
            assert set(workers) <= set(marked(agent.pid))
            eventually(lambda: hanging(workers, tmp_path) == 1)
        finally:
            agent.kill()
    gone, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert len(gone) == 2


def hanging(workers: list[psutil.Process], results: Path) -> int:
    """How many say in their logs that they hang in their step: on this signal they write where they are."""
    for worker in workers:
        os.kill(worker.pid, signal.SIGUSR1)
    return sum("_hang" in log.read_text() for log in results.glob("*/logs/*.log"))


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
    assert ended.exit.reason == Failed(cause="cancelled", message="seen")
    assert -ended.exit.code in ended.exit.signals
    assert not (tmp_path / "gave-up").exists()


def heard(launch: Launch, kind: type[Event], within_s: float = 60.0) -> Event | None:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        launch.turn()
        launch.agents[0].wait()
        while (message := launch.hub.rank(0).receive("sweep")) is not None:
            for said in SWEEP_DECODER.decode(message[1]):
                if isinstance(said, Report) and isinstance(said.event, kind):
                    return said.event
    return None
