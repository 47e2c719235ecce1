"""torch's own pipeline: a DataLoader over the pictures of a rank's shard, in the order of the reference feed.

Its processes are forks: of those that start otherwise, some outlive a worker that ends without shutting them down.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from scaling.errors import UsageError
from scaling.frameworks import feeding
from scaling.frameworks.base import Trainer
from scaling.frameworks.feeding import Batch, FeedError, Opened
from scaling.frameworks.pytorch import decoding
from scaling.records.task import Task
from scaling.workloads import feeds
from scaling.workloads.specs import ModelSpec

# Until a process whose pipe broke has ended.
GONE_S = 2.0


def opened(task: Task, spec: ModelSpec) -> Opened:
    """A rank's feed, the reference feed or a `Loader`."""
    return feeding.opened(task, spec, Loader)


def pipeline(task: Task) -> Trainer:
    """A rank's feed alone, for a point of kind `feed`."""
    return feeding.alone(task, Loader)


class Decoded(Dataset[tuple[Tensor, int]]):
    """Training images, uint8 (channels, height, width), and their classes. Raises UsageError naming what cannot be
    decoded."""

    def __init__(self, task: Task, spec: ModelSpec) -> None:
        self._pictures = feeds.encoded_pictures(task, spec)
        self.said, self._make = decoding.maker(self._pictures.images)

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        encoded = self._pictures.encoded
        content, label = encoded.read(index)
        self._pictures.check(index, label)
        try:
            return self._make(content), label
        except OSError as error:
            raise UsageError(f"{encoded.name(index)}: Pillow cannot read it: {error}") from None


class Batches:
    """The indices of one batch after the other, without an end: epochs go on without a gap."""

    def __init__(self, task: Task, count: int) -> None:
        self._sampler = feeds.sampler_of(task, count)

    def __iter__(self) -> Iterator[list[int]]:
        step = 0
        while True:
            yield self._sampler.indices(step).tolist()
            step += 1


class Loader:
    """Batches of uint8 (batch, channels, height, width) and int64 labels (batch,), as torch's tensors."""

    def __init__(self, task: Task, spec: ModelSpec) -> None:
        found, workers = Decoded(task, spec), feeding.workers(task)
        self.said = f"DataLoader, {workers} {'process' if workers == 1 else 'processes'} a rank; {found.said}"
        handler = signal.getsignal(signal.SIGCHLD)
        self._batches: Any = iter(
            DataLoader(
                found,
                batch_sampler=Batches(task, len(found)),
                num_workers=workers,
                multiprocessing_context="fork",
                pin_memory=task.point.hardware.device == "cuda",
                generator=torch.Generator().manual_seed(hash((task.seed, task.rank))),
            )
        )
        # torch's own raises wherever the worker is, also while it reports an error; `next` sees it too.
        signal.signal(signal.SIGCHLD, handler)

    def next(self) -> Batch:
        """As the DataLoader has them; raises FeedError where a picture cannot be decoded or a process is gone."""
        try:
            images, labels = next(self._batches)
        except UsageError as error:
            # The traceback of the loader process, whose last line has the message.
            raise FeedError(str(error).strip().rpartition("\n")[2].partition("UsageError: ")[2]) from None
        except (RuntimeError, OSError, EOFError) as error:
            raise FeedError(self._why(error)) from None
        return images, labels

    def _why(self, error: Exception) -> str:
        """Its process, where one has ended: what a broken pipe to it says depends on when it broke."""
        processes = {one.sentinel: one for one in self._batches._workers}
        ended = [processes[one] for one in wait(list(processes), timeout=GONE_S)]
        for one in ended:
            one.join(GONE_S)  # its sentinel tells before its exit code is there
        found = ", ".join(f"{one.pid} (exit code {one.exitcode})" for one in ended)
        return f"DataLoader worker {found} exited unexpectedly" if ended else str(error)

    def close(self) -> None:
        """End the processes, and wait for that."""
        self._batches._shutdown_workers()
