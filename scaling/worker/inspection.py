"""Uncounted steps after the measured windows: without exchange, exchanges during compute, and with profilers.

They are collective: every rank runs the same number of them, whatever a profiler does.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol

from scaling.analysis.measured import trace_split
from scaling.frameworks.abilities import Overlapping, Traceable, Tracer, Unsynced
from scaling.frameworks.base import Trainer
from scaling.records.events import Inspected, Window
from scaling.records.store import unlinked
from scaling.records.task import Inspect
from scaling.records.telemetry import GpuTime
from scaling.text import one_line

FOLDER = "traces"


class Timer(Protocol):
    """The interface that times steps: the worker's loop."""

    trainer: Trainer

    def timed(self, step: Callable[[], None], steps: int, index: int = 0, start_s: float | None = None) -> Window:
        """Time one window."""

    def timing(self, trainer: Trainer) -> Timer:
        """Return the same for another trainer."""


def trace_path(log: str) -> Path:
    """Return the beginning of a rank's trace names by its log's: `traces/0004-torch-gloo-exchange-n2-r0.1`."""
    path = Path(log)
    return path.parent.parent / FOLDER / path.stem


def inspected(timer: Timer, inspect: Inspect, path: Path | None) -> Inspected:
    unsynced = tuple(_unsynced(timer, inspect.windows, inspect.steps))
    beside = _beside(timer, inspect.beside_windows, inspect.steps)
    if not inspect.traced_steps or path is None:
        return Inspected(unsynced=unsynced, beside=beside)
    tracing = Tracing(timer.trainer, path)
    traced = tracing.run(timer, inspect.traced_steps)
    return Inspected(
        unsynced=unsynced,
        beside=beside,
        traced=traced,
        traces=tuple(f"{FOLDER}/{file.name}" for file in tracing.files),
        gpu=tracing.gpu,
        notes=tuple(tracing.notes),
    )


def _unsynced(timer: Timer, windows: int, steps: int) -> Iterator[Window]:
    """All ranks begin together. The first step after an exchange may still wait for one (DDP's buffers)."""
    trainer = timer.trainer
    if not windows or not isinstance(trainer, Unsynced):
        return
    trainer.step()
    trainer.unsynced_step()
    trainer.sync()
    yield from _windows(timer, trainer.unsynced_step, windows, steps)


def _beside(timer: Timer, windows: int, steps: int) -> tuple[Window, ...]:
    """The exchange alone, in a thread, while this thread computes without exchange."""
    trainer = timer.trainer
    if not windows or not isinstance(trainer, Overlapping) or (alone := trainer.exchange_alone()) is None:
        return ()
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(_exchanges, timer.timing(alone), windows, steps)
        while not found.done():
            trainer.unsynced_step()
            # Not `sync`, which also waits for the exchange: the rest of it would run without compute.
            trainer.loss()
    return found.result()


def _exchanges(timer: Timer, windows: int, steps: int) -> tuple[Window, ...]:
    """The first exchange is not counted: it gives all ranks a common start."""
    timer.trainer.step()
    timer.trainer.sync()
    return tuple(_windows(timer, timer.trainer.step, windows, steps))


def _windows(timer: Timer, step: Callable[[], None], windows: int, steps: int) -> Iterator[Window]:
    start_s: float | None = None
    for index in range(windows):
        window = timer.timed(step, steps, index, start_s)
        yield window
        start_s = window.end_s


class Tracing:
    """A rank's profilers: the `files` they wrote, `gpu` times from these, and `notes` of what went wrong."""

    def __init__(self, trainer: Trainer, path: Path) -> None:
        self.files: list[Path] = []
        self.gpu: GpuTime | None = None
        self.notes: list[str] = []
        self._path = path
        self._tracers = list(trainer.tracers()) if isinstance(trainer, Traceable) else []
        if not self._tracers:
            self.notes.append("no trace: the strategy's trainer has no profiler")

    def run(self, timer: Timer, steps: int) -> tuple[Window, ...]:
        """Run the steps and return their window, or none if no profiler starts. Exceptions of steps are raised."""
        started = [each for each in self._tracers if self._tried("start", partial(self._start, each))]
        trainer = timer.trainer
        # Profilers take different times to start: give ranks a common start.
        trainer.step()
        trainer.sync()
        with ExitStack() as stack:
            for each in started:
                stack.enter_context(each.window())
            window = timer.timed(trainer.step, steps)
        for each in reversed(started):
            self._tried("end", partial(self._stop, each, steps))
        return (window,) if started else ()

    def _file(self, tracer: Tracer) -> Path:
        return self._path.with_name(self._path.name + tracer.end)

    def _start(self, tracer: Tracer) -> None:
        unlinked(self._path.parent).mkdir(parents=True, exist_ok=True)
        tracer.start(unlinked(self._file(tracer)))

    def _stop(self, tracer: Tracer, steps: int) -> None:
        tracer.stop()
        file = self._file(tracer)
        self.files.append(file)
        if tracer.tells_gpu:
            self.gpu = trace_split.gpu_time(gzip.decompress(file.read_bytes()), steps)
            if self.gpu is None:
                self.notes.append(
                    "the trace has no GPU events: check that this user may read its counters (CUPTI)"
                )

    def _tried(self, what: str, act: Callable[[], None]) -> bool:
        """A profiler may raise anything: that costs the trace, not the point."""
        try:
            act()
        except Exception as error:
            why = one_line(f"{type(error).__name__}: {error}")
            self.notes.append(f"no trace: the profiler did not {what}: {why}")
            return False
        return True
