"""A strategy from outside: PyTorch's DDP over Gloo whose feed sleeps before each batch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from scaling.frameworks.pytorch.strategies import DDP

if TYPE_CHECKING:
    from scaling.frameworks.base import Trainer
    from scaling.records.task import Task

NAME = "tests.support.sleepy:gloo"
FEED_S = 0.05


class Sleepy(DDP):
    """It computes and exchanges as `torch:gloo` does."""

    names = (NAME,)
    trainer = "tests.support.sleepy"


def connect(task: Task) -> Trainer:
    """In the worker: the trainer of `torch:gloo`, with another step."""
    from scaling.frameworks.pytorch import ddp_trainer

    class Hungry(ddp_trainer.Distributed):
        """Waits for its batch, and computes nothing meanwhile."""

        def step(self) -> None:
            time.sleep(FEED_S)
            super().step()

    return ddp_trainer.GradientExchange(task) if task.point.kind == "comm" else Hungry(task)
