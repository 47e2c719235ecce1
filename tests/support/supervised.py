"""A supervisor of a child that is none, for the tests of its clocks."""

from __future__ import annotations

import signal

from msgspec.structs import replace

from scaling.agent.agent import Supervisor
from scaling.agent.child import Child
from scaling.records.events import Event, Exit, Failed, Ready, Window
from scaling.records.task import Clocks, Command, Run
from tests.support.points import TASK

READY = Ready(import_s=1.0, build_s=1.0, parameters=1, gradient_bytes=4, device_name="x")
ONE = Run(windows=1, steps=1, measured=False)


class Silent(Child):
    """A child that only notes how it was ended."""

    events_fd = exit_fd = stdin_fd = -1
    unsent = False
    pid = 0

    def __init__(self, role: str = "worker") -> None:
        clocks = Clocks(startup_s=100.0, stall_s=10.0, deadline_s=1000.0)
        self.task = replace(TASK, clocks=clocks, role=role)
        self.stacks: list[bool] = []
        self.seen = Exit(code=-signal.SIGTERM, signals=frozenset({signal.SIGTERM}), log_tail="tail")
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

    def reap(self) -> Exit:
        return self.seen


def window(index: int) -> Window:
    return Window(index=index, measured=False, steps=1, samples=1, start_s=0.0, end_s=1.0, end_unix_s=0.0)


def supervisor(role: str = "worker") -> tuple[Supervisor, Silent]:
    child = Silent(role)
    return Supervisor(child, {}, 0.0), child


def cause(one: Supervisor) -> str | None:
    """Why the agent ended it."""
    reason = one.ended().exit.reason
    return reason.cause if reason else None


def ended_by_agent(cause: str, message: str = "") -> Exit:
    """What an agent sees of a child that it has ended with TERM."""
    reason = Failed(cause=cause, message=message)
    return Exit(code=-signal.SIGTERM, reason=reason, signals=frozenset({signal.SIGTERM}))
