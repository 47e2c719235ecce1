"""What all plain scripts share: the work that they are told to do, its digits, the clock.

python -m tests.bench.plain.SCRIPT BATCH_SIZE RANK WORLD_SIZE [MODE]      (it waits for numbers of steps on stdin)
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from scaling.workloads import models
from scaling.workloads.feeds.batches import Shuffled
from scaling.workloads.feeds.pictures import Digits
from scaling.workloads.specs import Images

SPEC = models.spec("digits-cnn")


class Work(NamedTuple):
    """Steps of `batch_size` images on each rank."""

    batch_size: int
    rank: int
    world_size: int
    mode: str


def read() -> Work:
    """The command line."""
    batch_size, rank, world_size = map(int, sys.argv[1:4])
    return Work(batch_size, rank, world_size, "".join(sys.argv[4:]))


def digits(work: Work, rank: int | None = None) -> Shuffled:
    """The images of a rank, by default of this one."""
    shard = work.rank if rank is None else rank
    assert isinstance(SPEC.input, Images)
    samples = Digits(SPEC.input, "train")
    return Shuffled(samples, batch_size=work.batch_size, seed=1, rank=shard, world_size=work.world_size)


def serve(
    work: Work,
    step: Callable[[int], Any],
    *,
    wait: Callable[[], Any] = lambda: None,
    loss: Callable[[Any], float] = float,
    linger: bool = False,
) -> None:
    """Train a block of as many steps as each line of stdin says, one uncounted step before it, and print its
    seconds and its last loss; until stdin ends.

    `step(number)` returns what `loss` makes a number of; `wait` waits for what steps have left to do. Ranks
    that do not wait for each other `linger`: they step on until they are told more, or the others would be
    timed on an emptier machine.
    """
    numbers = count()
    for line in iter(sys.stdin.readline, ""):
        step(next(numbers))
        wait()
        begun_s = time.perf_counter()
        for _ in range(int(line)):
            last = step(next(numbers))
        wait()
        passed_s = time.perf_counter() - begun_s
        sys.stdout.write(json.dumps({"seconds": passed_s, "loss": loss(last)}) + "\n")
        sys.stdout.flush()
        while linger and not select.select([0], [], [], 0)[0]:
            step(next(numbers))
            wait()
