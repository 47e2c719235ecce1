"""The headline row of a report, and the line about it for programs."""

from __future__ import annotations

from collections.abc import Iterable

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import accuracy
from scaling.analysis.table.rows import Row, Training
from scaling.records.run import Certificate
from scaling.text import decimals

NONE = "-"


def headline(rows: Iterable[Row]) -> Row | None:
    """Return the headline row; None without rows. Criteria, in this order:

    1. the largest world size
    2. whole steps before passes
    3. a result
    4. an efficiency that `claims`
    5. the highest rate
    """

    def rank(row: Row) -> tuple[object, ...]:
        rate = mean_rate(row)
        return row.world_size, row.workload.trains, rate > 0, claims(row), rate

    return max(rows, key=rank, default=None)


def mean_rate(row: Row) -> float:
    """Return samples/s; 0 without a result, which is below every rate."""
    return row.samples_per_s.mean if row.samples_per_s else 0.0


def claims(row: Row) -> bool:
    """Check that a row has an efficiency, is synchronous and used the network of its name."""
    return row.efficiency is not None and row.synchronous and "MISLABELLED" not in row.flags


def last_line(
    rows: Iterable[Row], trainings: Iterable[Training] = (), certificate: Certificate | None = None
) -> str:
    """Return the line for programs, which grep and awk read:

        scaling: torch:nccl N=16 3937.2 images/s speedup 12.31 efficiency 0.769 flags - ci95 25.1 0.08 0.005

    Each word has a fixed position, `-` is unknown, commas separate flags. After ci95 are half the 95 % intervals
    of the rate, the speedup and the efficiency. Of scaling certify, the last two are `verdict PASS`.
    """
    row = headline(rows)
    judged = f" verdict {certificate.word}" if certificate else ""
    if row is None:
        best = max(accuracy.best(list(trainings)).values(), key=accuracy.last_top1, default=None)
        return f"scaling: nothing measured{judged}" if best is None else _accuracy(best)
    rate = None if row.samples_per_s is None else row.samples_per_s.times(row.workload.units_per_sample)
    speedup, efficiency = (None if row.learnt_less else one for one in (row.speedup, row.efficiency))
    each = ((rate, max(1, decimals(rate.mean)) if rate else 1), (speedup, 2), (efficiency, 3))
    means, halves = zip(*(_words(estimate, digits) for estimate, digits in each), strict=True)
    flags = ",".join(row.flags) or NONE
    passes = "" if row.workload.trains else f" pass {row.workload.pass_}"
    over = "" if row.interconnect == "auto" else f" over {row.interconnect}"
    return (
        f"scaling: {row.strategy} N={row.world_size} {means[0]} {row.workload.unit}/s speedup {means[1]} "
        f"efficiency {means[2]} flags {flags} ci95 {' '.join(halves)}{over}{passes}{judged}"
    )


def _words(estimate: Estimate | None, digits: int) -> tuple[str, str]:
    """Return the mean and half the interval, `-` if unknown."""
    found = (None, None) if estimate is None else (estimate.mean, estimate.half_width)
    mean, half = (NONE if one is None else f"{one:.{digits}f}" for one in found)
    return mean, half


def _accuracy(one: Training) -> str:
    return (
        f"scaling: {one.contender.strategy} N={one.world_size} batch {one.update_samples} "
        f"lr {one.regime.rate:.4g} top-1 {100 * accuracy.last_top1(one):.1f} % epochs {len(one.top1)} "
        f"seconds {one.train_s or 0:.1f} flags {','.join(one.flags) or NONE}"
    )
