"""What all plain scripts share: the work that they are told to do, its digits, the clock.

python -m tests.bench.plain.SCRIPT STEPS WARMUP BATCH_SIZE RANK WORLD_SIZE [MODE]
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from scaling.workloads import models
from scaling.workloads.feeds.digits import Digits

SPEC = models.spec("digits-cnn")


class Work(NamedTuple):
    """`warmup` untimed and then `steps` timed steps of `batch_size` images on each rank."""

    steps: int
    warmup: int
    batch_size: int
    rank: int
    world_size: int
    mode: str


def read() -> Work:
    """The command line."""
    steps, warmup, batch_size, rank, world_size = map(int, sys.argv[1:6])
    return Work(steps, warmup, batch_size, rank, world_size, "".join(sys.argv[6:]))


def digits(work: Work, rank: int | None = None) -> Digits:
    """The images of a rank, by default of this one."""
    shard = work.rank if rank is None else rank
    return Digits(SPEC.image, batch_size=work.batch_size, seed=1, rank=shard, world_size=work.world_size)


def measure(
    work: Work,
    step: Callable[[int], Any],
    *,
    wait: Callable[[], Any] = lambda: None,
    loss: Callable[[Any], float] = float,
    linger: bool = False,
) -> None:
    """Train, and print the seconds of the timed steps and the last loss.

    `step(number)` returns what `loss` makes a number of; `wait` waits for what steps have left to do. Ranks
    that do not wait for each other `linger`: they step on until stdin ends, or the others would be
    timed on an emptier machine.
    """
    for number in range(work.warmup):
        step(number)
    wait()
    begun_s = time.perf_counter()
    for number in range(work.warmup, work.warmup + work.steps):
        last = step(number)
    wait()
    passed_s = time.perf_counter() - begun_s
    sys.stdout.write(json.dumps({"seconds": passed_s, "loss": loss(last)}) + "\n")
    sys.stdout.flush()
    while linger and not select.select([0], [], [], 0)[0]:
        step(work.warmup + work.steps)
        wait()
