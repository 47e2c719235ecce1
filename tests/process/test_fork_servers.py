"""Fork servers that fail in whatever way cost time, and no child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from scaling.agent.child import Starter
from scaling.agent.environment import KEPT_HEAP
from scaling.records.point import Device, Point
from scaling.records.task import Malloc, Task
from tests.support import forked
from tests.support.forked import (
    IMPORTED,
    beside,
    child_of,
    end,
    is_forked,
    server_of,
    settled,
    started,
    starts_fresh,
    task_of,
    well,
)  # fmt: skip
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
    "is not there": None, "raises": "raise ImportError('planted')", "exits": "import os; os._exit(0)",
    "crashes": "import ctypes; ctypes.string_at(0)", "cannot fork": FORKS_NOT,
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
def test_where_the_import_or_a_fork_fails_children_start_fresh(
    preload: Callable[..., None], tmp_path: Path, how: str
) -> None:
    text = BROKEN[how]
    if text is not None:
        (tmp_path / "planted_module.py").write_text(text)
    preload("planted_module")
    base = beside(tmp_path)
    with closing(Starter(base)) as starter:
        task = settled(starter, task_of(tmp_path))
        for attempt in (1, 2):
            starts_fresh(starter, replace(task, attempt=attempt), base)


def test_while_the_import_hangs_children_start_fresh(preload: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "planted_module.py").write_text(forked.HANGS)
    preload("planted_module")
    base = beside(tmp_path)
    with closing(Starter(base)) as starter:
        starter.preload(task_of(tmp_path))
        assert not starter.settled()
        starts_fresh(starter, task_of(tmp_path), base)
        server = server_of(starter)
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
        starts_fresh(starter, task_of(tmp_path, attempt=attempt))
    assert not server.is_running()


@pytest.mark.parametrize(
    ("added", "goes_on"),
    [
        ({f"LONG_{number}": "x" * 60_000 for number in range(3)}, False),  # longer than a message
        ({"GIT_AUTHOR_NAME": os.fsdecode(b"Jos\xe9")}, True),  # of an author with Latin-1
    ],
    ids=["long", "Latin-1"],
)
def test_an_environment_that_no_message_holds_starts_fresh(
    starter: Starter, tmp_path: Path, added: dict[str, str], goes_on: bool
) -> None:
    task = settled(starter, task_of(tmp_path))
    starts_fresh(starter, task, {**os.environ, **added})
    if goes_on:
        assert is_child_forked(starter, replace(task, attempt=2))


def is_child_forked(starter: Starter, task: Task) -> bool:
    child = child_of(starter, task)
    try:
        return is_forked(child.pid)
    finally:
        end(child)


def test_what_the_server_has_not_or_shall_start_fresh_does_beside_a_server_for_others(
    starter: Starter, tmp_path: Path
) -> None:
    """Other threads, another heap; GPUs' workers, where a CPU is measured beside them."""
    task = settled(starter, task_of(tmp_path))
    assert is_child_forked(starter, task)
    others = (
        replace(task, threads=2), replace(task, malloc="system"), replace(task, fresh=True),
        replace(task, point=on_gpu(task)),
    )  # fmt: skip
    for number, other in enumerate(others):
        assert not is_child_forked(starter, replace(other, attempt=10 + number))


@pytest.mark.parametrize("malloc", ["keep", "system"])
def test_the_server_has_threads_and_heap_and_nothing_of_the_launcher(
    preload: Callable[..., None], tmp_path: Path, malloc: Malloc
) -> None:
    """glibc and OpenMP read theirs when a program starts: in a fork it is too late."""
    preload(IMPORTED)
    own = {name: value for name, value in os.environ.items() if name not in KEPT_HEAP}
    with closing(Starter({**own, "OMPI_COMM_WORLD_RANK": "1"})) as starter:
        settled(starter, replace(task_of(tmp_path), malloc=malloc, threads=3))
        environ = server_of(starter).environ()
        assert {name: value for name, value in environ.items() if name in KEPT_HEAP} == (
            KEPT_HEAP if malloc == "keep" else {}
        )
        assert environ["OMP_NUM_THREADS"] == "3"
        assert "OMPI_COMM_WORLD_RANK" not in environ


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
    with closing(Starter(base)) as starter:
        settled(starter, replace(task, point=changed(task.point, device=device)))
        assert starter.touched() == ("fake",)
        starts_fresh(starter, task, base)


def test_children_on_gpus_are_forks_if_their_framework_allows_it(
    preload: Callable[..., None], tmp_path: Path
) -> None:
    preload(IMPORTED, forks_on=("cpu", "cuda"))
    task = task_of(tmp_path)
    with closing(Starter(os.environ)) as starter:
        settled(starter, replace(task, point=on_gpu(task)))
        assert starter.touched() == ()
        assert len(starter._servers) == 1


def test_no_server_is_started_for_what_starts_fresh(preload: Callable[..., None], tmp_path: Path) -> None:
    starter = Starter(os.environ)
    task = task_of(tmp_path)
    for one in (replace(task, fresh=True), replace(task, point=on_gpu(task))):
        starter.preload(one)
    preload()
    starter.preload(task)
    assert starter.settled()
    assert starter._servers == {}
