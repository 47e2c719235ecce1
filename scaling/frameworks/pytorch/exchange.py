"""The exchange of a strategy alone, or during its own compute."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from scaling.frameworks.base import Trainer
from scaling.frameworks.pytorch.loop import TorchRank, Training
from scaling.records.task import Task


class Exchange(TorchRank):
    """A rank that exchanges as in training and computes nothing. A strategy overrides `send` and joins. With
    `beside`, another trainer of the process computes and has joined. On a GPU this one then has its own stream."""

    samples = 0

    def __init__(self, task: Task, *, beside: bool = False) -> None:
        super().__init__(task)
        self._stream = torch.cuda.Stream(self.device) if beside and self.cuda else None

    def send(self) -> None:
        raise NotImplementedError

    def step(self) -> None:
        with self._flowing():
            self.send()

    def sync(self) -> None:
        if self._stream is None:
            super().sync()
        else:
            self._stream.synchronize()

    def loss(self) -> None:
        """Return None: nothing is trained."""

    def digest(self) -> None:
        """Return None: nothing is trained."""

    def _flowing(self) -> AbstractContextManager[None]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def alongside(rank: Training, make: Callable[[], Trainer]) -> Trainer | None:
    """Return what `make` returns; None on all ranks if any rank lacks the memory."""
    try:
        made = make()
    except torch.OutOfMemoryError:
        made = None
    fits = rank.mean_over_ranks(torch.full((1,), float(made is not None), device=rank.device))
    return made if float(fits) == 1.0 else None
