"""A child's clocks, running and stopped, and how often its agent looks for messages."""

from __future__ import annotations

import select
import signal
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.agent import agent as module
from scaling.agent.agent import Agent, Supervisor
from scaling.quiet import agent
from scaling.quiet.canary import Canary
from scaling.records.events import Announce, Exit, Failed, Inspected, Rested, Result, Window
from scaling.records.messages import ENCODER, Assign, Pause, Tell, ToAgent
from scaling.records.task import Finish, Inspect, Rest, Run
from scaling.transport.base import Hub
from tests.support.points import TASK
from tests.support.supervised import ONE, READY, Silent, cause, supervisor, window

# A child's three clocks, without a child: who waits for whom decides whose silence counts.

Call = tuple[Any, ...]
IS_READY: Call = ("heard", READY, 5.0)
BEGUN: list[Call] = [IS_READY, ("tell", ONE, 10.0), ("heard", window(0), 11.0)]
TWO, LOOK = Run(windows=2, steps=1, measured=False), Inspect(windows=2, steps=1, traced_steps=5)
RESULT = Result(digest="d", peak_memory_bytes=0, peak_rss_bytes=1)
FINISHED: list[Call] = [IS_READY, ("tell", Finish(), 12.0), ("heard", RESULT, 20.0)]
CANCELLED = Failed(cause="cancelled", message="because")
# Nine turns of 100 s each, with an hour between them.
TURNS: list[Call] = [
    call
    for now_s in range(105, 33_405, 3700)
    for call in (("pause", now_s), ("tell", ONE, now_s + 3600), ("heard", window(0), now_s + 3600))
]
# What happens to a child until it is still fine, what follows, and why it is ended then, if it is.
CLOCKS: dict[str, tuple[list[Call], list[Call], str]] = {
    "not ready in time": ([("attend", 100.0)], [("attend", 100.1)], "startup"),
    "waiting for a command is no stall": ([IS_READY, ("attend", 900.0)], [], ""),
    "the first step may take as long as the start": (
        [IS_READY, ("tell", ONE, 10.0), ("attend", 109.0)], [("attend", 110.1)], "hang",
    ),
    "silence after an answer is no stall": (
        [
            IS_READY, ("tell", ONE, 10.0), ("heard", window(0), 50.0), ("attend", 500.0),
            ("tell", TWO, 500.0), ("heard", window(0), 505.0), ("attend", 514.9),
        ],
        [("attend", 515.1)], "hang",
    ),
    "a closer look is over with its answer": (
        [*BEGUN, ("tell", LOOK, 12.0), ("heard", Inspected(), 20.0), ("attend", 500.0)],
        [("tell", LOOK, 500.0), ("attend", 510.1)], "hang",
    ),
    "to rest is answered in time": (
        [*BEGUN, ("tell", Rest(), 12.0), ("heard", Rested(), 13.0), ("attend", 500.0)],
        [("tell", Rest(), 500.0), ("attend", 510.1)], "hang",
    ),
    "an end that does not come is a stall": (BEGUN, [("tell", Finish(), 12.0), ("attend", 22.1)], "hang"),
    "the clocks of a stopped child stand still": (
        [
            IS_READY, ("pause", 10.0), ("attend", 100_000.0),
            ("tell", ONE, 100_000.0), ("heard", window(0), 100_001.0), ("attend", 100_005.0),
        ],
        [], "",
    ),
    "a stall counts from when the child goes on": (
        [*BEGUN, ("pause", 12.0), ("tell", ONE, 500.0), ("attend", 509.0)], [("attend", 510.1)], "hang",
    ),
    "stopped before it is ready, it has its whole start left": (
        [("pause", 50.0), ("resume", 1000.0), ("attend", 1049.0)], [("attend", 1051.0)], "startup",
    ),
    "its deadline counts its own time alone": (
        [IS_READY, *TURNS, ("attend", 33_305.0 + 94)], [("attend", 33_305.0 + 96)], "timeout",
    ),
    "a helper is ready once it announced itself": (
        [("heard", Announce(values={"SERVER": "a:1"}), 50.0), ("attend", 999.0)], [("attend", 1001.0)], "timeout",
    ),
    "one that does not leave its exchange": (
        [*FINISHED, ("attend", 29.9)], [("attend", 30.1), ("attend", 30.2)], "hang",
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", CLOCKS)
def test_how_long_a_child_may_take(story: str) -> None:
    fine, more, why = CLOCKS[story]
    one, child = supervisor("server" if "helper" in story else "worker")
    for name, *arguments in fine:
        getattr(one, name)(*arguments)
    assert child.stacks == []
    for name, *arguments in more:
        getattr(one, name)(*arguments)
    if why:
        assert child.stacks == [True]
        assert cause(one) == why
        assert one.ended().exit.is_late is ("leave" in story)


@pytest.mark.parametrize(
    ("calls", "did", "stacks", "why"),
    [
        # It is ended once.
        ([("end", 1.0, CANCELLED), ("end", 2.0, CANCELLED)], [], [False], "cancelled"),
        # One that is cancelled after its result is cancelled.
        ([*FINISHED, ("end", 21.0, CANCELLED), ("attend", 500.0)], ["tell"], [False], "cancelled"),
        # It is stopped once, and goes on once before it hears.
        ([IS_READY, ("resume", 6.0), ("tell", ONE, 7.0), ("pause", 8.0), ("pause", 9.0), ("tell", ONE, 10.0),
          ("tell", ONE, 11.0)], ["tell", "pause", "resume", "tell", "tell"], [], ""),
        # A helper goes on when its workers are told something; then 902 s are its own.
        ([("heard", Announce(values={}), 1.0), ("pause", 2.0), ("overhear", ONE, 1000.0), ("attend", 1900.0)],
         ["pause", "resume"], [], ""),
        # A stopped child can be ended.
        ([IS_READY, ("pause", 10.0), ("end", 20.0, CANCELLED)], ["pause"], [False], "cancelled"),
        # One that is being ended is not stopped: it would hear of the TERM only when it is killed.
        ([IS_READY, ("end", 20.0, CANCELLED), ("pause", 20.1)], [], [False], "cancelled"),
    ],
)  # fmt: skip
def test_what_a_child_is_told(calls: list[Call], did: list[str], stacks: list[bool], why: str) -> None:
    one, child = supervisor()
    for name, *arguments in calls:
        getattr(one, name)(*arguments)
    assert (child.did, child.stacks) == (did, stacks)
    seen = one.ended().exit
    assert (seen.reason.cause if seen.reason else "", seen.is_late, seen.log_tail) == (why, False, "tail")


def test_a_dead_child_is_ended_for_no_reason() -> None:
    one, child = supervisor()
    child.dead, child.seen = True, Exit(code=-signal.SIGKILL)
    one.end(1.0, CANCELLED)
    assert one.ended().exit == child.seen


def tell(one: Supervisor, run: Run, now_s: float) -> None:
    one.quiet.before(run)
    one.tell(run, now_s)


def test_the_canary_is_noted_with_the_first_window_of_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "tried", lambda cpus: Canary(0.007, 0.002))
    one, _ = supervisor()
    one.heard(READY, 5.0)
    tell(one, Run(windows=2, steps=1, measured=True, first=3, canary=True), 6.0)
    heard = [one.heard(replace(window(index), measured=True), 7.0) for index in (3, 4)]
    windows = [each for each in heard if isinstance(each, Window)]
    assert [(each.canary_s, each.canary_queued_s) for each in windows] == [(0.007, 0.002), (None, 0.0)]
    tell(one, Run(windows=1, steps=1, measured=True, first=5), 8.0)
    last = one.heard(replace(window(5), measured=True), 9.0)
    assert isinstance(last, Window) and last.canary_s is None


# How often an agent looks for messages, which MPI wakes nobody for.

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
