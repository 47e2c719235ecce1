"""DistributedDataParallel over gloo, as its tutorial has it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.frameworks.pytorch.network import build
from tests.bench.plain import work


def main() -> None:
    told = work.read()
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    feed = work.digits(told)
    model = DistributedDataParallel(build(work.SPEC, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=work.SPEC.recipe.rate, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()

    def step(number: int) -> Any:
        images, labels = map(torch.from_numpy, feed.batch(number))
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    work.serve(told, step)
    # An orderly end sometimes aborts while the other rank is still ending.
    os._exit(0)


if __name__ == "__main__":
    main()
