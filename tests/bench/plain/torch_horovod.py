"""Horovod's DistributedOptimizer, as in its pytorch_synthetic_benchmark.py."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd  # type: ignore[import-not-found, import-untyped, unused-ignore]
import torch

from scaling.frameworks.pytorch.network import build
from tests.bench.plain import work


def main() -> None:
    told = work.read()
    hvd.init()
    torch.manual_seed(1)
    feed = work.digits(told)
    model = build(work.SPEC, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=work.SPEC.recipe.rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    criterion = torch.nn.CrossEntropyLoss()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    def step(number: int) -> Any:
        images, labels = map(torch.from_numpy, feed.batch(number))
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    work.serve(told, step)
    hvd.shutdown()


if __name__ == "__main__":
    main()
