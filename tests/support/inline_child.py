"""A worker in this process that follows the fake strategy's script on a virtual clock."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Child
from scaling.frameworks.fake.strategy import FakeTrainer
from scaling.records.events import Announce, Event, Exit, Hello, Ready
from scaling.records.point import EXCHANGING
from scaling.records.task import Command, Task
from scaling.worker.loop import Worker, trace_path
from scaling.worker.run_task import event_of
from scaling.worker.training import Learner, samples


class Clock:
    """Virtual seconds."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Told(NamedTuple):
    """A command that a worker was told, and who ran when every agent had obeyed: neither stopped nor ended."""

    task: Task
    command: Command
    running: tuple[Task, ...] = ()


class InlineChild(Child):
    """The worker's loop on a virtual clock of its own; obeys at once, unless it is stopped."""

    events_fd = exit_fd = stdin_fd = -1
    unsent = False

    def __init__(self, task: Task, world: Clock, note: Callable[[Command], None]) -> None:
        self.task = task
        self.pid = 0
        self.pauses = self.resumes = 0
        self._world = world
        self._note = note
        self._clock = Clock(world.now_s)
        begun = self._ready() if task.role == "worker" else Announce(values={task.role: "here"})
        self._events: list[Event] = [Hello(pid=0, affinity=task.cpus), begun]
        self._over = False
        self._seen = Exit()
        trainer = FakeTrainer(task, clock=self._clock, sleep=self._clock.sleep)
        try:
            trainer.fail_early()
        except OSError as error:
            self._events.pop()
            self._fail(error)
        self._worker = Worker(
            trainer,
            lambda event, hold=False: self._events.append(event),
            lambda: True,
            self._clock,
            self._clock,
            times_steps=task.times_steps,
            trace=trace_path(task.log),
            learner=Learner(trainer, task, self._events.append, self._clock) if task.point.regime else None,
        )

    def _ready(self) -> Ready:
        training_samples, data_samples = samples(self.task)
        crossing = frameworks.load(self.task.point.strategy).bytes_per_step(self.task, 4000)
        return Ready(
            import_s=0.0, build_s=0.0, parameters=1000, gradient_bytes=4000, device_name="fake",
            crossing_bytes_per_step=crossing if self.task.point.kind in EXCHANGING else None,
            training_samples=training_samples, data_samples=data_samples,
        )  # fmt: skip

    def _fail(self, error: Exception) -> None:
        self._events.append(replace(event_of(error), traceback=""))
        self._seen = Exit(code=1)
        self._over = True

    @property
    def runs(self) -> bool:
        return not self._over and self.pauses == self.resumes

    def tell(self, command: Command) -> None:
        assert self.pauses == self.resumes, f"{self.task.point.label} is stopped and hears of nothing"
        self._note(command)
        self._clock.now_s = max(self._clock.now_s, self._world.now_s)
        try:
            self._over = not self._worker.obey(command)
        except Exception as error:
            self._fail(error)
        self._world.now_s = max(self._world.now_s, self._clock.now_s)

    def push(self) -> None:
        return None

    def pause(self) -> None:
        self.pauses += 1

    def resume(self) -> None:
        self.resumes += 1
        assert self.resumes <= self.pauses, f"{self.task.point.label} was not stopped"

    def events(self) -> list[Event]:
        said, self._events[:] = list(self._events), []
        return said

    def end(self, now_s: float, *, grace_s: float = 2.0, stacks: bool = False) -> None:
        if self.pauses > self.resumes:
            self.resume()
        if not self._over:
            self._seen = Exit(code=-signal.SIGTERM, signals=frozenset({signal.SIGTERM}))
        self._over = True

    def pursue(self, now_s: float) -> None:
        return None

    def ended(self) -> bool:
        return self._over

    def reap(self) -> Exit:
        return self._seen
