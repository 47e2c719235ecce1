"""How ranks find torch's store, and faults of real training: an all-reduce that waits for ever, a killed peer or
loader process."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch import distributed

from scaling.frameworks.pytorch import group
from scaling.records.events import Failed, Finished
from scaling.sweep.state import PointState
from tests.support import kept_forks, native_feeds
from tests.support.children import nothing_left
from tests.support.inline import Launch, Run

WITHIN = timedelta(seconds=20)


@pytest.fixture
def reserved() -> socket.socket:
    """A port that is held, and refuses until something listens."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held


def test_a_client_is_made_when_the_store_listens(reserved: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused once, torch's own looks again after half a second."""
    did: list[str] = []

    def sleep(seconds: float) -> None:
        did.append("look")
        if len(did) == 3:
            reserved.listen()

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(distributed, "TCPStore", lambda *where, **how: did.append("client"))
    with reserved:
        group.open_store("127.0.0.1", reserved.getsockname()[1], hosts=False, timeout=WITHIN)
    assert did == ["look"] * 3 + ["client"]


def test_a_missing_rank_is_left_to_torch(reserved: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(distributed, "TCPStore", lambda *where, **how: made.append(how["timeout"]))
    with reserved:
        group.open_store("127.0.0.1", reserved.getsockname()[1], hosts=False, timeout=timedelta(seconds=1))
    group.open_store("no-such-host.invalid", 1, hosts=False, timeout=WITHIN)
    assert made == [timedelta(seconds=1), WITHIN]


def test_a_torch_that_is_built_without_distributed_has_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(distributed, "TCPStore")
    assert "nccl_version" in runpy.run_path(group.__file__)  # loop.py imports it


# ---------------------------------------------------------------- faults

QUICK: dict[str, Any] = {
    "strategy": ["torch:gloo"], "kinds": ["exchange"], "window_s": 0.05, "batch_size": 4,
}  # fmt: skip


class Striking:
    """A view that sends a signal once, when windows of a rank are measured, to the process that `whom` finds."""

    def __init__(self, rank: int, number: int, whom: Callable[[int], int] = lambda pid: pid) -> None:
        self.rank, self.number, self.whom, self.struck = rank, number, whom, 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args: None

    def progress(self, state: PointState) -> None:
        worker = state.ranks[self.rank]
        if state.phase == "measuring" and worker.windows and not self.struck:
            self.struck = self.whom(worker.pid)
            os.kill(self.struck, self.number)


def struck(tmp_path: Path, number: int) -> tuple[Run, Failed]:
    view: Any = Striking(1, number)
    launch = Launch(2, real=True, start=kept_forks.fork)
    found = launch.sweep(tmp_path, view=view, world_sizes=[2], rounds=1, windows=50, stall_timeout_s=3.0, **QUICK)
    assert view.struck
    outcome = found.records[0].outcome
    assert isinstance(outcome, Failed)
    nothing_left()
    return found, outcome


def test_an_all_reduce_that_waits_for_ever(tmp_path: Path) -> None:
    """A stopped rank leaves its peer in the all-reduce: both go silent, and the stacks say where."""
    found, outcome = struck(tmp_path, signal.SIGSTOP)
    assert outcome.cause == "hang"
    waiting = found.records[0].ranks[0].outcome
    assert isinstance(waiting, Failed)
    assert waiting.cause in ("hang", "cancelled")
    log = next(path for path in (found.folder / "logs").iterdir() if path.name.endswith(".0.log"))
    assert "backward" in log.read_text()


def test_a_killed_peer_is_the_cause_and_not_the_error_that_follows(tmp_path: Path) -> None:
    _, outcome = struck(tmp_path, signal.SIGKILL)
    assert (outcome.cause, outcome.rank) == ("crash(SIGKILL)", 1)


def only_child(pid: int) -> int:
    (loader,) = psutil.Process(pid).children()
    return loader.pid


def test_a_killed_loader_fails_its_point_by_that_name(tmp_path: Path) -> None:
    """torch's own pipeline in a real worker."""
    native_feeds.write(tmp_path, "folders")
    view: Any = Striking(0, signal.SIGKILL, only_child)
    found = Launch(1, real=True).sweep(
        tmp_path / "results", view=view, data_dir=str(tmp_path), model="cifar10-cnn", data="folders",
        feed="native", world_sizes=[1], rounds=2, windows=20, stall_timeout_s=60.0, **QUICK,
    )  # fmt: skip
    assert view.struck
    killed, whole = found.records
    assert isinstance(killed.outcome, Failed)
    assert killed.outcome.cause == "feed"
    assert f"DataLoader worker {view.struck} (exit code -9) exited unexpectedly" in killed.outcome.message
    # The next one is fed, and neither leaves a process behind.
    assert isinstance(whole.outcome, Finished)
    nothing_left()
    for rank in whole.ranks:
        assert rank.ready is not None
        assert rank.ready.fed_by.startswith("DataLoader, ")
        assert rank.ready.read_from == "page cache"
        assert all(window.waited_s is not None and window.waited_s >= 0 for window in rank.windows)
        assert sum(window.samples for window in rank.windows) == 4 * sum(window.steps for window in rank.windows)
