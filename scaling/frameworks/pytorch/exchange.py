"""The exchange of a strategy alone, or during its own compute, and the process group that joins ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
from torch import Tensor, distributed

from scaling.frameworks.abilities import Untrained
from scaling.frameworks.base import Trainer, timeout_s
from scaling.frameworks.pytorch import store
from scaling.frameworks.pytorch.loop import TorchRank, Training
from scaling.records.task import Task


class Exchange(Untrained, TorchRank):
    """A rank that exchanges as in training and computes nothing. A strategy overrides `send` and joins. With
    `beside`, another trainer of the process computes and has joined. On a GPU this one then has its own stream."""

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


# ---------------------------------------------------------------- process group


TRANSPORT = "GLOO_DEVICE_TRANSPORT"


def join(rank: TorchRank, backend: str) -> None:
    task, timeout = rank.task, patience(rank)
    try:
        distributed.init_process_group(
            backend,
            store=store.open_store(task.address, task.ports[0], hosts=task.rank == 0, timeout=timeout),
            rank=task.rank,
            world_size=task.point.world_size,
            timeout=timeout,
            # NCCL then connects here, not during the first step.
            device_id=rank.device if backend == "nccl" else None,
        )
    except RuntimeError as error:
        if (given := os.environ.get(TRANSPORT)) and "unsupported gloo device" in str(error):
            raise RuntimeError(f"{error}: this torch has no {TRANSPORT}={given}; unset it") from None
        raise


class Grouped:
    """A rank of the process group."""

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        """Replace the values by their mean over the process group. Return them."""
        distributed.all_reduce(values)
        return values.div_(distributed.get_world_size())

    def close(self) -> None:
        distributed.destroy_process_group()


def patience(rank: TorchRank) -> timedelta:
    return timedelta(seconds=timeout_s(rank.task.clocks))
