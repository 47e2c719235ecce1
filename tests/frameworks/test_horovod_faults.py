"""Faults of training with Horovod: a killed rank, a killed rendezvous."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from scaling.records.events import Failed
from scaling.sweep.state import PointState
from tests.frameworks.test_horovod import every_binding, need
from tests.process.test_faults import nothing_left
from tests.support.inline import Launch

QUICK: dict[str, Any] = {
    "kinds": ["exchange"], "world_sizes": [2], "rounds": 1, "windows": 50, "window_s": 0.05, "batch_size": 4,
}  # fmt: skip


class Killing:
    """A view that kills a child once, when windows are measured: rank 1's worker, or the rendezvous."""

    def __init__(self, victim: str) -> None:
        self.victim = victim
        self.struck = 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args: None

    def progress(self, state: PointState) -> None:
        if state.phase == "measuring" and state.ranks[1].windows and not self.struck:
            self.struck = state.ranks[1].pid if self.victim == "worker" else state.helpers[0].pid
            os.kill(self.struck, signal.SIGKILL)


@every_binding
@pytest.mark.parametrize("victim", ["worker", "rendezvous"])
def test_a_killed_child_is_the_cause_and_nothing_is_left(name: str, victim: str, tmp_path: Path) -> None:
    need(name)
    view: Any = Killing(victim)
    found = Launch(2, real=True).sweep(tmp_path, view=view, **{**QUICK, "strategy": [name]})
    assert view.struck
    outcome = found.records[0].outcome
    assert isinstance(outcome, Failed)
    assert outcome.cause == "crash(SIGKILL)"
    assert outcome.rank == (1 if victim == "worker" else 0)
    nothing_left()
