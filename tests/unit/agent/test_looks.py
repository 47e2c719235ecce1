"""How often an agent looks for messages, which MPI wakes nobody for."""

from __future__ import annotations

import select
from collections.abc import Callable

import pytest

from scaling.agent import agent as module
from scaling.agent.agent import Agent
from scaling.records.messages import ENCODER, Assign, Pause, Tell, ToAgent
from scaling.records.task import Inspect, Run
from scaling.transport.base import Hub
from tests.support.points import TASK
from tests.support.supervised import Silent

LATER_S = 100.0  # nobody is in a hurry any more


class Looking:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.slept_s = 0.0, -1.0
        self._hub = Hub(1)
        self._agent = Agent(self._hub.rank(0), spawn=lambda task, environ: Silent(), clock=lambda: self.now_s)
        monkeypatch.setattr(select, "poll", lambda: self)

    def register(self, fd: int, events: int) -> None:
        return None

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self.slept_s = milliseconds / 1000
        return []

    def after(self, *orders: ToAgent) -> float:
        for order in orders:
            self._hub.rank(0).send(0, "agent", ENCODER.encode(order))
        self._agent.turn()
        self.now_s += LATER_S
        self._agent.wait()
        return self.slept_s


@pytest.fixture
def slept_s(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    return Looking(monkeypatch).after


def test_an_agent_whose_children_wait_for_their_turn_looks_often(slept_s: Callable[..., float]) -> None:
    """Ranks that are told to run beside each other would else begin one after the other."""
    assert slept_s() == module.CALM_S
    assert slept_s(Assign(task=TASK)) == module.CALM_S
    assert slept_s(Pause(attempt=TASK.attempt)) == module.TURNS_S
    assert slept_s(Tell(attempt=TASK.attempt, command=Run(windows=1, steps=1, measured=False))) == module.CALM_S
    assert module.TURNS_S < module.CALM_S


def test_an_agent_is_quiet_while_steps_after_the_digest_are_timed(slept_s: Callable[..., float]) -> None:
    """Others wait for their turn meanwhile; its looks would be on the cores of those steps."""
    inspect = Tell(attempt=TASK.attempt, command=Inspect(windows=2, steps=1, traced_steps=0))
    assert slept_s(Assign(task=TASK), Pause(attempt=TASK.attempt)) == module.TURNS_S
    assert slept_s(inspect) == module.MEASURING_S
