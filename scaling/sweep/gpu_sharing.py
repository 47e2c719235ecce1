"""How points share GPUs: as many as fit are started together, and seats run at the same time if that is alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median

from scaling.plan.groups import GPU_PART, held_bytes
from scaling.records.messages import Paused
from scaling.records.point import Point, Record
from scaling.records.telemetry import Sample
from scaling.sweep.state import ChildState, PointState

# Seats share something, as power or PCIe, if their steps are slower than this at the same time.
ALIKE = 0.005
# Processes that a host starts at the same time: the driver makes contexts one after another (dmlc/xgboost issue
# 2938, rapidsai/dask-cuda issue 198). More, once it is known that they take START_PART of the start-up timeout.
STARTED, START_PART = 8, 1 / 4
# The first two blocks of the first round: seats one after the other, then at the same time.
ALONE, AT_ONCE = 0, 1


class Sharing(Record, frozen=True, kw_only=True):
    """What earlier points of a group have shown; None if that is unknown.

    `fits`: how many of its points GPUs hold at the same time.
    `slowed`: by which fraction seats are slower at the same time.
    `start_s`: seconds that each process of a host takes to start, with the others of its group.
    """

    fits: int | None = None
    slowed: float | None = None
    start_s: float | None = None

    def started_at_once(self, startup_s: float) -> int:
        """Return how many processes a host starts at the same time; `startup_s` is the timeout of one."""
        return max(STARTED, int(START_PART * startup_s / self.start_s)) if self.start_s else STARTED

    @property
    def seats_apart(self) -> bool:
        """Whether seats run one after the other, because they share something."""
        return self.slowed is not None and self.slowed > ALIKE


def startable(points: Sequence[Point], memory_bytes: int) -> int:
    """Return how many of these points to start before any has computed: they may hold half of a GPU's memory."""
    if not memory_bytes:
        return len(points)
    return max(1, int(memory_bytes / 2 // max(map(held_bytes, points))))


Stood = Mapping[int, Paused]


def fitting(state: PointState, cold: Iterable[Stood], stood: Stood, started: int, memory_bytes: int) -> int | None:
    """Return how many points GPUs of `memory_bytes` hold, at least 1; None if readings are missing.

    `started` points hold what `stood` shows. One point, with this state, has computed: one at a time does so. It
    now holds more than before, when all points held what `cold` shows. Each point will hold as much as it.
    """

    def most(readings: Iterable[Sample]) -> int:
        return max((one.memory_used_bytes or 0 for one in readings), default=0)

    def shown(of: Stood) -> int:
        return most(chain.from_iterable(one.gpus for one in of.values()))

    held_bytes, cold_bytes = shown(stood), max(map(shown, cold), default=0)
    computing_bytes = most(one for rank in state.ranks for window in rank.warmup for one in window.gpus)
    if not held_bytes or not memory_bytes:
        return None
    spare_bytes = GPU_PART * memory_bytes - max(0, computing_bytes - held_bytes)
    cold_bytes = min(cold_bytes or held_bytes, held_bytes)
    each_bytes = cold_bytes / started + held_bytes - cold_bytes
    return max(1, int(spare_bytes // each_bytes))


def slowed(ranks: Sequence[ChildState]) -> float | None:
    """Return by which fraction the median seat was slower in block AT_ONCE than ALONE; None if unknown."""
    by_block = [{window.index: window.seconds / window.steps for window in rank.windows} for rank in ranks]
    changes = [step_s[AT_ONCE] / step_s[ALONE] - 1 for step_s in by_block if {ALONE, AT_ONCE} <= step_s.keys()]
    return median(changes) if changes else None
