"""Our timed loop against the barest loop of the same model on one GPU, and short windows against long ones.

Both loops live in this process and take turns in random order, PAIRS times: the plain loop, then DDP over NCCL
with one rank. The barest loop is as in PyTorch's tutorials: autocast, SGD, one synchronisation at each end.
Ratios have 95 % intervals over pairs. The line about windows compares rates of windows of 0.3 s and 5 s.

[PAIRS=10] [BLOCK_S=2] [LONG_S=5] python -m tests.bench.gpu [--device cpu] [--model digits-cnn] [--batch-size 64]
"""

from __future__ import annotations

import os
import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from math import exp, log
from statistics import fmean
from typing import Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from scaling.analysis.statistics import intervals
from scaling.frameworks.pytorch import network
from scaling.frameworks.pytorch.compute import loss_of, optimizer_of
from scaling.frameworks.pytorch.ddp_trainer import connect
from scaling.frameworks.pytorch.loop import Training
from scaling.records.events import Event, Window
from scaling.records.task import Run
from scaling.worker.loop import Worker
from scaling.workloads import models
from tests.support.ranks import one_task

PAIRS = int(os.environ.get("PAIRS", "10"))
BLOCK_S = float(os.environ.get("BLOCK_S", "2"))
SHORT_S, LONG_S = 0.3, float(os.environ.get("LONG_S", "5"))
Rate = Callable[[int], float]


def main() -> None:
    asked = _asked()
    fields: dict[str, Any] = {
        "device": asked.device,
        "model": asked.model,
        "batch_size": asked.batch_size,
        "precision": asked.precision,
        "memory_format": "channels_last" if asked.device == "cuda" else "contiguous",
    }
    plain = one_task(**fields)
    work = f"{asked.model}, batch {asked.batch_size}, {asked.precision}"
    print(f"{work}, {_name(asked.device)}; torch {torch.__version__}")
    ours = Training(plain)
    compare("plain loop", asked.batch_size, ours_rate(ours), bare_rate(ours, ddp=False))
    windows(ours)
    strategy = "torch:nccl" if asked.device == "cuda" else "torch:gloo"
    parallel = cast(Training, connect(one_task(strategy, "exchange", **fields)))
    compare("DDP, one rank", asked.batch_size, ours_rate(parallel), bare_rate(parallel, ddp=True))
    parallel.close()


def _asked() -> Namespace:
    parser = ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here; take --device cpu")
    return asked


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def worker(trainer: Training, events: list[Event]) -> Worker:
    """Return the worker's loop around a trainer."""
    return Worker(trainer, lambda event, hold=False: events.append(event), lambda: True)


def ours_rate(trainer: Training) -> Rate:
    """Return a function of a number of steps to samples per second by our loop."""
    events: list[Event] = []
    loop = worker(trainer, events)

    def rate(steps: int) -> float:
        events.clear()
        loop.obey(Run(windows=1, steps=steps, measured=True))
        (window,) = (event for event in events if isinstance(event, Window))
        return window.samples / window.seconds

    return rate


def bare_rate(ours: Training, *, ddp: bool) -> Rate:
    """Return the same of a loop that has nothing of ours but the network's description and the batch."""
    device, task = ours.device, ours.task
    work, spec = task.point.workload, models.at(task.point)
    layout = torch.channels_last if work.memory_format == "channels_last" else torch.contiguous_format
    module: Any = network.build(spec, task.seed)
    module = module.to(device=device, memory_format=layout)
    if ddp:
        module = DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer, criterion = optimizer_of(spec.recipe, module.parameters()), loss_of(spec.target)
    images, labels = ours.compute.batch(0)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=work.precision == "bf16"):
            loss = criterion(module(images), labels)
        loss.backward()
        optimizer.step()

    def rate(steps: int) -> float:
        step()
        _sync(device)
        begun_s = time.perf_counter()
        for _ in range(steps):
            step()
        _sync(device)
        return steps * len(labels) / (time.perf_counter() - begun_s)

    return rate


def _sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(title: str, batch_size: int, ours: Rate, bare: Rate) -> None:
    """Print both rates and their ratio over PAIRS pairs of blocks."""
    for rate in (ours, bare):
        rate(3)
    steps = max(2, round(BLOCK_S * min(ours(3), bare(3)) / batch_size))
    found = [_pair(ours, bare, steps, number) for number in range(PAIRS)]
    means = [fmean(each) for each in zip(*found, strict=True)]
    ratio = told([log(mine / other) for mine, other in found])
    print(f"{title:14} ours {means[0]:.1f}, bare {means[1]:.1f} samples/s, ratio {ratio}")


def _pair(ours: Rate, bare: Rate, steps: int, seed: int) -> tuple[float, float]:
    if random.Random(seed).random() < 0.5:
        return ours(steps), bare(steps)
    other = bare(steps)
    return ours(steps), other


def told(logs: list[float]) -> str:
    """Return exp of the mean with half its 95 % interval."""
    estimate = intervals.interval(logs)
    return f"{exp(estimate.mean):.4f} ± {exp(estimate.mean) * (estimate.half_width or 0.0):.4f}"


def windows(trainer: Training) -> None:
    """Print the rate of short windows over that of a long one, in turns."""
    rate = ours_rate(trainer)
    step_s = trainer.task.point.workload.batch_size / rate(5)
    short, long = (max(1, round(seconds / step_s)) for seconds in (SHORT_S, LONG_S))
    logs = [log(rate(short) / rate(long)) for _ in range(max(3, PAIRS // 2))]
    print(f"windows        {SHORT_S} s / {LONG_S} s: ratio of rates {told(logs)}")


if __name__ == "__main__":
    main()
