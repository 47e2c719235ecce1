"""Training steps of networks built from their description against torchvision's own, in one process.

The ratio of the two rates, with the 95 % interval of its geometric mean over blocks in random order (blocks of one
start are no samples of starts: call it again for more); and what drawing weights takes.

[BLOCKS=12] python -m tests.bench.networks [NAME...]      (those with a name in torchvision)
"""

from __future__ import annotations

import os
import random
import sys
import time
from math import exp, log
from statistics import fmean

import torch
from torch import nn

from scaling.analysis.stats import geometric
from scaling.frameworks.pytorch import libraries, losses, network, optimizers
from scaling.workloads import models, weights
from scaling.workloads.specs import ModelSpec

BLOCKS = int(os.environ.get("BLOCKS", "12"))
BATCH, STEPS = 4, 2
DRAWN = "resnet50"


class Trained:
    """A network, its optimiser, and batches of noise."""

    def __init__(self, built: nn.Module, spec: ModelSpec) -> None:
        self._network, self._loss = built.train(), losses.of(spec.target)
        self._optimizer = optimizers.make(spec.recipe, built.parameters())
        self._images = torch.randn(BATCH, *spec.input.shape)
        self._labels = torch.randint(spec.outputs, (BATCH,))

    def step_s(self) -> float:
        """Mean seconds of a block's steps, after one that is not counted."""
        self._step()
        begun_s = time.perf_counter()
        for _ in range(STEPS):
            self._step()
        return (time.perf_counter() - begun_s) / STEPS

    def _step(self) -> None:
        self._optimizer.zero_grad()
        self._loss(self._network(self._images), self._labels).backward()
        self._optimizer.step()


def library(spec: ModelSpec, ours: nn.Module) -> nn.Module:
    """torchvision's network of the same layers, with the weights of ours: other values alone change a CPU's step
    by several per cent."""
    torchvision = libraries.torchvision()
    has_auxiliary = spec.name in ("googlenet-bn", "inception_v3")
    extra = {"aux_logits": False, "init_weights": False} if has_auxiliary else {}
    built: nn.Module = torchvision.models.get_model(spec.alike["torchvision"], weights=None, **extra)
    with torch.no_grad():
        for theirs, own in zip(built.parameters(), ours.parameters(), strict=True):
            theirs.copy_(own)
    return built


def compare(name: str) -> str:
    """`resnet50: ours / torchvision's 1.003 (0.995 to 1.011), 512 ms`; above 1 the description is faster."""
    spec = models.spec(name)
    ours = network.build(spec, 1)
    sides = {"ours": Trained(ours, spec), "theirs": Trained(library(spec, ours), spec)}
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(BLOCKS):
        for side in random.sample(list(sides), 2):
            taken[side].append(sides[side].step_s())
    found = geometric([theirs / ours for ours, theirs in zip(taken["ours"], taken["theirs"], strict=True)])
    step_ms = 1e3 * exp(fmean(map(log, taken["ours"])))
    return (
        f"{name}: rate over torchvision's {found.mean:.3f} ({found.low:.3f} to {found.high:.3f}), {step_ms:.0f} ms"
    )


def drawing() -> str:
    """Seconds that the weights of ResNet-50 take."""
    spec = models.spec(DRAWN)
    begun_s = time.perf_counter()
    count = sum(array.size for _, array in weights.draw(spec, 1))
    return f"drawing {count:,} weights: {time.perf_counter() - begun_s:.2f} s"


def main(names: list[str]) -> None:
    """Print a line per network."""
    random.seed(1)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    sys.stdout.write(drawing() + "\n")
    for name in names or ["alexnet", "resnet50", "googlenet-bn"]:
        sys.stdout.write(compare(name) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
