"""How points share GPUs: as many as fit are started together, and seats run at the same time if that is alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median

from scaling.plan.groups import COPIES, FLOAT32_BYTES
from scaling.records.messages import Paused
from scaling.records.point import Point, Record
from scaling.records.telemetry import Sample
from scaling.sweep.state import ChildState, PointState
from scaling.workloads import models

# The part of a GPU's memory that workers may use: allocators round up, and points differ a little.
PART = 0.92
# A CUDA context, NCCL's buffers and cuDNN's handles: a guess, until GPUs are read.
CONTEXT_BYTES = 1_500_000_000
# Seats share something, as power or PCIe, if their steps are slower than this at the same time.
ALIKE = 0.005
# The first two blocks of the first round: seats one after the other, then at the same time.
ALONE, AT_ONCE = 0, 1


class Sharing(Record, frozen=True, kw_only=True):
    """What earlier points of a group have shown; None if that is unknown.

    `fits`: how many of its points GPUs hold at the same time.
    `slowed`: by which fraction seats are slower at the same time.
    """

    fits: int | None = None
    slowed: float | None = None

    @property
    def seats_apart(self) -> bool:
        """Whether seats run one after the other, because they share something."""
        return self.slowed is not None and self.slowed > ALIKE


def memory_order(point: Point) -> tuple[int, bool, int]:
    """Return a sort key: points that use more memory are larger."""
    return point.workload.batch_size, point.kind == "exchange", point.world_size


def startable(points: Sequence[Point], memory_bytes: int) -> int:
    """Return how many of these points to start before any has computed: they may hold half of a GPU's memory."""
    if not memory_bytes:
        return len(points)
    held_bytes = max(CONTEXT_BYTES + COPIES * FLOAT32_BYTES * models.of(one.workload).parameters for one in points)
    return max(1, int(memory_bytes / 2 // held_bytes))


def fitting(state: PointState, stood: Mapping[int, Paused], started: int, memory_bytes: int) -> int | None:
    """Return how many points GPUs of `memory_bytes` hold, at least 1; None if readings are missing.

    `started` points hold what `stood` shows. One point, with this state, has computed: one at a time does so.
    """

    def most(readings: Iterable[Sample]) -> int:
        return max((one.memory_used_bytes or 0 for one in readings), default=0)

    held_bytes = most(chain.from_iterable(one.gpus for one in stood.values()))
    computing_bytes = most(one for rank in state.ranks for window in rank.warmup for one in window.gpus)
    if not held_bytes or not memory_bytes:
        return None
    spare_bytes = PART * memory_bytes - max(0, computing_bytes - held_bytes)
    return max(1, int(spare_bytes * started // held_bytes))


def slowed(ranks: Sequence[ChildState]) -> float | None:
    """Return by which fraction the median seat was slower in block AT_ONCE than ALONE; None if unknown."""
    by_block = [{window.index: window.seconds / window.steps for window in rank.windows} for rank in ranks]
    changes = [step_s[AT_ONCE] / step_s[ALONE] - 1 for step_s in by_block if {ALONE, AT_ONCE} <= step_s.keys()]
    return median(changes) if changes else None
