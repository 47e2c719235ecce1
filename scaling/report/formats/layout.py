"""Where the columns of a terminal's table stand: widths, gaps, headings, rules. Pure, without colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise, zip_longest
from typing import NamedTuple

from scaling.analysis.table.entries import Column
from scaling.report import words
from scaling.report.parts import Line
from scaling.report.words import Parts

WIDTH = 100
INDENT = "  "
# Room for the names of rows that is worth keeping.
LEAST_NAME = 12


class Group(NamedTuple):
    """Columns side by side under one heading, from the `first` to the `last`."""

    heading: str
    first: int
    last: int


class Layout(NamedTuple):
    """Where the columns of a section stand: widths in characters, and the gap before each."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    gaps: tuple[int, ...]

    def start(self, index: int) -> int:
        """The first character of a column."""
        return len(INDENT) + sum(self.widths[:index]) + sum(self.gaps[: index + 1])

    @property
    def end(self) -> int:
        """The first character after the last column."""
        return len(INDENT) + sum(self.widths) + sum(self.gaps)

    @property
    def stamps(self) -> int:
        """Where flags stand below a line."""
        return len(INDENT) + 4 if self.is_named else self.start(1)

    @property
    def is_named(self) -> bool:
        """Whether lines begin with a name."""
        return self.columns[0].is_text

    def placed(self, text: str, index: int) -> str:
        """A cell with the gap before it."""
        width = self.widths[index]
        return " " * self.gaps[index] + (text.ljust(width) if self.columns[index].is_text else text.rjust(width))

    def rule(self, label: str = "") -> str:
        """What the next lines are: beside their names, or where a curve goes on to several nodes at the end."""
        width = self.end - len(INDENT)
        return INDENT + (f"──{label}".ljust(width, "─") if self.is_named else f"{label}──".rjust(width, "─"))


# ---------------------------------------------------------------- cells


def cells(lines: Sequence[Line], columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """The cells of each line up to the first that is missing."""
    return aligned([words.cells(line, columns) for line in lines], [column.is_text for column in columns])


def aligned(rows: Sequence[Sequence[Parts]], is_text: Sequence[bool] = ()) -> list[tuple[str, ...]]:
    """Pad the cells so that the ± of a column of numbers stand below each other; rows may end early."""
    padded = [
        [words.plus_minus(*cell) for cell in column] if text else _aligned(column)
        for column, text in zip_longest(zip_longest(*rows, fillvalue=("", "")), is_text)
        if column
    ]
    return [tuple(column[index] for column in padded[: len(row)]) for index, row in enumerate(rows)]


def _aligned(column: Sequence[Parts]) -> list[str]:
    means = max((len(mean) for mean, half in column if not _is_text(mean, half)), default=0)
    halves = max(len(half) for _, half in column)
    if not halves:
        return [mean for mean, _ in column]
    return [
        mean if _is_text(mean, half) else f"{mean:>{means}}{' ± ' if half else '   '}{half:>{halves}}"
        for mean, half in column
    ]


def _is_text(mean: str, half: str) -> bool:
    """Words in a column of numbers: they take the room of both."""
    return not half and mean[:1].isalpha()


# ---------------------------------------------------------------- columns


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Layout:
    """The widest that fits; where none does, the longest names give up their place in the first column."""
    layouts = _layouts(columns, rows)
    found = next((layout for layout in layouts if layout.end <= WIDTH), None)
    return found or (_without_names(layouts, rows) if columns[0].is_text else layouts[-1])


def fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Layout | None:
    """The widest that fits with all that the cells say and keeps columns apart; None where none does."""
    return next((layout for layout in _layouts(columns, rows)[:-1] if layout.end <= width), None)


def _layouts(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Layout]:
    """From the widest to the narrowest gaps."""
    widths = [max(map(len, _heading(column))) for column in columns]
    for row in rows:
        for index, text in enumerate(row):
            widths[index] = max(widths[index], len(text))
    for group in _groups(columns):
        inside = sum(widths[group.first : group.last + 1]) + group.last - group.first
        widths[group.first] += max(0, len(group.heading) - inside)
    return [Layout(tuple(columns), tuple(widths), gaps) for gaps in _gaps(columns)]


def _without_names(layouts: Sequence[Layout], rows: Sequence[Sequence[str]]) -> Layout:
    """Names that are too long stand on lines of their own."""
    for layout in layouts[1:]:
        room = WIDTH - layout.end + layout.widths[0]
        short = [len(row[0]) for row in rows if len(row[0]) <= room]
        if room >= LEAST_NAME:
            break
    kept = max(short, default=max(0, min(room, LEAST_NAME)))
    return layout._replace(widths=(kept, *layout.widths[1:]))


def _gaps(columns: Sequence[Column]) -> Iterable[tuple[int, ...]]:
    """Two spaces; one inside groups; one everywhere."""
    inside = [bool(column.group) and column.group == before.group for before, column in pairwise(columns)]
    yield (0, *(2 for _ in inside))
    yield (0, *(1 if is_inside else 2 for is_inside in inside))
    yield (0, *(1 for _ in inside))


# ---------------------------------------------------------------- headings


def headings(layout: Layout) -> Iterator[str]:
    """The names of groups over their columns, then columns' own in two lines, or in one where that is enough."""
    groups = list(_groups(layout.columns))
    if groups:
        yield _grouped(layout, groups)
    for part in (0, 1):
        own = "".join(layout.placed(_heading(column)[part], index) for index, column in enumerate(layout.columns))
        if own.strip():
            yield INDENT + own


def _grouped(layout: Layout, groups: Iterable[Group]) -> str:
    text = ""
    for group in groups:
        start = layout.start(group.first)
        width = layout.start(group.last) + layout.widths[group.last] - start
        text = text.ljust(start) + group.heading.center(width, "─")
    return text


def _groups(columns: Sequence[Column]) -> Iterator[Group]:
    for name, members in groupby(enumerate(columns), key=lambda member: member[1].group):
        if name:
            inside = list(members)
            units = {column.unit for _, column in inside if column.unit}
            yield Group(f" {', '.join((name, *sorted(units)))} ", inside[0][0], inside[-1][0])


def _heading(column: Column) -> tuple[str, str]:
    """Two lines; the unit of a group stands in the group's."""
    return column.short or ("", column.title if column.group else column.heading)
