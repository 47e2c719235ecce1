"""The only timed loop, the same for every strategy.

Windows of one `Run` share their edges. So their seconds add up to the time from the common start to the last edge.
An edge is a device synchronisation, or a mark in the queue of a device that has a clock: a synchronisation empties
the queue, which makes a window of 0.3 s about 0.7 % slower on an H200.
"""

from __future__ import annotations

import gzip
import math
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from scaling.analysis.measured import device_use
from scaling.frameworks.abilities import Able, Tracer, able, digest_of, of_trainer
from scaling.frameworks.base import Trainer
from scaling.records.events import Event, Inspected, Rested, Result, Window
from scaling.records.store import unlinked
from scaling.records.task import Command, Evaluate, Finish, Inspect, Rest, Run, Train
from scaling.text import one_line
from scaling.worker.training import Learner

# ---------------------------------------------------------------- uncounted steps
# After the measured windows: without exchange, exchanges during compute, and with profilers. They are collective:
# every rank runs the same number of them, whatever a profiler does.

FOLDER = "traces"


def trace_path(log: str) -> Path:
    """Return the beginning of a rank's trace names by its log's: `traces/0004-torch-gloo-exchange-n2-r0.1`."""
    path = Path(log)
    return path.parent.parent / FOLDER / path.stem


def inspected(worker: Worker, inspect: Inspect, path: Path | None) -> Inspected:
    unsynced = tuple(_unsynced(worker, inspect.windows, inspect.steps))
    beside = _beside(worker, inspect.beside_windows, inspect.steps)
    traced = _traced(worker, inspect.traced_steps, path) if inspect.traced_steps and path else Inspected()
    return replace(traced, unsynced=unsynced, beside=beside)


def _unsynced(worker: Worker, windows: int, steps: int) -> Iterator[Window]:
    """All ranks begin together. The first step after an exchange may still wait for one (DDP's buffers)."""
    if not windows or (trainer := able(worker.trainer, "unsynced_step")) is None:
        return
    trainer.step()
    trainer.unsynced_step()
    trainer.sync()
    yield from _windows(worker, trainer.unsynced_step, windows, steps)


def _beside(worker: Worker, windows: int, steps: int) -> tuple[Window, ...]:
    """The exchange alone, in a thread, while this thread computes without exchange."""
    trainer = able(worker.trainer, "unsynced_step", "enter_thread", "exchange_alone")
    if not windows or trainer is None or (alone := trainer.exchange_alone()) is None:
        return ()
    with ThreadPoolExecutor(1, initializer=trainer.enter_thread) as thread:
        found = thread.submit(_exchanges, worker.timing(alone), windows, steps)
        while not found.done():
            trainer.unsynced_step()
            # Not `sync`, which also waits for the exchange: the rest of it would run without compute.
            trainer.loss()
    return found.result()


def _exchanges(worker: Worker, windows: int, steps: int) -> tuple[Window, ...]:
    """The first exchange is not counted: it gives all ranks a common start."""
    worker.trainer.step()
    worker.trainer.sync()
    return tuple(_windows(worker, worker.trainer.step, windows, steps))


def _windows(worker: Worker, step: Callable[[], None], windows: int, steps: int) -> Iterator[Window]:
    start_s: float | None = None
    for index in range(windows):
        window = worker.timed(step, steps, index, start_s)
        yield window
        start_s = window.end_s


@contextmanager
def _noted(notes: list[str], what: str) -> Iterator[None]:
    """A profiler may raise anything: that costs the trace, not the point."""
    try:
        yield
    except Exception as error:
        why = one_line(f"{type(error).__name__}: {error}")
        notes.append(f"no trace: the profiler did not {what}: {why}")


def _traced(worker: Worker, steps: int, path: Path) -> Inspected:
    """Profile the steps; without a profiler that starts they have no window. Exceptions of steps are raised."""
    trainer, gpu = worker.trainer, None
    tracers = list(traced.tracers()) if (traced := able(trainer, "tracers")) else []
    notes = [] if tracers else ["no trace: the strategy's trainer has no profiler"]
    started, files = list[tuple[Tracer, Path]](), list[str]()
    for each in tracers:
        with _noted(notes, "start"):
            unlinked(path.parent).mkdir(parents=True, exist_ok=True)
            file = path.with_name(path.name + each.end)
            each.start(unlinked(file))
            started.append((each, file))
    # Profilers take different times to start: give ranks a common start.
    trainer.step()
    trainer.sync()
    with ExitStack() as stack:
        for each, _ in started:
            stack.enter_context(each.window())
        window = worker.timed(trainer.step, steps)
    for each, file in reversed(started):
        with _noted(notes, "end"):
            each.stop()
            files.append(f"{FOLDER}/{file.name}")
            if each.tells_gpu:
                gpu = device_use.gpu_time(gzip.decompress(file.read_bytes()), steps)
                if gpu is None:
                    notes.append("the trace has no GPU events: check that this user may read its counters (CUPTI)")
    return Inspected(traced=(window,) if started else (), traces=tuple(files), gpu=gpu, notes=tuple(notes))


# ---------------------------------------------------------------- loop

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
        self.trainer, self._send, self._waiting = trainer, send, waiting
        self._pausing = able(trainer, "several", "closing_notes", "found")
        # The time of pauses is no time of any window.
        self._clock, self._unix_clock = clock, unix_clock
        if self._pausing:
            self._clock, self._unix_clock = self._without_pauses(clock), self._without_pauses(unix_clock)
        self._times_steps, self._trace, self._learner = times_steps, trace, learner
        self._is_immediate = getattr(trainer, "is_done_on_return", False)
        has_clock = getattr(trainer, "has_device_clock", False)
        self._marks = able(trainer, "mark", "between_marks_s") if has_clock else None
        self._reported = 0  # samples up to the end of the last window
        self._stale = able(trainer, "staleness")
        self._waited_s, self._fed, self._first_digest = waited_s, fed, first_digest
        self._result: Result | None = None
        self._phase = "warm-up"

    def _without_pauses(self, clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() - self._paused_s

    @property
    def _paused_s(self) -> float:
        return self._pausing.paused_s if self._pausing else 0.0

    def obey(self, command: Command) -> bool:
        """Carry out one command; return False after the last. Raises NanLoss and whatever the strategy raises."""
        match command:
            case Run():
                self._run(command)
            case Rest():
                self._release()
                self._send(Rested())
            case Inspect():
                # Now: later steps change the parameters, and profilers take memory.
                self._result = self._measured_result()
                # The sum of a script's steps hides which rank was late in which step.
                self._times_steps |= self._pausing is not None
                found = inspected(self, command, self._trace)
                self._release()
                self._send(found)
            case Train():
                self._send(self._epoch(command))
            case Evaluate():
                assert self._learner is not None
                self._send(self._learner.evaluated(command))
            case Finish():
                result = self._result or self._measured_result()
                self._send(self._learner.kept(result) if self._learner else result)
                return False
        return True

    def _run(self, run: Run) -> None:
        if run.measured or run.is_later:
            self._phase = "measured" if run.measured else "soak"
        for window in self._by_host(run) if self._marks is None else self._by_device(run, self._marks):
            self._send(replace(window, measured=run.measured), hold=run.measured and window.index < run.last)
        while run.linger and not self._waiting():
            self.trainer.step()
            self.trainer.sync()

    def _by_host(self, run: Run) -> Iterator[Window]:
        trainer = self.trainer
        self._lead(run)
        trainer.sync()
        start_s = self._clock()
        for index in range(run.first, run.last + 1):
            window = self._judged(self.timed(trainer.step, run.steps, index, start_s), self._phase)
            yield window
            start_s = window.end_s

    def _by_device(self, run: Run, device: Able) -> Iterator[Window]:
        """Yield each window once the next one is in the queue. Only the last one has a loss: that needs a wait."""
        trainer, marks = self.trainer, run.steps if self._times_steps else 1
        trainer.sync()
        device.mark()
        begun_s = edge_s = self._clock()  # the device is idle: it reaches the mark at once
        self._lead(run)
        device.mark()
        queued = self._queued(run.steps, run.first, device)
        for index in range(run.first + 1, run.last + 1):
            before, queued = queued, self._queued(run.steps, index, device)
            window = self._reached(before, device, marks, edge_s, ahead=marks)
            yield window
            edge_s = window.end_s
        trainer.sync()
        device.mark()  # later than the last window's: the host may have waited for servers
        took_s = self._clock() - begun_s
        last = self._judged(self._reached(queued, device, marks, edge_s, ahead=1), self._phase)
        waited_s = sum(of_trainer(device, "between_marks_s"))
        yield replace(last, turn_s=took_s, turn_device_s=last.end_s - begun_s + waited_s)

    def _lead(self, run: Run) -> None:
        for _ in range(run.lead if run.measured or run.is_later else 0):
            self.trainer.step()

    def _queued(self, steps: int, index: int, device: Able) -> Callable[..., Window]:
        """Enqueue the steps of a window; return the window without its times."""
        before = self._counts()
        for count in [1] * steps if self._times_steps else [steps]:
            self._steps(self.trainer.step, count, 0.0)
            device.mark()
        return partial(Window, index=index, measured=False, steps=steps, **self._counted(before))

    def _reached(
        self, queued: Callable[..., Window], device: Able, marks: int, edge_s: float, ahead: int = 0
    ) -> Window:
        """Wait until the device reaches the end of a window of `marks` marks; `ahead` more are in the queue.
        `edge_s`: the end of the window before, or the begin of the turn."""
        passed_s: tuple[float, ...] = of_trainer(device, "between_marks_s", ahead)
        start_s = edge_s + sum(passed_s[:-marks])  # the lead
        end_s = start_s + sum(passed_s[-marks:])
        unix_s = self._unix_clock() - (self._clock() - end_s)
        step_s = passed_s[-marks:] if self._times_steps else ()
        return queued(start_s=start_s, end_s=end_s, end_unix_s=unix_s, step_s=step_s)

    def _release(self) -> None:
        if releasing := able(self.trainer, "release_memory"):
            releasing.release_memory()

    def _judged(self, window: Window, phase: str) -> Window:
        """Add what is known after a device synchronisation. Raises NanLoss."""
        loss: float | None = of_trainer(self.trainer, "loss")
        if loss is not None and not math.isfinite(loss):
            raise NanLoss(f"the loss is {loss} after {phase} window {window.index + 1}")
        return replace(window, loss=loss, staleness=of_trainer(self._stale, "staleness") if self._stale else None)

    def _epoch(self, train: Train) -> Window:
        """The window is from the command to the device's end of the last step: every step of a training counts."""
        assert self._learner is not None
        window = self.timed(self._learner.stepping(train, self.trainer.step), train.steps, train.number)
        return replace(self._judged(window, "measured"), measured=True)

    def timed(self, step: Callable[[], None], steps: int, index: int = 0, start_s: float | None = None) -> Window:
        """Time the steps from `start_s`, or from now if the device is idle, to the device's end of them."""
        before = self._counts()
        begun_s = self._clock() if start_s is None else start_s
        step_s = self._steps(step, steps, begun_s)
        self.trainer.sync()
        end_s = self._clock()
        return Window(
            index=index, measured=False, steps=steps, start_s=begun_s, end_s=end_s, end_unix_s=self._unix_clock(),
            step_s=step_s, **self._counted(before),
        )  # fmt: skip

    def timing(self, trainer: Trainer) -> Worker:
        return Worker(trainer, self._send, self._waiting, self._clock, self._unix_clock)

    def _counts(self) -> tuple[int, float | None, float]:
        return self._samples(), self._waited_s(), self._paused_s

    def _counted(self, before: tuple[int, float | None, float]) -> dict[str, Any]:
        """Return the fields of a window that count what was fed since its counts at the start."""
        (samples, waited_s, paused_s), now_s = before, self._waited_s()
        reported, self._reported = self._reported, self._samples()
        return {
            "samples": self._reported - samples,
            "uncounted_samples": samples - reported,
            "waited_s": None if waited_s is None or now_s is None else now_s - waited_s,
            "paused_s": self._paused_s - paused_s,
        }

    def _samples(self) -> int:
        fed = self._fed()
        told: int = of_trainer(self.trainer, "samples") if fed is None else fed
        return told

    def _steps(self, step: Callable[[], None], count: int, start_s: float) -> tuple[float, ...]:
        """Run the steps; return the seconds of each if they have ended when they return."""
        if self._pausing:
            step_s = self._pausing.several(step, count)
            return step_s if self._times_steps and self._is_immediate else ()
        edges_s = [start_s]
        for _ in range(count):
            step()
            if self._times_steps and self._is_immediate:
                edges_s.append(self._clock())
        return tuple(end_s - begun_s for begun_s, end_s in pairwise(edges_s))

    def _measured_result(self) -> Result:
        self.trainer.sync()
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB  # without the digest's copies
        return Result(
            digest=digest_taken(self.trainer),
            peak_memory_bytes=of_trainer(self.trainer, "peak_memory_bytes"),
            peak_rss_bytes=rss,
            first_digest=self._first_digest,
            notes=self._pausing.closing_notes() if self._pausing else (),
            found=self._pausing.found() if self._pausing else {},
        )


def digest_taken(trainer: Trainer) -> str | None:
    """Hash the parameters on the device, or those that a trainer shows; else return its own digest."""
    if able(trainer, "device_digest") and (found := of_trainer(trainer, "device_digest")) is not None:
        return str(found)
    if showing := able(trainer, "weights"):
        return digest_of(showing.weights())
    told: str | None = of_trainer(trainer, "digest")
    return told
