"""Estimates as quantities: unit and digits of each kind of number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import RATE, SPEEDUP
from scaling.analysis.table.rows import PERCENT, Basis, Column, Row, Standing
from scaling.records.events import Failed
from scaling.records.network import GBIT
from scaling.records.point import Workload
from scaling.report import words
from scaling.report.parts import Against, Cell, Line, Phrase, Quantity
from scaling.text import plural

# Rounding error of differences that are zero by construction.
NOTHING = 1e-9


def rate(samples_per_s: Estimate | None, workload: Workload) -> Quantity | None:
    """Convert samples/s to the work's unit per second, about four digits: tokens/s is sequences/s x length."""
    if samples_per_s is None:
        return None
    return _estimate(RATE.of_unit(workload.unit), samples_per_s.times(workload.units_per_sample))


def rate_of(samples_per_s: float | None, workload: Workload) -> Quantity | None:
    """Convert a rate without an interval."""
    alone = None if samples_per_s is None else Estimate(mean=samples_per_s, low=None, high=None, n=1)
    return rate(alone, workload)


def percent(estimate: Estimate | None) -> Quantity | None:
    return None if estimate is None else fraction(estimate.mean, estimate)


def fraction(value: float, interval: Estimate | None = None, digits: int = 1) -> Quantity:
    """Convert a fraction of 1 to percent, with an interval that was estimated apart. It is noise if the interval
    contains zero, except an interval that is zero after rounding."""
    ends = (interval.low, interval.high) if interval else (None, None)
    low, high = (None if end is None else 100 * end for end in ends)
    shows = any(round(end, digits) for end in (low, high) if end is not None)
    return Quantity(
        value=100 * value,
        low=low,
        high=high,
        digits=digits,
        unit=PERCENT,
        is_noise=shows and interval is not None and interval.holds_zero,
    )


def part(value: float, interval: Estimate | None) -> Quantity:
    """Convert a cause's fraction. Without an interval it is noise, unless it is zero by construction."""
    found = fraction(value, interval)
    return found if found.low is not None else replace(found, is_noise=abs(value) > NOTHING)


def speedup(estimate: Estimate | None) -> Quantity | None:
    return None if estimate is None else _estimate(SPEEDUP, estimate)


def _estimate(column: Column, found: Estimate) -> Quantity:
    digits = column.digits_of(found.mean)
    return Quantity(value=found.mean, low=found.low, high=found.high, digits=digits, unit=column.unit)


# Numbers from here on have commas between thousands on a page.
LONG = 9_999.5


def grouped(of: Quantity) -> Quantity:
    """Return the number as prose and pages show it: 883,207 and not 883207."""
    return replace(of, grouped=True) if abs(of.value) >= LONG else of


def integer(value: int) -> Quantity:
    return Quantity(value=value, digits=0)


def training_loss(value: float) -> Quantity:
    return Quantity(value=value, digits=3)


def steps(value: float) -> Quantity:
    return Quantity(value=value, digits=2)


def samples(count: int, work: Workload) -> Quantity:
    """Return `12,800 images`, or the tokens of sequences."""
    return Quantity(value=count * work.units_per_sample, digits=0, unit=work.unit, grouped=True)


def milliseconds(seconds: float) -> Quantity:
    """Round to about three digits: `41.3 ms`, `0.87 ms`."""
    value = 1e3 * seconds
    return Quantity(value=value, digits=2 if abs(value) < 10 else 1 if abs(value) < 100 else 0, unit="ms")


def milliseconds_of(estimate: Estimate) -> Quantity:
    ends = estimate.times(1e3)
    return replace(milliseconds(estimate.mean), low=ends.low, high=ends.high)


def bit_rate(bits_per_s: float) -> Quantity:
    """Round to three digits: `9.4 Gb/s`, `38 Mb/s`."""
    scale, unit = (GBIT, "Gb/s") if bits_per_s >= GBIT else (1e6, "Mb/s")
    value = bits_per_s / scale
    return Quantity(value=value, digits=len(f"{value:.3g}".partition(".")[2]), unit=unit)


def against(standing: Standing | None) -> Against | None:
    """Convert a standing; None without a rival."""
    if standing is None:
        return None
    return Against(verdict=standing.verdict, difference=percent(standing.difference))


# ---------------------------------------------------------------- cells of a row


def line(row: Row, name: str, *, above: str, marks: tuple[int, ...]) -> Line:
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


def notes_of(row: Row, planned: int) -> tuple[str, ...]:
    """Return the row's footnotes; the first one names missing rounds of an interrupted run."""
    fewer = (f"{row.rounds_tried} of {planned} rounds measured",) if row.rounds_tried < planned else ()
    return (*fewer, *row.footnotes)


# ---------------------------------------------------------------- counts, and phrases of several quantities


def count(value: int, noun: str) -> Quantity:
    """Return `1 host`, `4 hosts`."""
    return Quantity(value=value, digits=0, unit=plural(value, noun))


def spread(values: Sequence[int], noun: str) -> Phrase:
    """Return `10 windows`, or `8-10 windows` if they differ."""
    low, high = min(values), max(values)
    return (count(high, noun),) if low == high else (Quantity(value=low, digits=0), "-", count(high, noun))


def low_to_high(low: Quantity, high: Quantity) -> Phrase:
    """Return `37 to 61 %`, or one number if both look alike; the unit is that of `high`."""
    alike = words.mean(low, with_unit=False) == words.mean(high, with_unit=False)
    return (high,) if alike else (low, " to ", high)


def listed(phrases: Iterable[Phrase]) -> Phrase:
    return tuple(chain.from_iterable((", ", *one) for one in phrases))[1:]


def distinct(phrases: Iterable[Phrase]) -> Phrase:
    """Return each phrase once: `a; b`."""
    return tuple(chain.from_iterable(("; ", *one) for one in dict.fromkeys(phrases)))[1:]
