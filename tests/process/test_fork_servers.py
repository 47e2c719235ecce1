"""Fork servers that fail in whatever way cost time, and no child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from scaling.agent.child import Starter
from scaling.agent.environment import KEPT_HEAP
from scaling.records.point import Device, Point
from scaling.records.task import Malloc, Task
from tests.support import forked
from tests.support.forked import IMPORTED, beside, child_of, end, is_forked, server_of, started, task_of, well
from tests.support.points import changed
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("adopting")


# A host without room for another process.
FORKS_NOT = """
import os
def refused():
    raise BlockingIOError(11, "planted")
os.fork = refused
"""
BROKEN = {
    "is not there": None,
    "raises": "raise ImportError('planted')",
    "exits": "import os; os._exit(0)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "cannot fork": FORKS_NOT,
}


@pytest.mark.parametrize("how", BROKEN)
def test_where_the_import_or_a_fork_fails_children_start_fresh(
    preload: Callable[..., None], tmp_path: Path, how: str
) -> None:
    text = BROKEN[how]
    if text is not None:
        (tmp_path / "planted_module.py").write_text(text)
    preload("planted_module")
    base = beside(tmp_path)
    starter, task = Starter(base), task_of(tmp_path)
    try:
        starter.preload(task)
        eventually(starter.settled)
        for attempt in (1, 2):
            child = child_of(starter, replace(task, attempt=attempt), base)
            assert not is_forked(child.pid)
            assert well(child)
    finally:
        starter.close()


def test_while_the_import_hangs_children_start_fresh(preload: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "planted_module.py").write_text(forked.HANGS)
    preload("planted_module")
    base = beside(tmp_path)
    starter, task = Starter(base), task_of(tmp_path)
    try:
        starter.preload(task)
        assert not starter.settled()
        child = child_of(starter, task, base)
        assert not is_forked(child.pid)
        assert well(child)
        server = server_of(starter)
    finally:
        starter.close()
    assert not server.is_running()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_where_the_server_has_died_or_does_not_answer_children_start_fresh(
    starter: Starter, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaling.agent.child.ANSWER_S", 0.2)
    assert well(started(starter, task_of(tmp_path)))
    server = server_of(starter)
    server.send_signal(number)
    wanted = psutil.STATUS_ZOMBIE if number == signal.SIGKILL else psutil.STATUS_STOPPED
    eventually(lambda: server.status() == wanted)
    for attempt in (2, 3):
        task = task_of(tmp_path, attempt=attempt)
        child = child_of(starter, task)
        assert not is_forked(child.pid)
        assert well(child)
    assert not server.is_running()


def test_an_environment_longer_than_a_message_starts_fresh(starter: Starter, tmp_path: Path) -> None:
    starter.preload(task_of(tmp_path))
    eventually(starter.settled)
    long = {f"LONG_{number}": "x" * 60_000 for number in range(3)}
    task = task_of(tmp_path)
    child = child_of(starter, task, {**os.environ, **long})
    assert not is_forked(child.pid)
    assert well(child)


def test_an_environment_in_another_encoding_starts_fresh_and_the_server_goes_on(
    starter: Starter, tmp_path: Path
) -> None:
    """GIT_AUTHOR_NAME of who writes Latin-1."""
    task = task_of(tmp_path)
    starter.preload(task)
    eventually(starter.settled)
    child = child_of(starter, task, {**os.environ, "NAME": os.fsdecode(b"Jos\xe9")})
    assert not is_forked(child.pid)
    assert well(child)
    other = child_of(starter, replace(task, attempt=2))
    assert is_forked(other.pid)
    assert well(other)


def test_threads_and_heap_that_the_server_has_not_start_fresh(starter: Starter, tmp_path: Path) -> None:
    task = task_of(tmp_path)
    starter.preload(task)
    eventually(starter.settled)
    for number, other in enumerate((replace(task, threads=2), replace(task, malloc="system"))):
        assert not is_child_forked(starter, replace(other, attempt=10 + number))


def is_child_forked(starter: Starter, task: Task) -> bool:
    child = child_of(starter, task)
    try:
        return is_forked(child.pid)
    finally:
        end(child)


def test_what_shall_start_fresh_does_beside_a_server_for_others(starter: Starter, tmp_path: Path) -> None:
    """GPUs' workers do where a CPU is measured beside them, whose fork server has their framework."""
    task = task_of(tmp_path)
    starter.preload(task)
    eventually(starter.settled)
    assert is_child_forked(starter, task)
    for number, other in enumerate((replace(task, fresh=True), replace(task, point=on_gpu(task)))):
        assert not is_child_forked(starter, replace(other, attempt=10 + number))


@pytest.mark.parametrize("malloc", ["keep", "system"])
def test_the_server_has_threads_and_heap_and_nothing_of_the_launcher(
    preload: Callable[..., None], tmp_path: Path, malloc: Malloc
) -> None:
    """glibc and OpenMP read theirs when a program starts: in a fork it is too late."""
    preload(IMPORTED)
    own = {name: value for name, value in os.environ.items() if name not in KEPT_HEAP}
    starter = Starter({**own, "OMPI_COMM_WORLD_RANK": "1"})
    try:
        starter.preload(replace(task_of(tmp_path), malloc=malloc, threads=3))
        eventually(starter.settled)
        environ = server_of(starter).environ()
        assert {name: value for name, value in environ.items() if name in KEPT_HEAP} == (
            KEPT_HEAP if malloc == "keep" else {}
        )
        assert environ["OMP_NUM_THREADS"] == "3"
        assert "OMPI_COMM_WORLD_RANK" not in environ
    finally:
        starter.close()


def on_gpu(task: Task) -> Point:
    return changed(task.point, device="cuda")


INITIALISES_CUDA = """
import __main__, pathlib
file = pathlib.Path(__file__)
held = file.open()
__main__.CUDA_DEVICE = str(file.resolve())
"""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_children_start_fresh_if_the_import_initialises_cuda(
    preload: Callable[..., None], tmp_path: Path, device: Device
) -> None:
    (tmp_path / "planted_module.py").write_text(INITIALISES_CUDA)
    preload("planted_module", forks_on=("cpu", "cuda"))
    base, task = beside(tmp_path), task_of(tmp_path)
    task = replace(task, point=changed(task.point, device=device))
    starter = Starter(base)
    try:
        starter.preload(task)
        eventually(starter.settled)
        assert starter.touched() == ("fake",)
        child = child_of(starter, replace(task, point=changed(task.point, device="cpu")), base)
        assert not is_forked(child.pid)
        assert well(child)
    finally:
        starter.close()


def test_children_on_gpus_are_forks_if_their_framework_allows_it(
    preload: Callable[..., None], tmp_path: Path
) -> None:
    preload(IMPORTED, forks_on=("cpu", "cuda"))
    starter, task = Starter(os.environ), task_of(tmp_path)
    try:
        starter.preload(replace(task, point=on_gpu(task)))
        eventually(starter.settled)
        assert starter.touched() == ()
        assert len(starter._servers) == 1
    finally:
        starter.close()


def test_no_server_is_started_for_what_starts_fresh(preload: Callable[..., None], tmp_path: Path) -> None:
    starter = Starter(os.environ)
    task = task_of(tmp_path)
    for one in (replace(task, fresh=True), replace(task, point=on_gpu(task))):
        starter.preload(one)
    preload()
    starter.preload(task)
    assert starter.settled()
    assert starter._servers == {}
