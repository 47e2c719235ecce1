"""What feeds a rank: the reference feed or its framework's own pipeline, how long was waited for it, and the kind
`feed`, in which batches are made as a step would take them and nothing is trained on them.

Trainers open their feeds here, so that the worker can close them all and add up how long it was blocked in them.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from scaling.errors import UsageError
from scaling.frameworks.base import Trainer
from scaling.hosts import proc
from scaling.records.task import Task
from scaling.workloads import feeds, models
from scaling.workloads.specs import ModelSpec

# Images and labels, as arrays of NumPy's or of the framework whose pipeline made them.
Batch: TypeAlias = tuple[Any, Any]


class FeedError(Exception):
    """A feed that cannot go on: a picture that cannot be decoded, a process of it that is gone."""


class Pipeline(Protocol):
    """A framework's own pipeline over one rank's shard of pictures in files: endless, seeded, and disjoint from
    other ranks'. `said` is what decodes, and on how many processes or threads, for the record."""

    said: str

    def next(self) -> Batch:
        """The next batch: bytes (uint8) in the framework's own layout, and labels. Raises FeedError."""

    def close(self) -> None:
        """End its processes."""


# How a framework's pipeline is made; raises FeedError where it cannot be.
Native: TypeAlias = Callable[[Task, ModelSpec], Pipeline]


class Feed(Protocol):
    """What `Opened` looks after."""

    fixed: bool

    def batch(self, step: int) -> Batch:
        """That of a step."""


class Opened:
    """A feed of this process; `waited_s` is how long it was blocked in it, `fed` how many samples it was handed,
    `said` what a native feed is."""

    def __init__(self, feed: Feed, said: str = "", close: Callable[[], None] = lambda: None) -> None:
        self._feed, self.said, self.close = feed, said, close
        self.fixed = feed.fixed
        self.waited_s = 0.0
        self.fed = 0
        self._step: int | None = None
        _OPENED.add(self)

    def batch(self, step: int) -> Batch:
        """That of a step. Raises FeedError where there is none."""
        begun_s = perf_counter()
        try:
            batch = self._feed.batch(step)
            if step != self._step:  # some frameworks trace their graphs with the first one
                self._step, self.fed = step, self.fed + len(batch[1])
            return batch
        except UsageError as error:
            raise FeedError(str(error)) from None
        finally:
            self.waited_s += perf_counter() - begun_s


class Streamed:
    """A pipeline as a feed: each step that was not asked for yet takes the next batch, whatever its number; where
    it is `fixed`, the first one serves all steps."""

    def __init__(self, pipeline: Pipeline, *, fixed: bool) -> None:
        self._pipeline, self.fixed = pipeline, fixed
        self._step, self._batch = 0, pipeline.next()
        if fixed:
            pipeline.close()

    def batch(self, step: int) -> Batch:
        """The same again for the same step: some frameworks trace their graphs with the first one."""
        if step != self._step and not self.fixed:
            self._step, self._batch = step, self._pipeline.next()
        return self._batch


_OPENED: WeakSet[Opened] = WeakSet()


def opened(task: Task, spec: ModelSpec, native: Native) -> Opened:
    """One rank's feed, as the point asks for it; of kind `held`, its first batch in every step. Raises FeedError,
    or UsageError where its data is not there."""
    if task.point.workload.feed == "reference":
        return Opened(feeds.feed(task, spec))
    pipeline = native(task, spec)
    try:
        streamed = Streamed(pipeline, fixed=task.point.kind == "held")
    except BaseException:
        pipeline.close()
        raise
    return Opened(streamed, pipeline.said, pipeline.close)


def close() -> None:
    """End the processes of all feeds of this process. The result is out: what they raise is for the log."""
    while _OPENED:
        try:
            _OPENED.pop().close()
        except Exception:
            traceback.print_exc()


def waited_s() -> float | None:
    """Seconds that this process was blocked in its feeds so far; None where it takes no batch in its steps."""
    moving = [feed.waited_s for feed in _OPENED if not feed.fixed]
    return sum(moving) if moving else None


def fed() -> int | None:
    """Samples that this process was handed by its feeds so far; None where it takes no batch in its steps."""
    moving = [feed.fed for feed in _OPENED if not feed.fixed]
    return sum(moving) if moving else None


def said() -> str:
    """What this process's native feeds are; "" for the reference feed."""
    return "; ".join(dict.fromkeys(feed.said for feed in _OPENED if feed.said))


def workers(task: Task) -> int:
    """Processes or threads of one rank's native feed: what was asked for, else as many as the rank has cores."""
    cores = len(task.cpus) or len(os.sched_getaffinity(0))
    return task.point.workload.feed_workers or max(1, cores // max(1, len(task.device_indices)))


# ---------------------------------------------------------------- the kind `feed`


def connect(task: Task) -> Trainer:
    """The reference feed of one rank of a point of kind `feed`. Raises UsageError where its data is not there."""
    return Feeding(Opened(feeds.feed(task, models.of(task.point.workload))))


def alone(task: Task, native: Native) -> Trainer:
    """The same of a framework with a pipeline of its own."""
    return Feeding(opened(task, models.of(task.point.workload), native))


class Feeding:
    """Steps that end with a batch in the host's memory: read, decoded and, by the reference feed, normalised."""

    parameters = 0
    gradient_bytes = 0
    is_done_on_return = True

    def __init__(self, feed: Opened) -> None:
        self._feed = feed
        self._steps = 0
        self.samples = 0
        self.device_name = proc.cpu_model(proc.cpuinfo())
        self.versions: dict[str, str] = {}
        self.notes: tuple[str, ...] = ()

    def step(self) -> None:
        """The next batch."""
        self.samples += len(self._feed.batch(self._steps)[1])
        self._steps += 1

    def sync(self) -> None:
        """A batch is there when it is returned."""

    def loss(self) -> None:
        """Nothing is trained."""

    def digest(self) -> None:
        """Nothing is trained."""

    def peak_memory_bytes(self) -> int:
        """No device is used."""
        return 0

    def close(self) -> None:
        """The worker closes its feed."""
