"""The only timed loop, the same for every strategy.

Windows of one `Run` share their edges, each at a device synchronisation. So their seconds add up to the time from
the common start to the last edge.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from scaling.frameworks.abilities import Immediate, Marking, Shown, Stale
from scaling.frameworks.answers import of_trainer
from scaling.frameworks.base import Trainer
from scaling.frameworks.digest import digest_of
from scaling.records.events import Event, Rested, Result, Window
from scaling.records.task import Command, Evaluate, Finish, Inspect, Rest, Run, Train
from scaling.worker.inspection import inspected
from scaling.worker.training import Learner

KIB = 1024


class Send(Protocol):
    """The function that reports events; with `hold` an event may wait for the next one."""

    def __call__(self, event: Event, *, hold: bool = False) -> None: ...


class NanLoss(Exception):
    """A loss that is not finite; the message tells the window."""


class Worker:
    """The loop that runs windows of `trainer` and reports them through `send`.

    `waiting`: whether the next command has arrived, which ends lingering.
    `clock`, `unix_clock`: CLOCK_MONOTONIC, and the wall clock as an independent witness for the audit.
    `times_steps`: time each step too, if steps end when they return or the device notes their ends.
    `trace`: beginning of the names of trace files.
    `learner`: for a training to an accuracy.
    `waited_s`: seconds that the feed has kept the loop waiting so far.
    `fed`: samples that the feed has handed out; None if the batch stays the same: the trainer then counts.
    `first_digest`: the digest before the first step.
    """

    def __init__(
        self,
        trainer: Trainer,
        send: Send,
        waiting: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
        *,
        times_steps: bool = False,
        trace: Path | None = None,
        learner: Learner | None = None,
        waited_s: Callable[[], float | None] = lambda: None,
        fed: Callable[[], int | None] = lambda: None,
        first_digest: str | None = None,
    ) -> None:
        self.trainer = trainer
        self._send = send
        self._waiting = waiting
        self._clock = clock
        self._unix_clock = unix_clock
        self._times_steps = times_steps and isinstance(trainer, Immediate) and trainer.is_done_on_return
        self._marks = (
            trainer if times_steps and isinstance(trainer, Marking) and trainer.has_device_clock else None
        )
        self._reported = 0  # samples up to the end of the last window
        self._stale = trainer if isinstance(trainer, Stale) else None
        self._trace = trace
        self._learner = learner
        self._waited_s = waited_s
        self._fed = fed
        self._first_digest = first_digest
        self._result: Result | None = None
        self._phase = "warm-up"

    def obey(self, command: Command) -> bool:
        """Carry out one command; return False after the last. Raises NanLoss and whatever the strategy raises."""
        match command:
            case Run():
                self._run(command)
                return True
            case Rest():
                self._send(Rested())
                return True
            case Inspect():
                # Now: later steps change the parameters, and profilers take memory.
                self._result = self._measured_result()
                self._send(inspected(self, command, self._trace))
                return True
            case Train():
                self._send(self._epoch(command))
                return True
            case Evaluate():
                assert self._learner is not None
                self._send(self._learner.evaluated(command))
                return True
            case Finish():
                result = self._result or self._measured_result()
                self._send(self._learner.kept(result) if self._learner else result)
                return False

    def _run(self, run: Run) -> None:
        trainer = self.trainer
        if run.measured or run.is_later:
            # Commands reach ranks at different times. One uncounted exchange gives them a common start.
            trainer.step()
            self._phase = "measured" if run.measured else "soak"
        trainer.sync()
        start_s = self._clock()
        for number in range(run.windows):
            index = run.first + number
            window = replace(
                self.timed(trainer.step, run.steps, index, start_s),
                measured=run.measured,
                loss=_finite(of_trainer(trainer, "loss"), index, self._phase),
                staleness=self._staleness(),
            )
            self._send(window, hold=run.measured and number + 1 < run.windows)
            start_s = window.end_s
        while run.linger and not self._waiting():
            trainer.step()
            trainer.sync()

    def _epoch(self, train: Train) -> Window:
        """The window is from the command to the device's end of the last step: every step of a training counts."""
        assert self._learner is not None
        window = self.timed(self._learner.stepping(train, self.trainer.step), train.steps, train.number)
        loss = _finite(of_trainer(self.trainer, "loss"), train.number, "measured")
        return replace(window, measured=True, loss=loss, staleness=self._staleness())

    def _staleness(self) -> float | None:
        return of_trainer(self._stale, "staleness") if self._stale else None

    def timed(self, step: Callable[[], None], steps: int, index: int = 0, start_s: float | None = None) -> Window:
        """Time the steps from `start_s`, or from now if the device is idle, to the device's end of them."""
        trainer = self.trainer
        before, reported, waited_s = self._samples(), self._reported, self._waited_s()
        begun_s = self._clock() if start_s is None else start_s
        step_s = self._steps(step, steps, begun_s)
        trainer.sync()
        end_s = self._clock()
        if self._marks is not None:
            step_s = of_trainer(self._marks, "between_marks_s")
        self._reported = self._samples()
        return Window(
            index=index,
            measured=False,
            steps=steps,
            samples=self._reported - before,
            start_s=begun_s,
            end_s=end_s,
            end_unix_s=self._unix_clock(),
            uncounted_samples=before - reported,
            step_s=step_s,
            waited_s=_since(waited_s, self._waited_s()),
        )

    def timing(self, trainer: Trainer) -> Worker:
        return Worker(trainer, self._send, self._waiting, self._clock, self._unix_clock)

    def _samples(self) -> int:
        fed = self._fed()
        told: int = of_trainer(self.trainer, "samples") if fed is None else fed
        return told

    def _steps(self, step: Callable[[], None], count: int, start_s: float) -> tuple[float, ...]:
        """Run the steps; return the seconds of each if the host's clock times them."""
        if self._marks is not None:
            return self._marked(step, count, self._marks.mark)
        if not self._times_steps:
            for _ in range(count):
                step()
            return ()
        edges_s = [start_s]
        for _ in range(count):
            step()
            edges_s.append(self._clock())
        return tuple(end_s - begun_s for begun_s, end_s in pairwise(edges_s))

    def _marked(self, step: Callable[[], None], count: int, mark: Callable[[], None]) -> tuple[float, ...]:
        mark()
        for _ in range(count):
            step()
            mark()
        return ()

    def _measured_result(self) -> Result:
        self.trainer.sync()
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
        return Result(
            digest=digest_taken(self.trainer),
            peak_memory_bytes=of_trainer(self.trainer, "peak_memory_bytes"),
            peak_rss_bytes=rss,
            first_digest=self._first_digest,
        )


def digest_taken(trainer: Trainer) -> str | None:
    """Hash the parameters that a trainer shows; if it shows none, return its own digest."""
    if isinstance(trainer, Shown):
        return digest_of(trainer.weights())
    told: str | None = of_trainer(trainer, "digest")
    return told


def _since(before_s: float | None, now_s: float | None) -> float | None:
    return None if before_s is None or now_s is None else now_s - before_s


def _finite(loss: float | None, index: int, phase: str) -> float | None:
    if loss is not None and not math.isfinite(loss):
        raise NanLoss(f"the loss is {loss} after {phase} window {index + 1}")
    return loss
