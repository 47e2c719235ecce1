"""The project's own workers of one point on this machine, told blocks of steps.

They are real children of agent/child.py with the tasks that rank 0 would hand out, without the agents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Child, Start, log_tail
from scaling.agent.environment import child_environ
from scaling.plan.tasks import helper_task, worker_tasks
from scaling.records.events import Announce, Error, Event, Window
from scaling.records.point import EXCHANGING
from scaling.records.task import Run, Task
from tests.bench.environment import with_heap
from tests.bench.paired import Answer
from tests.bench.turns import Guard, Program

# What is left of a child is found by its attempt and rank: two programs need two.
_attempts = count(1)


@contextmanager
def program(tasks: Sequence[Task], folder: Path, guard: Guard, *, start: Start | None = None) -> Iterator[Program]:
    """The workers of a point, and its helpers; `tasks` are those of its ranks. `start`: how they start, if not
    fresh."""
    point, strategy = tasks[0].point, frameworks.load(tasks[0].point.strategy)
    traits = strategy.traits(point.strategy)
    asynchronous = point.kind in EXCHANGING and not traits.synchronous
    started = Program(f"scaling {point.strategy}", guard, asynchronous=asynchronous)
    attempt = next(_attempts)
    tasks = [replace(task, attempt=attempt, log=str(folder / f"{attempt} rank {task.rank}.log")) for task in tasks]
    with started:
        wanted = strategy.helpers(tasks[0]) if point.kind in EXCHANGING else []
        helpers = [started.add(Member(helper_task(tasks, helper), start=start)) for helper in wanted]
        announced: dict[str, str] = {}
        for told in started.wait_for(helpers, Member.announced):
            announced.update(told)
        for task in worker_tasks(tasks, traits):
            told_all = replace(task, announced=announced)
            started.add(Member(told_all, lingers=asynchronous, start=start))
        yield started


class Member:
    """A worker or a helper (a `turns.Member`)."""

    def __init__(self, task: Task, *, lingers: bool = False, start: Start | None = None) -> None:
        strategy = frameworks.load(task.point.strategy)
        asked = strategy.environ(task, task.announced)
        self._child = Child(task, with_heap(child_environ(os.environ, task, asked)), start)
        self._lingers = lingers
        self.name = f"{task.role} {task.rank}"
        self.measures = task.role == "worker"

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def fd(self) -> int:
        """Where its events come."""
        return self._child.events_fd

    def tell(self, steps: int) -> None:
        self._child.tell(Run(windows=1, steps=steps, measured=True, linger=self._lingers))

    def answer(self) -> Answer | None:
        """The window that it reports."""
        for event in self._events():
            if isinstance(event, Window):
                return Answer(event.samples, event.seconds, event.loss)
        return None

    def announced(self) -> dict[str, str] | None:
        return next((event.values for event in self._events() if isinstance(event, Announce)), None)

    def _events(self) -> list[Event]:
        events = self._child.events()
        for event in events:
            if isinstance(event, Error):
                raise RuntimeError(f"{self.name}: {event.message}\n{event.traceback}")
        return events

    def ended(self) -> bool:
        """Whether it has, which it never does before it is killed."""
        return self._child.ended()

    def log_tail(self) -> str:
        """The end of its log."""
        return log_tail(Path(self._child.task.log))

    def kill(self) -> None:
        """Its group, stopped or not, and what left the group."""
        self._child.reap()
