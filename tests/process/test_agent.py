"""What happens to the children when the agent itself is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.children import marked
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
