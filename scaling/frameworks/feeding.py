"""A rank's feed by itself: its batches are made as a step would take them, and nothing is trained on them."""

from __future__ import annotations

from scaling.frameworks.base import Trainer
from scaling.hosts import proc
from scaling.records.task import Task
from scaling.workloads import feeds, models


def connect(task: Task) -> Trainer:
    """The feed of one rank of a point of kind `feed`. Raises UsageError where its data is not there."""
    return Feeding(task)


class Feeding:
    """Steps that end with a batch in the host's memory: read, decoded and normalised."""

    parameters = 0
    gradient_bytes = 0
    is_done_on_return = True

    def __init__(self, task: Task) -> None:
        self._feed = feeds.feed(task, models.of(task.point.workload))
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
        """It has no processes."""
