"""The report for a terminal or a text file: fixed width, the same text wherever it is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from io import StringIO
from itertools import zip_longest
from typing import NamedTuple

from msgspec.structs import replace
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scaling.records import Header, PointRecord
from scaling.report.document import Column, Document, Line, Section, document, mark_text

WIDTH = 100
# Paragraphs and lists keep to the narrowest terminal in use.
TEXT_WIDTH = 80
INDENT = "  "


def render(header: Header, records: Sequence[PointRecord], *, color: bool, joined: Sequence[str] = ()) -> str:
    """Return the report of a run; it depends on nothing but the arguments.

    `joined` are the lines that say how runs in one table differ.
    """
    out = StringIO()
    # An empty environment: COLUMNS, TERM and NO_COLOR must not change the text.
    console = Console(
        file=out,
        width=WIDTH,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    _print(console, document(header, records, joined))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _print(console: Console, doc: Document) -> None:
    _heading(console, "Scaling of data-parallel training")
    _pairs(console, doc.facts)
    for notice in doc.notices:
        console.print()
        console.print(Text(f"! {notice}", style="yellow"), width=TEXT_WIDTH)
    for section in doc.sections:
        console.print()
        _section(console, section)
    if doc.baselines:
        _heading(console, "Baselines, images/s")
        _grid(console, _aligned(doc.baselines), wrap=(0,), width=WIDTH)
    if doc.comparisons:
        _heading(console, "Best against the others, paired by round, with 99 % intervals")
        names = tuple(Text(name, style="dim") for name in ("N", "best", "against", "difference"))
        _grid(console, [names, *doc.comparisons], wrap=(1, 2), width=WIDTH)
    if doc.footnotes:
        _heading(console, "Notes")
        _pairs(console, [(mark_text([number]), text) for number, text in enumerate(doc.footnotes, 1)])
    if doc.how_to_read:
        _heading(console, "How to read")
        _pairs(console, [(text.partition(": ")[0], text.partition(": ")[2]) for text in doc.how_to_read])


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _pairs(console: Console, pairs: Iterable[tuple[str, str | Columns]]) -> None:
    """Dim labels; long texts wrap beside their label."""
    rows = [(Text(label, style="dim"), Text(text) if isinstance(text, str) else text) for label, text in pairs]
    _grid(console, rows, wrap=(1,), width=TEXT_WIDTH)


def _grid(
    console: Console, rows: Sequence[Sequence[RenderableType]], *, wrap: Collection[int], width: int
) -> None:
    """Columns without lines, indented; only those of `wrap` give way where it gets narrow."""
    if not rows:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    for index in range(len(rows[0])):
        grid.add_column(no_wrap=index not in wrap)
    for row in rows:
        grid.add_row(*row)
    console.print(Padding(grid, (0, 0, 0, len(INDENT))), width=width)


# ---------------------------------------------------------------- a section's table


class Layout(NamedTuple):
    """Where the columns of a section stand: widths in characters, and what parts them."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    gap: int

    def start(self, index: int) -> int:
        """The first character of a column."""
        return len(INDENT) + sum(self.widths[:index]) + self.gap * index

    @property
    def end(self) -> int:
        """The first character after the last column."""
        return self.start(len(self.columns)) - self.gap


def _section(console: Console, section: Section) -> None:
    cells = _aligned([line.cells for line in section.lines])
    lines = [replace(line, cells=padded) for line, padded in zip(section.lines, cells, strict=True)]
    layout = _layout(section.columns, lines)
    console.print(Text(section.title, style="bold"))
    for text in (*_headings(layout), _rule(layout)):
        console.print(text, style="dim")
    for line in lines:
        if line.crosses:
            console.print(_rule(layout, " several nodes "), style="dim")
        for text in _drawn(line, layout):
            console.print(text, no_wrap=True, crop=False)
    if section.details:
        console.print()
        _pairs(console, [(detail.label, Columns(detail.values, padding=(0, 3))) for detail in section.details])


def _aligned(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Pad the cells so that the ± of a column stand below each other; rows may end early."""
    columns = [_align(cells) for cells in zip_longest(*rows, fillvalue="")]
    return [tuple(column[index] for column in columns[: len(row)]) for index, row in enumerate(rows)]


def _align(cells: Sequence[str]) -> list[str]:
    parts = [cell.partition(" ± ") for cell in cells]
    means = max(len(mean) for mean, _, _ in parts)
    halves = max(len(half) for _, _, half in parts)
    if not halves:
        return list(cells)
    return [f"{mean:>{means}}{sign or '   '}{half:>{halves}}" for mean, sign, half in parts]


def _layout(columns: Sequence[Column], lines: Sequence[Line]) -> Layout:
    widths = [max(map(len, column.heading)) for column in columns]
    for line in lines:
        for index, cell in enumerate(line.cells):
            widths[index] = max(widths[index], len(cell))
    wide = Layout(tuple(columns), tuple(widths), gap=2)
    return wide if wide.end <= WIDTH else wide._replace(gap=1)


def _headings(layout: Layout) -> Iterable[Text]:
    first = next(index for index, column in enumerate(layout.columns) if column.is_loss)
    start = layout.start(first)
    yield Text(" " * start + " loss by cause, % ".center(layout.end - start, "─"))
    for part in (0, 1):
        cells = [
            column.heading[part].rjust(width) for column, width in zip(layout.columns, layout.widths, strict=True)
        ]
        yield Text(INDENT + (" " * layout.gap).join(cells))


def _rule(layout: Layout, label: str = "") -> Text:
    width = layout.end - len(INDENT)
    return Text(INDENT + f"{label}──".rjust(width, "─"))


def _drawn(line: Line, layout: Layout) -> Iterable[Text]:
    """The line with its marks; flags, which must not be overlooked, stand below it."""
    text, marks = Text(INDENT), mark_text(line.marks)
    for index, cell in enumerate(line.cells):
        text.append(cell.rjust(layout.widths[index]), style=_style(line, layout.columns[index]))
        text.append(" " * layout.gap)
    stamps = " ".join(word for word in (line.says, *line.flags, marks) if word)
    if line.says:
        yield text.append(stamps, style="red" if line.says.startswith("failed") else "yellow")
    elif line.flags or layout.end + len(marks) + 2 > WIDTH:
        yield text
        yield Text(" " * layout.start(1) + f"└ {stamps}", style="yellow")
    else:
        yield text.append(marks, style="yellow")


def _style(line: Line, column: Column) -> str:
    if column.name != "efficiency" or line.efficiency is None:
        return ""
    return "green" if line.efficiency >= 0.9 else "yellow" if line.efficiency >= 0.7 else "red"
