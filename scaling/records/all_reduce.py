"""A timed all-reduce: what the process that makes it is asked, and what it tells."""

from __future__ import annotations

from statistics import median

from scaling.records.point import Record
from scaling.records.task import Task


class Timed(Record, frozen=True, kw_only=True):
    """All-reduces of `bytes` among `ranks`: `times_s` has each repetition's, as the slowest rank took it."""

    ranks: int
    bytes: int
    times_s: tuple[float, ...]

    @property
    def best_bytes_per_s(self) -> float:
        """The busbw of the fastest repetition."""
        return self._busbw(min(self.times_s))

    @property
    def median_bytes_per_s(self) -> float:
        """The busbw of the usual repetition."""
        return self._busbw(median(self.times_s))

    def _busbw(self, seconds: float) -> float:
        """What each rank's link carries each way, whatever the number of ranks: 2 (N-1)/N x bytes / time, as
        nccl-tests defines it ("Performance reported by NCCL tests" in its documentation)."""
        return 2 * (self.ranks - 1) / self.ranks * self.bytes / seconds


class AskedAllReduce(Record, frozen=True, kw_only=True):
    """What one rank's process is to do: its task says with whom, over which place and with which library; no
    tensor is larger than `largest_bytes`, and each group may take about `budget_s`. With `inside` the ranks of
    each of several nodes are timed too."""

    task: Task
    largest_bytes: int
    budget_s: float
    inside: bool = False


class RankAllReduce(Record, frozen=True, kw_only=True):
    """What one rank's process tells: of all ranks, and of those of its node where it has several. With an `error`
    nothing was timed."""

    everyone: Timed | None = None
    inside: Timed | None = None
    library: str = ""
    error: str = ""
