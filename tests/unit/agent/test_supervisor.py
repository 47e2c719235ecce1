"""A child's three clocks, without a child: who waits for whom decides whose silence counts."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.agent.supervisor import Supervisor
from scaling.records.events import Announce, Event, Failed, Finished, Outcome, Ready, Window
from scaling.records.task import Clocks, Command, Finish, Run
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

    def tell(self, command: Command) -> None:
        return None

    def push(self) -> None:
        return None

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
