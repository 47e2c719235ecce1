"""The bare script that the overhead benchmark compares with: DistributedDataParallel as its tutorial has
it, under torchrun, pinned and with as many threads as a worker. Prints rank 0's images per second."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling import models
from scaling.data.digits import Digits
from scaling.models.torch_models import build


def main(steps: int, warmup: int, batch_size: int) -> None:
    """Train for `warmup` and then `steps` timed steps."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    spec = models.spec("digits-cnn")
    feed = Digits(spec.image, batch_size=batch_size, seed=1, rank=rank, world_size=world_size)
    model = DistributedDataParallel(build(spec))
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.learning_rate, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    for step in range(warmup + steps):
        if step == warmup:
            begun_s = time.perf_counter()
        images, labels = (torch.from_numpy(array) for array in feed.batch(step))
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
    passed_s = time.perf_counter() - begun_s
    if rank == 0:
        sys.stdout.write(f"{world_size * batch_size * steps / passed_s}\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
