"""The row that answers how well it scales, and the one line about it that a program can find. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.analysis.rows import Row
from scaling.report.cells import is_mislabelled
from scaling.text import decimals

NONE = "-"


def headline(rows: Iterable[Row]) -> Row | None:
    """Of the largest world size that was tried: the fastest row that claims an efficiency, waits for its ranks and
    is what its name says; else the fastest; else one that failed. None without any row."""
    return max(rows, key=_rank, default=None)


def _rank(row: Row) -> tuple[int, bool, bool, float]:
    rate = row.samples_per_s.mean if row.samples_per_s else 0.0
    return row.world_size, rate > 0, claims(row), rate


def claims(row: Row) -> bool:
    """Whether its efficiency answers for a whole run: told, of ranks that wait, over the network of its name."""
    return row.efficiency is not None and row.synchronous and not is_mislabelled(row)


def last_line(rows: Iterable[Row]) -> str:
    """`scaling: torch:nccl N=16 3937.2 images/s speedup 12.31 efficiency 0.769 flags -`, for grep and awk: words
    keep their places, `-` stands for what is not known, flags have commas between them."""
    row = headline(rows)
    if row is None:
        return "scaling: nothing measured"
    rate = NONE if row.samples_per_s is None else f"{row.samples_per_s.mean:.{_digits(row.samples_per_s.mean)}f}"
    speedup = NONE if row.speedup is None else f"{row.speedup.mean:.2f}"
    efficiency = NONE if row.efficiency is None or row.learnt_less else f"{row.efficiency.mean:.3f}"
    over = "" if row.interconnect == "auto" else f" over {row.interconnect}"
    return (
        f"scaling: {row.strategy} N={row.world_size} {rate} {row.workload.unit}/s speedup {speedup} "
        f"efficiency {efficiency} flags {','.join(row.flags) or NONE}{over}"
    )


def _digits(rate: float) -> int:
    return max(1, decimals(rate))
