"""The worker's part in a training to an accuracy: learning rates, signs of life, evaluation, weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling import frameworks
from scaling.frameworks.abilities import EVALUATING, able
from scaling.records.events import Evaluated, Event, Progress, Result
from scaling.records.task import Evaluate, Task, Train
from scaling.workloads import feeds, models, schedule, weights
from scaling.workloads.data import Split
from scaling.workloads.specs import Classes

PROGRESS_S = 5.0
MOST_CLASSES = 100


def samples(task: Task) -> tuple[int, dict[str, int]]:
    """Return the samples of an epoch over all ranks, and those of each split of the data; 0 and {} if the point is
    not trained to an accuracy."""
    if task.point.regime is None:
        return 0, {}
    spec, splits = models.of(task.point.workload), get_args(Split)
    return len(feeds.samples(task, spec, "train")), {split: feeds.whole(task, spec, split) for split in splits}


class Learner:
    """A rank's part in a training to an accuracy. Raises TypeError for a trainer that cannot be evaluated."""

    def __init__(
        self,
        trainer: object,
        task: Task,
        send: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        point = task.point
        if (evaluating := able(trainer, *EVALUATING)) is None:
            raise TypeError(f"{point.strategy} cannot be evaluated")
        assert point.regime is not None
        self._trainer, self._task, self._send, self._clock = evaluating, task, send, clock
        self._regime, self._spec, self._said_s = point.regime, models.of(point.workload), clock()
        # A worker that drives several devices evaluates all held-out samples.
        drives = frameworks.load(point.strategy).traits(point.strategy).drives
        self._ranks = point.world_size if drives == "device" else 1
        self._held_out = feeds.samples(task, self._spec, "test")
        self._classes = self._spec.target.count if isinstance(self._spec.target, Classes) else 2

    def stepping(self, train: Train, step: Callable[[], None]) -> Callable[[], None]:
        taken, varies = iter(range(train.steps)), schedule.varies(self._regime)

        def one() -> None:
            number = next(taken)
            if varies:
                self._trainer.set_rate(schedule.rate(self._regime, train.number + number / train.steps))
            step()
            self._tell(number + 1)

        return one

    def _tell(self, steps: int) -> None:
        now_s = self._clock()
        if now_s - self._said_s >= PROGRESS_S:
            self._said_s = now_s
            self._send(Progress(steps=steps))

    def evaluated(self, evaluate: Evaluate) -> Evaluated:
        """Count right predictions on this rank's shard. Every rank predicts equally often (collectives)."""
        start_s = self._clock()
        self._trainer.average_statistics()
        confusion = np.zeros((self._classes, self._classes), np.int64)
        for number, (inputs, labels) in enumerate(self._batches()):
            found = self._trainer.predict(inputs)
            # A batch that only keeps other ranks company has no labels.
            np.add.at(confusion, (labels, found[: len(labels)]), 1)
            self._tell(number + 1)
        return Evaluated(
            number=evaluate.number,
            seen=int(confusion.sum()),
            correct=int(confusion.trace()),
            start_s=start_s,
            end_s=self._clock(),
            confusion=tuple(map(tuple, confusion.tolist())) if self._classes <= MOST_CLASSES else (),
        )

    def kept(self, result: Result) -> Result:
        """Save the weights to the task's file, if any. A file that cannot be written is noted in the result."""
        if not self._task.save_weights:
            return result
        learnt = self._trainer.learnt()
        if self._task.rank:
            return result
        try:
            weights.save(self._task.save_weights, self._spec, learnt.trained, learnt.statistics)
        except OSError as error:
            return replace(result, unsaved=f"{self._task.save_weights}: {error.strerror or error}")
        return replace(result, saved=self._task.save_weights)

    def _batches(self) -> Iterator[tuple[NDArray[np.float32] | NDArray[np.int64], NDArray[np.int64]]]:
        """The shard's, then batches without labels up to the length of the longest shard."""
        batch_size = self._task.point.workload.batch_size
        longest = -(-len(self._held_out) // self._ranks)
        left = -(-longest // batch_size)
        for batch in feeds.shard(self._task, self._spec, ranks=self._ranks):
            left -= 1
            yield batch
        for _ in range(left):
            inputs, labels = self._held_out.take(np.array([0]), (0,))
            yield inputs, labels[:0]
