"""One rank of a point as a process of its own: trains a few steps and writes what it saw.

TESTED_RANK='["RESULT", STEPS, JOINED, UNSYNCED]' python -m tests.support.rank < TASK      (started by ranks.py)
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
import psutil  # type: ignore[import-untyped, unused-ignore]
from msgspec.structs import replace
from numpy.typing import NDArray

from scaling import frameworks
from scaling.records.task import Task
from scaling.worker.run_task import tell_faults
from scaling.workloads import feeds as data
from scaling.workloads.specs import ModelSpec

ASKED = "TESTED_RANK"  # the variable that says what a rank does


class Trained(NamedTuple):
    """What one rank tells: the weights before the first step and after it, the rest after the last."""

    before: dict[str, NDArray[Any]]
    after: dict[str, NDArray[Any]]
    digest: str | None
    losses: list[float | None]
    samples: int
    parameters: int
    gradient_bytes: int
    device_name: str
    versions: dict[str, str]
    staleness: float | None
    listening: frozenset[str]


def listening(process: psutil.Process) -> frozenset[str]:
    """The addresses on which a process waits for TCP connections."""
    with suppress(psutil.Error):
        found = process.net_connections("tcp")
        return frozenset(one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN)
    return frozenset()


class Joined:
    """The batches of several ranks' feeds put together, as one device would see them."""

    def __init__(self, feeds: Sequence[data.Feed]) -> None:
        self.feeds = feeds
        self.fixed = feeds[0].fixed

    def batch(self, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
        images, labels = zip(*(feed.batch(step) for feed in self.feeds), strict=True)
        return np.concatenate(images), np.concatenate(labels)


def join_feeds(size: int) -> None:
    """Every feed from now on is that of `size` ranks together."""
    feed = data.feed

    def joined(task: Task, spec: ModelSpec) -> Joined:
        point = replace(task.point, world_size=size)
        ranks = [replace(task, point=point, rank=rank) for rank in range(size)]
        return Joined([feed(each, spec) for each in ranks])

    data.feed = joined


def train(task: Task, steps: int, unsynced: int) -> Trained:
    """Connect, train, tell."""
    module: Any = import_module(frameworks.load(task.point.strategy).trainer_module)
    tell_faults()
    trainer = module.connect(task)
    weights = getattr(trainer, "weights", dict)
    before: dict[str, NDArray[Any]] = weights()
    after, losses = before, []
    for step in range(steps):
        (trainer.unsynced_step if step < unsynced else trainer.step)()
        trainer.sync()
        losses.append(trainer.loss())
        if step == 0:
            after = weights()
    told = Trained(
        before=before,
        after=after,
        digest=trainer.digest(),
        losses=losses,
        samples=trainer.samples,
        parameters=trainer.parameters,
        gradient_bytes=trainer.gradient_bytes,
        device_name=trainer.device_name,
        versions=trainer.versions,
        staleness=trainer.staleness() if hasattr(trainer, "staleness") else None,
        listening=listening(psutil.Process()),
    )
    trainer.close()
    return told


def main() -> NoReturn:
    """One rank. Ends at once, as workers do: frameworks' threads may abort an orderly exit."""
    code = 1
    try:
        file, steps, joined, unsynced = msgspec.json.decode(os.environ[ASKED], type=tuple[str, int, int, int])
        task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
        if task.cpus:
            os.sched_setaffinity(0, task.cpus)
        if joined:
            join_feeds(joined)
        # As a plain dictionary: in a fresh process the class is `__main__.Trained`, unknown to the reader.
        Path(file).write_bytes(pickle.dumps(train(task, steps, unsynced)._asdict()))
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
