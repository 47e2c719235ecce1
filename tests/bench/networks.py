"""Training steps of networks built from their description against the framework's library's, in one process.

The ratio of the two rates, with the 95 % interval of its geometric mean over blocks in random order (blocks of one
start are no samples of starts: call it again for more). On a machine that others slow down now and then, the CPU
seconds of the quickest quarter of each side's blocks say more. And what drawing weights takes.

[BLOCKS=12] python -m tests.bench.networks [torch|tensorflow|mxnet] [NAME...]     (those that the library has too)
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from importlib import import_module
from math import exp, log
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from scaling.analysis.intervals import geometric
from scaling.frameworks import FOLDER_OF
from scaling.workloads import models, weights

# Of a start, the first blocks are slower.
WARM_UP, BLOCKS, STEPS = 2, int(os.environ.get("BLOCKS", "12")), 2
FRAMEWORK, DRAWN, RATE = "torch", "resnet50", 1e-9


class Block(NamedTuple):
    """Means of a block's steps: by the clock, and of this process's threads."""

    wall_s: float
    cpu_s: float


def block(step: Callable[[], object]) -> Block:
    """A block's steps, after one that is not counted."""
    step()
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step()
    return Block((time.perf_counter() - begun_s) / STEPS, (time.process_time() - begun_cpu_s) / STEPS)


def compare(library: Any, name: str) -> str:
    """`resnet50: rate over torchvision's 1.003 (0.995 to 1.011), 512 ms`; above 1 the description is faster."""
    spec = models.spec(name)
    # Who learns a batch by heart has gradients of next to nothing, which CPUs multiply many times as slowly.
    sides = library.pair(replace(spec, recipe=replace(spec.recipe, rate=RATE)))._asdict()
    taken: dict[str, list[Block]] = {side: [] for side in sides}
    for number in range(WARM_UP + BLOCKS):
        for side in random.sample(list(sides), 2):
            took = block(sides[side])
            taken[side] += [took] if number >= WARM_UP else []
    ours, theirs = taken["ours"], taken["theirs"]
    found = geometric([other.wall_s / own.wall_s for own, other in zip(ours, theirs, strict=True)])
    figures = f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"
    step_ms = 1e3 * exp(fmean(log(one.wall_s) for one in ours))
    cpu = quickest([one.cpu_s for one in ours], [one.cpu_s for one in theirs])
    return f"{name}: rate over {library.LIBRARY}'s {figures}, {cpu}, {step_ms:.0f} ms"


def quickest(ours: list[float], theirs: list[float]) -> str:
    """The ratio of CPU seconds where nobody was in the way, its interval by resampling blocks."""

    def ratio(own: NDArray[np.float64], other: NDArray[np.float64]) -> float:
        first = slice(len(own) // 4 or 1)
        return float(np.sort(other)[first].mean() / np.sort(own)[first].mean())

    pairs = (np.array(ours), np.array(theirs))
    drawn = stats.bootstrap(pairs, ratio, vectorized=False, n_resamples=2000, method="percentile", rng=1)
    low, high = drawn.confidence_interval
    return f"quickest quarter by CPU {ratio(*pairs):.3f} ({low:.3f} to {high:.3f})"


def drawing() -> str:
    spec = models.spec(DRAWN)
    begun_s = time.perf_counter()
    count = sum(array.size for _, array in weights.draw(spec, 1))
    return f"drawing {count:,} weights: {time.perf_counter() - begun_s:.2f} s"


def main(asked: list[str]) -> None:
    random.seed(1)
    framework, *names = asked if asked and asked[0] in FOLDER_OF else [FRAMEWORK, *asked]
    library = import_module(f"tests.bench.library.{FOLDER_OF[framework]}")
    sys.stdout.write(drawing() + "\n")
    for name in names or library.NAMES:
        sys.stdout.write(compare(library, name) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
