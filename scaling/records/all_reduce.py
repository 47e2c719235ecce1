"""A timed all-reduce: what the process that makes it is asked, and what it tells."""

from __future__ import annotations

from statistics import median

from scaling.records.nccl import NcclChoice
from scaling.records.point import Record
from scaling.records.task import Task


class Timed(Record, frozen=True, kw_only=True):
    """All-reduces of `bytes` among `ranks`: `times_s` has each repetition's, as the slowest rank took it; the
    busbw of the fastest and of the usual one follow from it (`timed`)."""

    ranks: int
    bytes: int
    times_s: tuple[float, ...]
    best_busbw_bytes_per_s: float
    median_busbw_bytes_per_s: float


def timed(ranks: int, size_bytes: int, times_s: tuple[float, ...]) -> Timed:
    """With busbw as nccl-tests defines it, what each rank's link carries each way whatever the number of ranks:
    2 (N-1)/N x bytes / time ("Performance reported by NCCL tests" in its documentation)."""
    moved_bytes = 2 * (ranks - 1) / ranks * size_bytes
    return Timed(
        ranks=ranks,
        bytes=size_bytes,
        times_s=times_s,
        best_busbw_bytes_per_s=moved_bytes / min(times_s),
        median_busbw_bytes_per_s=moved_bytes / median(times_s),
    )


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
    nothing was timed. `nccl` is read from NCCL's own log, None without one."""

    everyone: Timed | None = None
    inside: Timed | None = None
    library: str = ""
    error: str = ""
    nccl: NcclChoice | None = None
