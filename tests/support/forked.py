"""Children of this process that are fresh, or forks of a process that has imported the fake framework."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Child, Starter
from scaling.agent.environment import child_environ
from scaling.hosts.proc import adopt_orphans
from scaling.records.events import Event, Exit, Ready, Result, Window
from scaling.records.task import Finish, Run, Task
from tests.support.children import marked
from tests.support.points import TASK, changed
from tests.support.waiting import eventually

IMPORTED = "scaling.frameworks.fake.strategy"
BASE = {**os.environ, "PLANTED": "by the agent"}
HANGS = "import pathlib, time; pathlib.Path(__file__).with_suffix('.begun').touch(); time.sleep(3600)"
STEP = Run(windows=1, steps=2, measured=True)


def beside(folder: Path) -> dict[str, str]:
    """An environment in which the modules of a folder are found, and these tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}


@contextmanager
def adopting() -> Iterator[None]:
    """Adopt orphans as an agent does, and leave nothing; what a test that fails has left is killed."""
    adopt_orphans()
    yield
    left = list(marked(os.getpid()))
    for process in left:
        with suppress(psutil.Error, ChildProcessError):
            process.kill()
            os.waitpid(process.pid, 0)
    assert not left


def preload(*modules: str, **changes: object) -> None:
    """From now on, fork servers of the fake framework import these modules."""
    frameworks.FRAMEWORKS["fake"] = replace(frameworks.FRAMEWORKS["fake"], preload=modules, **changes)


def task_of(folder: Path, strategy: str = "fake:a", attempt: int = 1, **script: object) -> Task:
    """A worker's task on the first CPU."""
    options = {"step_s": "0.001", **{key: str(value) for key, value in script.items()}}
    return replace(
        TASK,
        point=changed(TASK.point, strategy=strategy, options=options),
        attempt=attempt,
        cpus=(min(os.sched_getaffinity(0)),),
        threads=1,
        log=str(folder / f"{attempt}.log"),
    )


def child_of(starter: Starter, task: Task, base: Mapping[str, str] = os.environ) -> Child:
    """A child of this task, in whatever way the starter can."""
    return Child(task, child_environ(base, task, {"ASKED": "by the strategy"}), start=starter.start)


def started(starter: Starter, task: Task, way: str = "forked", base: Mapping[str, str] = os.environ) -> Child:
    """A child in this way; `forked` by a server that is ready."""
    child = child_of(starter, settled(starter, replace(task, fresh=way == "fresh")), base)
    assert is_forked(child.pid) == (way == "forked")
    return child


def settled(starter: Starter, task: Task) -> Task:
    """Have the fork server for a task ready, or given up."""
    starter.preload(task)
    eventually(starter.settled)
    return task


def starts_fresh(starter: Starter, task: Task, base: Mapping[str, str] = os.environ) -> None:
    """Assert that a child of this task is no fork, and as good as one."""
    child = child_of(starter, task, base)
    assert not is_forked(child.pid)
    assert well(child)


def is_forked(pid: int) -> bool:
    """Whether a process shows the command line of a fork server. One that is being started shows this one's."""
    eventually(lambda: b"scaling.worker" in _command(pid))
    return b"scaling.worker.fork_server" in _command(pid)


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def server_of(starter: Starter) -> psutil.Process:
    (server,) = starter._servers.values()
    return psutil.Process(server._process.pid)


def heard(child: Child, kind: type[Event]) -> Event:
    """The next event of a kind."""
    found: list[Event] = []

    def said() -> list[Event]:
        is_over = child.ended()  # first: what it said before is then there
        found.extend(child.events())
        wanted = [event for event in found if isinstance(event, kind)]
        assert wanted or not is_over, found
        return wanted

    return eventually(said)[0]


def ended(child: Child) -> Exit:
    eventually(child.ended)
    return child.reap()


def end(child: Child) -> Exit:
    def is_over() -> bool:
        child.pursue(time.monotonic())
        return child.ended()

    child.end(time.monotonic(), grace_s=1.0)
    eventually(is_over)
    return child.reap()


def trained(child: Child) -> Exit:
    child.tell(STEP)
    window = heard(child, Window)
    assert isinstance(window, Window) and window.steps == STEP.steps
    child.tell(Finish())
    heard(child, Result)
    return ended(child)


def well(child: Child) -> bool:
    """Whether it becomes ready, trains and ends as it should."""
    heard(child, Ready)
    return trained(child) == Exit()


def hold(way: str, folder: str, module: str, strategy: str) -> None:
    """As an agent: start a child, stop it, say its pid and that of the fork server, and do nothing any more."""
    adopt_orphans()
    preload(module)
    starter, task = Starter(os.environ), task_of(Path(folder), strategy)
    if way == "importing":
        starter.preload(task)
        pids = []
    else:
        child = started(starter, task, way)
        heard(child, Ready)
        child.pause()
        pids = [child.pid]
    print(*pids, *(server._process.pid for server in starter._servers.values()), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    hold(*sys.argv[1:])
