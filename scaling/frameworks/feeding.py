"""The feed of a rank: the reference feed or the framework's own pipeline, and the trainer of kind `feed`.

Trainers open their feeds here. So the worker can close them all and sum the seconds it was blocked in them.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from scaling.errors import UsageError
from scaling.frameworks.abilities import Rank, Untrained
from scaling.frameworks.base import Trainer
from scaling.hosts import proc
from scaling.records.task import Task
from scaling.workloads import feeds, models
from scaling.workloads.specs import ModelSpec

# Images and labels, as arrays of NumPy or of the framework.
Batch: TypeAlias = tuple[Any, Any]
# The area and the proportions of the random part that a pipeline takes of each picture; half are mirrored (Szegedy
# et al., "Going deeper with convolutions", 2014, section 6).
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


class FeedError(Exception):
    """A feed that cannot go on: an undecodable picture, or a process of the feed that has ended."""


class Pipeline(Protocol):
    """A framework's own pipeline over one rank's shard of pictures in files. It is endless, seeded and disjoint
    from other ranks' shards. `said` names the decoder and its number of processes or threads, for the record."""

    said: str

    def next(self) -> Batch:
        """Return the next batch: bytes (uint8) in the framework's own layout, and labels. Raises FeedError."""

    def close(self) -> None:
        """End its processes."""


# Makes a framework's pipeline. Raises FeedError if it cannot.
Native: TypeAlias = Callable[[Task, ModelSpec], Pipeline]


class Source:
    """What a process takes its batches from: an open feed, or a script's own loaders.

    * fixed: it gives the same batch to all steps.
    * waited_s: seconds that the process was blocked in it.
    * fed: samples that it returned.
    * said: description of a native feed.
    """

    fixed = False
    waited_s = 0.0
    fed = 0
    said = ""

    def close(self) -> None:
        """Do nothing: it has no processes to end."""


_OPENED: WeakSet[Source] = WeakSet()
add = _OPENED.add  # for a source that is made elsewhere


class Opened(Source):
    """An open feed of this process."""

    def __init__(self, feed: feeds.Feed, said: str = "", close: Callable[[], None] = lambda: None) -> None:
        self._feed, self.fixed, self.said, self._close = feed, feed.fixed, said, close
        self._step: int | None = None
        _OPENED.add(self)

    def close(self) -> None:
        self._close()

    def batch(self, step: int) -> Batch:
        begun_s = perf_counter()
        try:
            batch = self._feed.batch(step)
            if step != self._step:  # some frameworks take the first batch twice, to trace their graphs
                self._step, self.fed = step, self.fed + len(batch[1])
            return batch
        except UsageError as error:
            raise FeedError(str(error)) from None
        finally:
            self.waited_s += perf_counter() - begun_s


class Streamed:
    """A pipeline as a feed. Each new step takes the next batch. If `fixed`, the first batch serves all steps."""

    def __init__(self, pipeline: Pipeline, *, fixed: bool) -> None:
        self._pipeline, self.fixed = pipeline, fixed
        self._step, self._batch = 0, pipeline.next()
        if fixed:
            pipeline.close()

    def batch(self, step: int) -> Batch:
        """Return the batch of a step. The same step gets the same batch again."""
        if step != self._step and not self.fixed:
            self._step, self._batch = step, self._pipeline.next()
        return self._batch


def opened(task: Task, spec: ModelSpec, native: Native) -> Opened:
    """Open one rank's feed, as the point asks for. Kind `held` gets its first batch in every step. Raises
    FeedError, or UsageError if its data is missing."""
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
    """End the processes of all feeds of this process. Errors are only logged: the result is out."""
    while _OPENED:
        try:
            _OPENED.pop().close()
        except Exception:
            traceback.print_exc()


def waited_s() -> float | None:
    """Return the seconds that this process was blocked in its feeds; None if its steps take no new batches."""
    moving = [feed.waited_s for feed in _OPENED if not feed.fixed]
    return sum(moving) if moving else None


def fed() -> int | None:
    """Return the samples that this process got from its feeds; None if its steps take no new batches."""
    moving = [feed.fed for feed in _OPENED if not feed.fixed]
    return sum(moving) if moving else None


def said() -> str:
    """Describe this process's native feeds; "" for the reference feed."""
    return "; ".join(dict.fromkeys(feed.said for feed in _OPENED if feed.said))


def workers(task: Task) -> int:
    """Return the processes or threads of one rank's native feed: as requested, else one per core of the rank."""
    cores = len(task.cpus) or len(os.sched_getaffinity(0))
    return task.point.workload.feed_workers or max(1, cores // max(1, len(task.device_indices)))


def check_classes(labels: Any, classes: int, data: str) -> None:
    """Raise FeedError if one of these labels, an array of NumPy, is none of the model's classes."""
    if (wrong := labels[(labels < 0) | (labels >= classes) | (labels % 1 != 0)]).size:
        raise FeedError(f"--data {data}: of class {wrong[0]:g}, the model has {classes}")


# ---------------------------------------------------------------- the kind `feed`


def connect(task: Task) -> Trainer:
    return Feeding(Opened(feeds.feed(task, models.of(task.point.workload))))


def alone(task: Task, native: Native) -> Trainer:
    return Feeding(opened(task, models.of(task.point.workload), native))


class Feeding(Untrained, Rank):
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

    def step(self) -> None:
        self.samples += len(self._feed.batch(self._steps)[1])
        self._steps += 1

    def sync(self) -> None:
        """Do nothing: a returned batch is complete."""

    def peak_memory_bytes(self) -> int:
        return 0
