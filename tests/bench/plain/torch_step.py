"""PyTorch's training step, which its scripts share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.bench.plain import work


def one_step(told: work.Work, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[int], Any]:
    """Forward, backward and update of a batch."""
    feed, criterion = work.digits(told), torch.nn.CrossEntropyLoss()

    def step(number: int) -> Any:
        images, labels = map(torch.from_numpy, feed.batch(number))
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=work.SPEC.recipe.rate, momentum=0.9)
