"""A child's three clocks, without a child: who waits for whom decides whose silence counts."""

from __future__ import annotations

import signal

from scaling.agent.supervisor import Supervisor
from scaling.records.events import Announce, Exit, Failed, Inspected, Rested, Result
from scaling.records.task import Finish, Inspect, Rest, Run
from tests.support.supervised import ONE, READY, Silent, cause, supervisor, window


def test_not_ready_in_time() -> None:
    one, child = supervisor()
    one.attend(100.0)
    assert child.stacks == []
    one.attend(100.1)
    assert child.stacks == [True]
    assert cause(one) == "startup"


def test_a_helper_is_ready_once_it_announced_itself() -> None:
    one, child = supervisor("server")
    one.heard(Announce(values={"SERVER": "a:1"}), 50.0)
    one.attend(999.0)
    assert child.stacks == []
    one.attend(1001.0)
    assert cause(one) == "timeout"
    silent, _ = supervisor("server")
    silent.attend(100.1)
    assert cause(silent) == "startup"


def test_waiting_for_a_command_is_no_stall() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.attend(900.0)
    assert child.stacks == []


def test_the_first_step_may_take_as_long_as_the_start() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.tell(ONE, 10.0)
    one.attend(109.0)
    assert child.stacks == []
    one.attend(110.1)
    assert cause(one) == "hang"


def test_silence_after_that_is_a_stall_unless_the_command_was_answered() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.tell(ONE, 10.0)
    one.heard(window(0), 50.0)
    one.attend(500.0)
    assert child.stacks == []
    one.tell(Run(windows=2, steps=1, measured=False), 500.0)
    one.heard(window(0), 505.0)
    one.attend(514.9)
    assert child.stacks == []
    one.attend(515.1)
    assert cause(one) == "hang"


def test_a_closer_look_is_over_with_its_answer() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.tell(ONE, 10.0)
    one.heard(window(0), 11.0)
    one.tell(Inspect(windows=2, steps=1, traced_steps=5), 12.0)
    one.heard(Inspected(), 20.0)
    one.attend(500.0)
    assert child.stacks == []
    one.tell(Inspect(windows=2, steps=1, traced_steps=5), 500.0)
    one.attend(510.1)
    assert cause(one) == "hang"


def test_to_rest_is_answered_in_time() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.tell(ONE, 10.0)
    one.heard(window(0), 11.0)
    one.tell(Rest(), 12.0)
    one.heard(Rested(), 13.0)
    one.attend(500.0)
    assert child.stacks == []
    one.tell(Rest(), 500.0)
    one.attend(510.1)
    assert cause(one) == "hang"


def test_an_end_that_does_not_come_is_a_stall() -> None:
    one, _ = supervisor()
    one.heard(READY, 5.0)
    one.tell(ONE, 10.0)
    one.heard(window(0), 11.0)
    one.tell(Finish(), 12.0)
    one.attend(22.1)
    assert cause(one) == "hang"


def test_the_first_reason_stays_and_brings_the_log() -> None:
    one, child = supervisor()
    one.end(1.0, Failed(cause="cancelled", message="because"))
    one.end(2.0, Failed(cause="interrupted", message="later"))
    assert len(child.stacks) == 1
    seen = one.ended().exit
    assert (seen.reason, seen.log_tail) == (Failed(cause="cancelled", message="because"), "tail")


def test_a_dead_child_is_ended_for_no_reason() -> None:
    one, child = supervisor()
    child.dead, child.seen = True, Exit(code=-signal.SIGKILL)
    one.end(1.0, Failed(cause="cancelled", message="because"))
    assert one.ended().exit == child.seen


# ---------------------------------------------------------------- once the result is out

RESULT = Result(digest="d", peak_memory_bytes=0, peak_rss_bytes=1)


def finishing() -> tuple[Supervisor, Silent]:
    """One whose result came at 20 s."""
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.tell(Finish(), 12.0)
    one.heard(RESULT, 20.0)
    return one, child


def test_one_that_does_not_leave_its_exchange_is_ended_as_late() -> None:
    one, child = finishing()
    one.attend(29.9)
    assert child.stacks == []
    for now_s in (30.1, 30.2):  # until it is dead
        one.attend(now_s)
    assert child.stacks == [True]
    seen = one.ended().exit
    assert (seen.is_late, seen.reason) == (True, Failed(cause="hang", message="did not leave its exchange"))


def test_one_that_is_cancelled_after_its_result_is_cancelled() -> None:
    one, _ = finishing()
    one.end(21.0, Failed(cause="cancelled", message="because"))
    one.attend(500.0)
    seen = one.ended().exit
    assert seen.reason is not None
    assert (seen.is_late, seen.reason.cause) == (False, "cancelled")
