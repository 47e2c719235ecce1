"""The only timed loop. It is the same for every strategy: no strategy times itself.

The worker obeys rank 0's commands: `Run` so many windows of so many steps, then `Finish`. Windows of
one Run share their edges (the end of one is the start of the next, between two device
synchronisations), so their seconds add up to the time from the common start to the last one.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from typing import Protocol

from scaling.frameworks.base import Stale, Trainer
from scaling.records.events import Event, Result, Window
from scaling.records.task import Command, Finish, Run

KIB = 1024


class Send(Protocol):
    """How events are reported; with `hold` one may wait for others to follow."""

    def __call__(self, event: Event, *, hold: bool = False) -> None: ...


class NanLoss(Exception):
    """The loss of a window is not a number; its message says where."""


class Worker:
    """Runs windows of `trainer` and reports them through `send`.

    `clock` is CLOCK_MONOTONIC, `unix_clock` the wall clock, an independent witness for the audit.
    `waiting` tells whether the next command has arrived, which ends lingering.
    """

    def __init__(
        self,
        trainer: Trainer,
        send: Send,
        waiting: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self.trainer = trainer
        self._send = send
        self._waiting = waiting
        self._clock = clock
        self._unix_clock = unix_clock

    def obey(self, command: Command) -> bool:
        """Carry out one command; False after the last. Raises NanLoss and whatever the strategy raises."""
        match command:
            case Run():
                self._run(command)
                return True
            case Finish():
                self._finish()
                return False

    def _run(self, run: Run) -> None:
        trainer, clock = self.trainer, self._clock
        if run.measured:
            # The command reaches the ranks at different times: whoever has it first would count its waiting
            # for the last. One exchange that is not counted gives them a common start.
            trainer.step()
        trainer.sync()
        start_s = clock()
        for index in range(run.windows):
            before = trainer.samples
            for _ in range(run.steps):
                trainer.step()
            trainer.sync()
            end_s = clock()
            window = Window(
                index=index,
                measured=run.measured,
                steps=run.steps,
                samples=trainer.samples - before,
                start_s=start_s,
                end_s=end_s,
                end_unix_s=self._unix_clock(),
                loss=_finite(trainer.loss(), index, measured=run.measured),
                staleness=trainer.staleness() if isinstance(trainer, Stale) else None,
            )
            self._send(window, hold=run.measured and index + 1 < run.windows)
            start_s = end_s
        while run.linger and not self._waiting():
            trainer.step()
            trainer.sync()

    def _finish(self) -> None:
        self.trainer.sync()
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
        digest = self.trainer.digest()
        memory = self.trainer.peak_memory_bytes()
        self.trainer.close()
        self._send(Result(digest=digest, peak_memory_bytes=memory, peak_rss_bytes=rss))


def _finite(loss: float | None, index: int, *, measured: bool) -> float | None:
    if loss is not None and not math.isfinite(loss):
        phase = "measured" if measured else "warm-up"
        raise NanLoss(f"the loss is {loss} after {phase} window {index + 1}")
    return loss
