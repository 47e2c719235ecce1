"""Bars of eighth blocks in a terminal's table: how much of 100 % an efficiency is, at a glance. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.report import words
from scaling.report.cells import EFFICIENCY
from scaling.report.formats import layout as layouts
from scaling.report.formats.layout import WIDTH, Layout
from scaling.report.parts import Column, Line, Quantity

# Flags that are no complaint stand beside the row and not below it.
BESIDE = {"ASYNC", "EMULATED", "IMPORTED", "VERIFIED"}
BAR = Column(key="efficiency_bar", title="", is_text=True)
# The widest that has room is taken.
BAR_WIDTHS = (10, 8, 6, 5)
NARROW = 80
# U+2588 and what is left of it by eighths (the Unicode standard's Block Elements).
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(percent: float, width: int) -> str:
    """`percent` of `width` characters, to an eighth of one: full above 100 %, empty below 0."""
    eighths = round(min(max(percent, 0.0), 100.0) / 100 * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def with_bars(
    lines: Sequence[Line], columns: Sequence[Column], cells: Sequence[tuple[str, ...]]
) -> tuple[Layout, list[tuple[str, ...]]]:
    """The table's layout and cells, with bars where they leave room for all that stands beside the lines; a table
    that fits a terminal of 80 columns goes on to do so."""
    layout = layouts.fitted(columns, cells)
    beside = 2 + max((len(stamps(line)) for line in lines if set(line.stamps) <= BESIDE), default=0)
    limit = NARROW if layout.end + beside <= NARROW else WIDTH
    has_bars = EFFICIENCY in columns and any(_percent(line) is not None for line in lines)
    for width in BAR_WIDTHS if has_bars else ():
        wide_columns, wide = _barred(lines, columns, cells, width)
        found = layouts.fitting(wide_columns, wide, limit - beside)
        if found is not None:
            return found, wide
    return layout, list(cells)


def _barred(
    lines: Sequence[Line], columns: Sequence[Column], cells: Sequence[tuple[str, ...]], width: int
) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Bars behind efficiencies; a line that ends before has none."""
    at = list(columns).index(EFFICIENCY) + 1
    barred = [
        row if len(row) < at else (*row[:at], bar(_percent(line) or 0.0, width).ljust(width), *row[at:])
        for line, row in zip(lines, cells, strict=True)
    ]
    return [*columns[:at], BAR, *columns[at:]], barred


def _percent(line: Line) -> float | None:
    cell = line.cells.get(EFFICIENCY.key)
    return cell.value if isinstance(cell, Quantity) else None


def stamps(line: Line) -> str:
    """Flags, remark and marks of a line."""
    return words.stamped(*line.stamps, words.text(line.remark), words.mark_text(line.marks))
