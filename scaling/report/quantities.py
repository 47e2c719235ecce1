"""Estimates as quantities: unit and digits of each kind of number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import RATE, SPEEDUP
from scaling.analysis.table.rows import PERCENT, Basis, Column, Row, Standing
from scaling.records.events import Failed
from scaling.records.network import GBIT
from scaling.records.point import Workload
from scaling.report.parts import NONE, Cell, Line, Quantity, stamped
from scaling.text import counted

# Rounding error of differences that are zero by construction.
NOTHING = 1e-9
# Numbers from here on have commas between thousands on a page.
LONG = 9_999.5


def rate(samples_per_s: Estimate | float | None, workload: Workload) -> Quantity | None:
    """Convert samples/s to the work's unit per second, about four digits: tokens/s is sequences/s x length."""
    if samples_per_s is None:
        return None
    return _estimate(RATE.of_unit(workload.unit), _alone(samples_per_s).times(workload.units_per_sample))


def speedup(estimate: Estimate | None) -> Quantity | None:
    return None if estimate is None else _estimate(SPEEDUP, estimate)


def _alone(value: Estimate | float) -> Estimate:
    return value if isinstance(value, Estimate) else Estimate(mean=value, low=None, high=None, n=1)


def _estimate(column: Column, found: Estimate) -> Quantity:
    digits = column.digits_of(found.mean)
    return Quantity(value=found.mean, low=found.low, high=found.high, digits=digits, unit=column.unit)


def percent(estimate: Estimate | None) -> Quantity | None:
    return None if estimate is None else fraction(estimate.mean, estimate)


def fraction(value: float, interval: Estimate | None = None, digits: int = 1) -> Quantity:
    """Convert a fraction of 1 to percent, with an interval that was estimated apart. It is noise if the interval
    contains zero, except an interval that is zero after rounding."""
    ends = (interval.low, interval.high) if interval else (None, None)
    low, high = (None if end is None else 100 * end for end in ends)
    shows = any(round(end, digits) for end in (low, high) if end is not None)
    is_noise = shows and interval is not None and interval.holds_zero
    return Quantity(value=100 * value, low=low, high=high, digits=digits, unit=PERCENT, is_noise=is_noise)


def part(value: float, interval: Estimate | None) -> Quantity:
    """Convert a cause's fraction. Without an interval it is noise, unless it is zero by construction."""
    found = fraction(value, interval)
    return found if found.low is not None else replace(found, is_noise=abs(value) > NOTHING)


def grouped(of: Quantity) -> Quantity:
    """Return the number as prose and pages show it: 883,207 and not 883207."""
    return replace(of, grouped=True) if abs(of.value) >= LONG else of


def integer(value: int) -> Quantity:
    return Quantity(value=value, digits=0)


def samples(count: int, work: Workload) -> Quantity:
    """Return `12,800 images`, or the tokens of sequences."""
    return Quantity(value=count * work.units_per_sample, digits=0, unit=work.unit, grouped=True)


def milliseconds(seconds: float | Estimate) -> Quantity:
    """Round to about three digits: `41.3 ms`, `0.87 ms`."""
    found = _alone(seconds).times(1e3)
    digits = 2 if abs(found.mean) < 10 else 1 if abs(found.mean) < 100 else 0
    return Quantity(value=found.mean, low=found.low, high=found.high, digits=digits, unit="ms")


def bit_rate(bits_per_s: float) -> Quantity:
    """Round to three digits: `9.4 Gb/s`, `38 Mb/s`."""
    scale, unit = (GBIT, "Gb/s") if bits_per_s >= GBIT else (1e6, "Mb/s")
    value = bits_per_s / scale
    return Quantity(value=value, digits=len(f"{value:.3g}".partition(".")[2]), unit=unit)


def against(standing: Standing | None) -> str | None:
    """Return `best`, `leading`, `tied, -0.4 ± 1.1 %`, `4.2 ± 1.1 % slower`; the difference alone if it is not
    separated or not tested; None without a rival."""
    if standing is None:
        return None
    verdict, found = standing.verdict, percent(standing.difference)
    if found is None:
        return NONE if verdict == "not compared" else verdict
    if verdict in ("slower", "faster") and found.value < 0:
        low, high = (None if end is None else -end for end in (found.high, found.low))
        found = replace(found, value=-found.value, low=low, high=high)
    size = f"{stamped(*found.parts(with_unit=False))} {PERCENT}"
    if verdict in ("slower", "faster"):
        return f"{size} {verdict}"
    return size if verdict in ("not compared", "not separated") else f"{verdict}, {size}"


# ---------------------------------------------------------------- cells of a row


def line(row: Row, name: str, *, above: str = "", marks: tuple[int, ...] = ()) -> Line:
    """Make the line of a measured row; `says` has the reason for missing cells."""
    basis: Basis
    if row.failed is not None:
        basis, says = "plan", outcome(row.failed)
    elif row.efficiency is None or row.breakdown is None:
        basis, says = "result", catalogue.claimless(row) or ("" if row.is_plain else "no baseline")
    else:
        basis, says = "claim", ""
    cells = {column.key: cell(column, row) for column in catalogue.tabulated(basis)}
    return Line(cells={catalogue.NAME.key: name, **cells}, says=says, flags=row.flags, above=above, marks=marks)


def cell(column: Column, row: Row) -> Cell:
    """Return what a column shows of a row, with the column's unit and digits."""
    of = column.shown or column.value
    value: Any = of(row) if of else None
    interval = column.interval(row) if column.interval else None
    match value:
        case None | str():
            return value
        case Standing():
            return against(value)
        case Estimate():
            value, interval = value.mean, value
    if column.unit == PERCENT:
        return part(value, interval) if column.interval else fraction(value, interval, column.digits_of(value))
    low, high = (interval.low, interval.high) if interval else (None, None)
    unit = column.of_unit(row.workload.unit).unit
    return Quantity(value=value, low=low, high=high, digits=column.digits_of(value), unit=unit)


def outcome(failed: Failed) -> str:
    """Return `OOM` or `failed: CAUSE`."""
    return "OOM" if failed.cause == "oom" else f"failed: {failed.cause}"


# ---------------------------------------------------------------- texts of several quantities


def spread(values: Sequence[int], noun: str) -> str:
    """Return `10 windows`, or `8-10 windows` if they differ."""
    low, high = min(values), max(values)
    return counted(high, noun) if low == high else f"{low}-{counted(high, noun)}"


def low_to_high(low: Quantity, high: Quantity) -> str:
    """Return `37 to 61 %`, or one number if both look alike; the unit is that of `high`."""
    return f"{high}" if low.mean(with_unit=False) == high.mean(with_unit=False) else f"{low} to {high}"
