"""Children that are forks of a process that has imported their framework: as good as fresh ones, and as easy to be
rid of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Starter
from scaling.records.events import Exit, Ready, Window
from scaling.records.task import CHILD_MARK
from tests.support import forked, telling
from tests.support.children import environ_of, nothing_left
from tests.support.forked import (
    BASE,
    IMPORTED,
    STEP,
    beside,
    end,
    ended,
    heard,
    server_of,
    started,
    task_of,
    trained,
    well,
)  # fmt: skip
from tests.support.waiting import LIMIT_S, eventually

both = pytest.mark.parametrize("way", ["fresh", "forked"])


pytestmark = pytest.mark.usefixtures("adopting")


# ---------------------------------------------------------------- as good as fresh ones


@both
def test_it_trains_and_ends(starter: Starter, tmp_path: Path, way: str) -> None:
    child = started(starter, task_of(tmp_path), way)
    assert well(child)
    assert not psutil.pid_exists(child.pid)


def test_it_has_what_its_task_says_and_nothing_of_the_server_or_of_others(
    starter: Starter, tmp_path: Path
) -> None:
    """A fresh one and two forked ones at once: environment, CPUs, session and descriptors are alike."""
    name = f"{telling.MODULE}:plain"
    ways = ["fresh", "forked", "forked"]
    tasks = [task_of(tmp_path, name, attempt=number) for number in range(3)]
    children = [started(starter, task, way, BASE) for task, way in zip(tasks, ways, strict=True)]
    for child in children:
        heard(child, Ready)
    told = [telling.told(task) for task in tasks]
    server = server_of(starter).pid
    assert [one.parent for one in told] == [os.getpid(), server, server]
    for child, task, one in zip(children, tasks, told, strict=True):
        assert (one.pid, one.session, one.group) == (child.pid, child.pid, child.pid)
        assert one.affinity == list(task.cpus)
        assert one.environ[CHILD_MARK] == child.mark
        assert one.environ["PLANTED"] == "by the agent" and one.environ["ASKED"] == "by the strategy"
        # libffi keeps a descriptor of /proc, newer ones of itself
        own = {fd: at for fd, at in one.fds.items() if not at.startswith("/proc") and "/libffi." not in at}
        pipes = {target for target in own.values() if target.startswith("pipe:")}
        assert sorted(own.values()) == sorted(["/dev/null", task.log, task.log, *pipes]), own
        assert len(pipes) == 2
    assert len({target for one in told for target in one.fds.values() if target.startswith("pipe:")}) == 6
    own_words = (CHILD_MARK, "SCALING_EVENTS_FD")
    alike = [{name: value for name, value in one.environ.items() if name not in own_words} for one in told]
    assert alike[0] == alike[1] == alike[2]
    # And what it is for:
    assert [IMPORTED in one.modules for one in told] == [True] * 3
    assert all(end(child).code for child in children)


def test_what_was_imported_is_there_before_its_task(
    starter: Starter, preload: Callable[..., None], tmp_path: Path
) -> None:
    preload(IMPORTED, "wave")
    found = {}
    for number, way in enumerate(("fresh", "forked")):
        task = task_of(tmp_path, f"{telling.MODULE}:plain", attempt=number)
        child = started(starter, task, way)
        heard(child, Ready)
        found[way] = "wave" in telling.told(task).modules
        end(child)
    assert found == {"fresh": False, "forked": True}


def test_what_a_strategy_wants_imported_is_there_too_as_far_as_it_can_be(
    starter: Starter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What cannot is its own workers' to tell; of strategies of another framework nothing is."""
    name = f"{telling.MODULE}:plain"
    monkeypatch.setattr(frameworks.load(name), "preload", ("not_there", "wave"), raising=False)
    monkeypatch.setattr(frameworks.load("torch:gloo"), "preload", ("sndhdr",))
    starter.preload(task_of(tmp_path, name), (name, "torch:gloo"))
    child = started(starter, task_of(tmp_path, name))
    heard(child, Ready)
    found = telling.told(child.task).modules
    assert ("wave" in found, "sndhdr" in found) == (True, False)
    end(child)


FAULTS = {"raise": 1, "exit-0": 0, "segfault": -signal.SIGSEGV, "kill": -signal.SIGKILL, "oom": 1}


@both
@pytest.mark.parametrize("fault", FAULTS)
def test_how_it_ended_is_told_and_the_server_goes_on(
    starter: Starter, tmp_path: Path, way: str, fault: str
) -> None:
    child = started(starter, task_of(tmp_path, fail=fault, fail_step=2), way)
    heard(child, Ready)
    child.tell(STEP)
    seen = ended(child)
    assert seen.code == FAULTS[fault]
    if fault == "raise":
        assert "scripted failure of rank 0" in seen.log_tail
    if fault == "segfault":
        assert "scaling/frameworks/fake/strategy.py" in seen.log_tail
    assert well(started(starter, task_of(tmp_path, attempt=2), way))


def test_an_end_by_a_signal_without_a_name_is_told(starter: Starter, tmp_path: Path) -> None:
    child = started(starter, task_of(tmp_path), "fresh")
    heard(child, Ready)
    os.kill(child.pid, signal.SIGRTMIN + 6)
    assert ended(child).code == -(signal.SIGRTMIN + 6)


@both
def test_it_writes_its_stacks_where_it_hangs(starter: Starter, tmp_path: Path, way: str) -> None:
    child = started(starter, task_of(tmp_path, fail="hang", fail_step=1), way)
    heard(child, Ready)
    child.tell(STEP)

    def is_told() -> bool:
        os.kill(child.pid, signal.SIGUSR1)
        return "_hang" in Path(child.task.log).read_text()

    eventually(is_told)
    assert end(child).code == -signal.SIGTERM


# ---------------------------------------------------------------- stopped


@both
def test_one_that_is_stopped_goes_on_and_can_be_ended_while_it_is(
    starter: Starter, tmp_path: Path, way: str
) -> None:
    child = started(starter, task_of(tmp_path), way)
    heard(child, Ready)
    process = psutil.Process(child.pid)
    child.pause()
    eventually(lambda: process.status() == psutil.STATUS_STOPPED)
    child.tell(STEP)
    child.resume()
    heard(child, Window)
    child.pause()
    eventually(lambda: process.status() == psutil.STATUS_STOPPED)
    assert end(child).code == -signal.SIGTERM, "it heard of the TERM, not of the KILL alone"


@both
def test_a_stopped_one_that_ignores_its_end_is_killed(starter: Starter, tmp_path: Path, way: str) -> None:
    child = started(starter, task_of(tmp_path), way)
    heard(child, Ready)
    child.end(0.0, grace_s=0.0)
    os.killpg(child.pid, signal.SIGSTOP)  # as if it did not listen
    child.pursue(1.0)
    seen = ended(child)
    assert -seen.code in seen.signals


@pytest.mark.parametrize("way", ["fresh", "forked", "importing"])
def test_what_is_stopped_or_still_imports_ends_with_an_agent_that_is_killed(tmp_path: Path, way: str) -> None:
    """A stopped process does not see that its lifeline has ended, and one that imports looks at no socket."""
    (tmp_path / "hangs.py").write_text(forked.HANGS)
    module = "hangs" if way == "importing" else IMPORTED
    name, task = f"{telling.MODULE}:hidden", task_of(tmp_path)
    agent = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked", way, str(tmp_path), module, name],
        stdout=subprocess.PIPE, text=True, env=beside(tmp_path),
    )  # fmt: skip
    try:
        assert agent.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in agent.stdout.readline().split()]
        assert len(processes) == (1 if way != "forked" else 2)
        if way == "importing":
            eventually((tmp_path / "hangs.begun").exists)
        else:
            eventually(lambda: processes[0].status() == psutil.STATUS_STOPPED)
            processes.append(psutil.Process(telling.daemon_of(task)))
    finally:
        agent.kill()
        agent.communicate()
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_S)
    assert not alive


# ---------------------------------------------------------------- what is left


@both
@pytest.mark.parametrize(("strategy", "fault"), [("fake:a", "fork"), (f"{telling.MODULE}:daemon", "")])
def test_what_it_leaves_behind_is_found_by_its_mark(
    starter: Starter, tmp_path: Path, way: str, strategy: str, fault: str
) -> None:
    """Also a process that never exec'd: what the kernel shows as its environment is that of the fork server."""
    child = started(starter, task_of(tmp_path, strategy, fail=fault, fail_step=1), way)
    heard(child, Ready)
    assert f"{CHILD_MARK}={child.mark}".encode() in environ_of(child.pid).split(b"\0")
    assert trained(child) == Exit()
    assert child.strays >= 1
    nothing_left()


@both
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_it_leaves_without_a_mark_ends_with_it_and_not_with_another(
    starter: Starter, tmp_path: Path, way: str, *, is_killed: bool
) -> None:
    task = task_of(tmp_path, f"{telling.MODULE}:hidden")
    child, other = started(starter, task, way), started(starter, task_of(tmp_path, attempt=2), way)
    heard(child, Ready)
    daemon = psutil.Process(telling.daemon_of(task))
    assert CHILD_MARK not in daemon.environ()
    assert well(other) and other.strays == 0
    assert daemon.is_running()
    if is_killed:
        os.kill(child.pid, signal.SIGKILL)
    assert (ended(child) if is_killed else trained(child)).code == (-signal.SIGKILL if is_killed else 0)
    assert child.strays == 1
    assert not daemon.is_running()


def test_its_memory_is_freed_and_the_server_does_not_grow(starter: Starter, tmp_path: Path) -> None:
    task = task_of(tmp_path, f"{telling.MODULE}:large")
    child = started(starter, task)
    heard(child, Ready)
    assert psutil.Process(child.pid).memory_info().rss > telling.LARGE_BYTES
    end(child)
    server = server_of(starter)
    before = server.memory_info().rss
    for number in range(2, 8):
        child = started(starter, replace(task, attempt=number))
        heard(child, Ready)
        end(child)
        assert not psutil.pid_exists(child.pid)
    assert server.memory_info().rss - before < telling.LARGE_BYTES / 10
    assert server.children() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_it_outlives_its_server_and_is_reaped(
    starter: Starter, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that dies, and one that does not answer when it is asked to wait."""
    monkeypatch.setattr("scaling.agent.child.ANSWER_S", 0.2)
    one, other = (started(starter, task_of(tmp_path, attempt=attempt)) for attempt in (1, 2))
    server_of(starter).send_signal(number)
    assert well(one)
    heard(other, Ready)
    assert end(other).code == -signal.SIGTERM
    assert not any(psutil.pid_exists(child.pid) for child in (one, other))


def test_closing_ends_the_server_and_no_child(starter: Starter, tmp_path: Path) -> None:
    child = started(starter, task_of(tmp_path))
    server = server_of(starter)
    starter.close()
    assert not server.is_running()
    assert well(child)
