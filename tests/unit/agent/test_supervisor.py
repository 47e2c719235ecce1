"""A child's three clocks, without a child: who waits for whom decides whose silence counts."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.agent.supervisor import Supervisor
from scaling.records.events import (
    Announce,
    Event,
    Failed,
    Finished,
    Inspected,
    Outcome,
    Ready,
    Rested,
    Result,
    Window,
)
from scaling.records.task import Clocks, Command, Finish, Inspect, Rest, Run
from tests.support.points import TASK

READY = Ready(import_s=1.0, build_s=1.0, parameters=1, gradient_bytes=4, device_name="x")
ONE = Run(windows=1, steps=1, measured=False)


class Silent:
    """A child that only notes how it was ended."""

    events_fd = exit_fd = stdin_fd = -1
    unsent = False
    pid = strays = 0
    sent = frozenset({"crash(SIGTERM)"})

    def __init__(self, role: str = "worker") -> None:
        clocks = Clocks(startup_s=100.0, stall_s=10.0, deadline_s=1000.0)
        self.task = replace(TASK, clocks=clocks, role=role)
        self.stacks: list[bool] = []
        self.outcome: Outcome = Failed(cause="crash(SIGTERM)", message="", log_tail="tail")
        self.dead = False
        self.did: list[str] = []

    def tell(self, command: Command) -> None:
        self.did.append("tell")

    def push(self) -> None:
        return None

    def pause(self) -> None:
        self.did.append("pause")

    def resume(self) -> None:
        self.did.append("resume")

    def events(self) -> list[Event]:
        return []

    def end(self, now_s: float, *, grace_s: float = 2.0, stacks: bool = False) -> None:
        self.stacks.append(stacks)

    def pursue(self, now_s: float) -> None:
        return None

    def ended(self) -> bool:
        return self.dead

    def reap(self) -> Outcome:
        return self.outcome


def window(index: int) -> Window:
    return Window(index=index, measured=False, steps=1, samples=1, start_s=0.0, end_s=1.0, end_unix_s=0.0)


def supervisor(role: str = "worker") -> tuple[Supervisor, Silent]:
    child = Silent(role)
    return Supervisor(child, {}, 0.0), child


def cause(one: Supervisor) -> str | None:
    outcome = one.ended().outcome
    return outcome.cause if isinstance(outcome, Failed) else None


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
    outcome = one.ended().outcome
    assert isinstance(outcome, Failed)
    assert (outcome.cause, outcome.message, outcome.log_tail) == ("cancelled", "because", "tail")


def test_a_child_that_died_by_itself_is_not_called_cancelled() -> None:
    one, child = supervisor()
    child.dead, child.outcome = True, Failed(cause="crash(SIGKILL)", message="ended by SIGKILL")
    one.end(1.0, Failed(cause="cancelled", message="because"))
    assert cause(one) == "crash(SIGKILL)"


def test_who_is_dying_when_it_is_ended_died_by_itself() -> None:
    one, child = supervisor()
    one.end(1.0, Failed(cause="cancelled", message="because"))
    child.outcome = Failed(cause="crash(SIGKILL)", message="ended by SIGKILL")
    assert cause(one) == "crash(SIGKILL)"  # the agent has only sent TERM so far


def test_a_child_that_finished_all_the_same_has_finished() -> None:
    one, child = supervisor()
    child.outcome = Finished()
    one.end(1.0, Failed(cause="cancelled", message="because"))
    assert cause(one) is None


# ---------------------------------------------------------------- stopped


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


def test_the_canary_is_noted_with_the_last_window_of_its_command() -> None:
    one, _ = supervisor()
    one.heard(READY, 5.0)
    one.tell(Run(windows=2, steps=1, measured=True, first=3), 6.0, canary_s=0.007)
    heard = [one.heard(replace(window(index), measured=True), 7.0) for index in (3, 4)]
    assert [each.canary_s for each in heard if isinstance(each, Window)] == [None, 0.007]
    one.tell(Run(windows=1, steps=1, measured=True, first=5), 8.0)
    last = one.heard(replace(window(5), measured=True), 9.0)
    assert isinstance(last, Window) and last.canary_s is None


# ---------------------------------------------------------------- once the result is out

RESULT = Result(digest="d", peak_memory_bytes=0, peak_rss_bytes=1)


def finishing() -> tuple[Supervisor, Silent]:
    """One whose result came at 20 s."""
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.tell(Finish(), 12.0)
    one.heard(RESULT, 20.0)
    return one, child


def test_one_that_does_not_leave_its_exchange_is_ended_and_has_finished() -> None:
    one, child = finishing()
    one.attend(29.9)
    assert child.stacks == []
    for now_s in (30.1, 30.2):  # until it is dead
        one.attend(now_s)
    assert child.stacks == [True]
    ended = one.ended()
    assert (ended.outcome, ended.after_result) == (Finished(), "did not leave its exchange")


def test_one_that_crashes_in_leaving_has_finished() -> None:
    one, child = finishing()
    child.outcome = Failed(cause="crash(SIGABRT)", message="ended by SIGABRT")
    ended = one.ended()
    assert (ended.outcome, ended.after_result) == (Finished(), "ended by SIGABRT")


def test_one_that_is_cancelled_after_its_result_is_cancelled() -> None:
    one, _ = finishing()
    one.end(21.0, Failed(cause="cancelled", message="because"))
    one.attend(500.0)
    assert cause(one) == "cancelled"


def test_without_a_result_it_has_not() -> None:
    one, child = supervisor()
    one.heard(READY, 5.0)
    one.tell(Finish(), 12.0)
    child.outcome = Failed(cause="crash(SIGABRT)", message="ended by SIGABRT")
    assert cause(one) == "crash(SIGABRT)"
