"""How ranks find torch's store."""

from __future__ import annotations

import os
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scaling.frameworks.pytorch import group
from scaling.records.events import Failed
from scaling.sweep.state import PointState
from tests.support import kept_forks
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
    monkeypatch.setattr(group, "TCPStore", lambda *where, **how: did.append("client"))
    with reserved:
        group.open_store("127.0.0.1", reserved.getsockname()[1], hosts=False, timeout=WITHIN)
    assert did == ["look"] * 3 + ["client"]


def test_a_missing_rank_is_left_to_torch(reserved: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(group, "TCPStore", lambda *where, **how: made.append(how["timeout"]))
    with reserved:
        group.open_store("127.0.0.1", reserved.getsockname()[1], hosts=False, timeout=timedelta(seconds=1))
    group.open_store("no-such-host.invalid", 1, hosts=False, timeout=WITHIN)
    assert made == [timedelta(seconds=1), WITHIN]


# Faults of real training: an all-reduce that waits for ever, a killed peer, memory that runs out.

QUICK: dict[str, Any] = {
    "strategy": ["torch:gloo"], "kinds": ["exchange"], "world_sizes": [2], "rounds": 1, "windows": 50,
    "window_s": 0.05, "batch_size": 4, "stall_timeout_s": 3.0,
}  # fmt: skip


class Striking:
    def __init__(self, number: int) -> None:
        self.number = number
        self.struck = 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args: None

    def progress(self, state: PointState) -> None:
        worker = state.ranks[1]
        if state.phase == "measuring" and worker.windows and not self.struck:
            self.struck = worker.pid
            os.kill(worker.pid, self.number)


def struck(tmp_path: Path, number: int) -> tuple[Run, Failed]:
    launch = Launch(2, real=True, start=kept_forks.fork)
    view: Any = Striking(number)
    found = launch.sweep(tmp_path, view=view, **QUICK)
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
    assert outcome.cause == "crash(SIGKILL)"
    assert outcome.rank == 1
