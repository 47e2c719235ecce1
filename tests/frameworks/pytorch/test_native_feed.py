"""torch's own pipeline in a real worker: its loader processes end with the point, and with one killed it fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil

from scaling.records.events import Failed, Finished
from scaling.sweep.state import PointState
from tests.support import native_feeds
from tests.support.children import nothing_left
from tests.support.inline import Launch

QUICK: dict[str, Any] = {
    "strategy": ["torch:gloo"], "kinds": ["exchange"], "world_sizes": [1], "rounds": 2, "windows": 20,
    "window_s": 0.05, "batch_size": 4, "model": "cifar10-cnn", "data": "folders", "feed": "native",
    "stall_timeout_s": 60.0,
}  # fmt: skip


class Striking:
    """A view that kills the rank's loader process once, when windows are measured in the first round."""

    def __init__(self) -> None:
        self.struck = 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args: None

    def progress(self, state: PointState) -> None:
        worker = state.ranks[0]
        if state.phase == "measuring" and worker.windows and not self.struck:
            loader, *others = psutil.Process(worker.pid).children()
            assert not others
            self.struck = loader.pid
            os.kill(loader.pid, signal.SIGKILL)


def test_a_killed_loader_fails_its_point_by_that_name(tmp_path: Path) -> None:
    native_feeds.write(tmp_path, "folders")
    view: Any = Striking()
    found = Launch(1, real=True).sweep(tmp_path / "results", view=view, data_dir=str(tmp_path), **QUICK)
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
