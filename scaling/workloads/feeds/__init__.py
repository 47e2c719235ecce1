"""What models are fed with. Every feed gives NumPy batches; the strategies move them to their device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scaling.errors import UsageError, near
from scaling.records.task import Task
from scaling.workloads.specs import ModelSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# name -> (what it is, the classes it has; None: as many as the model asks for)
CATALOGUE: dict[str, tuple[str, int | None]] = {
    "digits": ("1,797 real handwritten digits that scikit-learn ships, resized to the model's input", 10),
    "synthetic": ("seeded noise of the model's input shape with random labels, made once", None),
}


class Feed(Protocol):
    """One rank's batches: a pure function of the seed, the rank, the world size and the step, so that every
    framework sees the same images. `fixed`: all steps have one batch, which goes to the device once."""

    fixed: bool

    def batch(self, step: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Images (batch, channels, height, width), normalised, and labels (batch,) of step 0, 1, ..."""


def feed(task: Task, spec: ModelSpec) -> Feed:
    """The feed of one rank of a point."""
    # The agent imports this module: NumPy comes with the feeds.
    if task.point.workload.data == "digits":
        from scaling.workloads.feeds.digits import Digits

        return Digits(
            spec.input.shape,
            batch_size=task.point.workload.batch_size,
            seed=task.seed,
            rank=task.rank,
            world_size=task.point.world_size,
        )
    from scaling.workloads.feeds.synthetic import Synthetic

    return Synthetic(
        spec.input.shape, spec.outputs, batch_size=task.point.workload.batch_size, seed=task.seed, rank=task.rank
    )


def check(name: str, classes: int) -> None:
    """Refuse unknown data, or data with other classes than the model has; raises UsageError."""
    if name not in CATALOGUE:
        raise UsageError(f"--data {name}: unknown; {near(name, CATALOGUE)}")
    found = CATALOGUE[name][1]
    if found is not None and found > classes:
        raise UsageError(f"--data {name}: has {found} classes, the model {classes}")
