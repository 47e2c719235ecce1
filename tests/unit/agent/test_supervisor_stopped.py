"""A child that is stopped and goes on: whose clocks stand still, and what it is told when."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.agent.supervisor import Supervisor
from scaling.quiet import agent
from scaling.quiet.canary import Canary
from scaling.records.events import Announce, Failed, Window
from scaling.records.task import Run
from tests.support.supervised import ONE, READY, cause, supervisor, window


def test_a_stopped_child_s_clocks_stand_still() -> None:
    """Each is far beyond its limit by the clock on the wall."""
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.pause(10.0)
    one.attend(100_000.0)
    assert child.stacks == []
    one.tell(ONE, 100_000.0)
    one.heard(window(0), 100_001.0)
    one.attend(100_005.0)
    assert child.stacks == []


def test_its_deadline_counts_its_own_time_alone() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    now_s = 5.0
    for _ in range(9):  # of 100 s each, with an hour between them
        now_s += 100.0
        one.pause(now_s)
        now_s += 3600.0
        one.tell(ONE, now_s)
        one.heard(window(0), now_s)
    one.attend(now_s + 94.0)  # 999 s of its own
    assert child.stacks == []
    one.attend(now_s + 96.0)
    assert cause(one) == "timeout"


def test_a_stall_counts_from_when_it_goes_on() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.tell(ONE, 10.0)
    one.heard(window(0), 11.0)
    one.pause(12.0)
    one.tell(ONE, 500.0)
    one.attend(509.0)
    assert child.stacks == []
    one.attend(510.1)
    assert cause(one) == "hang"


def test_one_that_is_stopped_before_it_is_ready_has_its_whole_start_left() -> None:
    one, child = supervisor()
    one.pause(50.0)
    one.resume(1000.0)
    one.attend(1049.0)
    assert child.stacks == []
    one.attend(1051.0)
    assert cause(one) == "startup"


def test_it_is_stopped_once_and_goes_on_once_before_it_hears() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.resume(6.0)
    one.tell(ONE, 7.0)
    for now_s in (8.0, 9.0):
        one.pause(now_s)
    for now_s in (10.0, 11.0):
        one.tell(ONE, now_s)
    assert child.did == ["tell", "pause", "resume", "tell", "tell"]


def test_a_helper_goes_on_when_its_workers_are_told_something() -> None:
    one, child = supervisor("server-0")
    one.heard(Announce(values={}), 1.0)
    one.pause(2.0)
    one.overhear(ONE, 1000.0)
    assert child.did == ["pause", "resume"]
    one.attend(1900.0)
    assert child.stacks == []  # 902 s of its own


def test_a_stopped_child_can_be_ended_and_is_not_stopped_any_more() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.pause(10.0)
    one.end(20.0, Failed(cause="cancelled", message="because"))
    assert child.stacks == [False]
    assert cause(one) == "cancelled"


def test_one_that_is_being_ended_is_not_stopped() -> None:
    """It would hear of the TERM only when it is killed."""
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.end(20.0, Failed(cause="interrupted", message="ended by a signal"))
    one.pause(20.1)
    assert child.did == []


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
