"""The row that answers how well it scales, and the one line about it that a program can find. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.analysis.table import accuracy
from scaling.analysis.table.rows import Row, Training
from scaling.records.other_code import revision
from scaling.report import quantities
from scaling.text import decimals

NONE = "-"


def headline(rows: Iterable[Row]) -> Row | None:
    """Of the largest world size that was tried, and of whole steps before passes: the fastest row that claims an
    efficiency, waits for its ranks and is what its name says, of the launch's own code before that of another
    revision; else the fastest; else one that failed. None without any row."""
    return max(rows, key=_rank, default=None)


def _rank(row: Row) -> tuple[int, bool, bool, bool, bool, float]:
    rate = row.samples_per_s.mean if row.samples_per_s else 0.0
    return row.world_size, row.workload.trains, rate > 0, claims(row), not revision(row.strategy), rate


def claims(row: Row) -> bool:
    """Whether its efficiency answers for a whole run: told, of ranks that wait, over the network of its name."""
    return row.efficiency is not None and row.synchronous and "MISLABELLED" not in row.flags


def last_line(rows: Iterable[Row], trainings: Iterable[Training] = ()) -> str:
    """`scaling: torch:nccl N=16 3937.2 images/s speedup 12.31 efficiency 0.769 flags -`, for grep and awk: words
    keep their places, `-` stands for what is not known, flags have commas between them."""
    row = headline(rows)
    if row is None:
        best = max(accuracy.best(list(trainings)).values(), key=accuracy.last_top1, default=None)
        return "scaling: nothing measured" if best is None else _accuracy(best)
    found = quantities.rate(row.samples_per_s, row.workload)
    rate = NONE if found is None else f"{found.value:.{_digits(found.value)}f}"
    speedup = NONE if row.speedup is None or row.learnt_less else f"{row.speedup.mean:.2f}"
    efficiency = NONE if row.efficiency is None or row.learnt_less else f"{row.efficiency.mean:.3f}"
    passes = "" if row.workload.trains else f" pass {row.workload.pass_}"
    over = "" if row.interconnect == "auto" else f" over {row.interconnect}"
    return (
        f"scaling: {row.strategy} N={row.world_size} {rate} {row.workload.unit}/s speedup {speedup} "
        f"efficiency {efficiency} flags {','.join(row.flags) or NONE}{over}{passes}"
    )


def _accuracy(one: Training) -> str:
    """`scaling: torch:gloo N=4 batch 64 lr 0.006 top-1 98.3 % epochs 5 seconds 3.6 flags -`."""
    return (
        f"scaling: {one.contender.strategy} N={one.world_size} batch {one.update_samples} "
        f"lr {one.regime.rate:.4g} top-1 {100 * accuracy.last_top1(one):.1f} % epochs {len(one.top1)} "
        f"seconds {one.train_s or 0:.1f} flags {','.join(one.flags) or NONE}"
    )


def _digits(rate: float) -> int:
    return max(1, decimals(rate))
