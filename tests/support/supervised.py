"""A supervisor of a child that is none, for the tests of its clocks."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.agent.supervisor import Supervisor
from scaling.records.events import Event, Failed, Outcome, Ready, Window
from scaling.records.task import Clocks, Command, Run
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
