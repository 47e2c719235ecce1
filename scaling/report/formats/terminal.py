"""The report for a terminal or a text file: fixed width, the same text wherever it is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from io import StringIO
from itertools import zip_longest
from textwrap import wrap
from typing import NamedTuple

from msgspec.structs import replace
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scaling.records.run import Header, PointRecord
from scaling.report.document import document
from scaling.report.parts import Column, Document, Line, Section, mark_text

WIDTH = 100
# Paragraphs and lists keep to the narrowest terminal in use.
TEXT_WIDTH = 80
INDENT = "  "
# Room for the names of contenders that is worth keeping.
LEAST_NAME = 12
# Flags that are no complaint stand beside the row and not below it.
BESIDE = {"ASYNC", "EMULATED", "VERIFIED"}


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
    for section in doc.comparisons:
        _section(console, section)
    if doc.comparisons:
        _baselines(console, doc)
    for section in doc.sections:
        _section(console, section)
    if not doc.comparisons:
        _baselines(console, doc)
    if doc.footnotes:
        _heading(console, "Notes")
        _pairs(console, [(mark_text([number]), text) for number, text in enumerate(doc.footnotes, 1)])
    if doc.how_to_read:
        _heading(console, "How to read")
        _pairs(console, [(text.partition(": ")[0], text.partition(": ")[2]) for text in doc.how_to_read])


def _baselines(console: Console, doc: Document) -> None:
    if doc.baselines:
        _heading(console, "Baselines, images/s")
        _grid(console, _aligned(doc.baselines), wrap=(0,), width=WIDTH)


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
        return len(INDENT) + 4 if self.columns[0].is_text else self.start(1)


def _section(console: Console, section: Section) -> None:
    columns = section.columns
    cells = _aligned([line.cells for line in section.lines], columns)
    lines = [replace(line, cells=padded) for line, padded in zip(section.lines, cells, strict=True)]
    layout = _layout(columns, lines)
    console.print()
    console.print(Text(section.title, style="bold"))
    rules = [line.above for line in lines]
    for text in (*_headings(layout), *(() if rules[0] else (_rule(layout),))):
        console.print(text, style="dim")
    for line in lines:
        if line.above:
            console.print(_rule(layout, f" {line.above} "), style="dim")
        for text in _drawn(line, layout):
            console.print(text, no_wrap=True, crop=False)
    if section.details:
        console.print()
        _pairs(console, [(detail.label, Columns(detail.values, padding=(0, 3))) for detail in section.details])


def _aligned(rows: Sequence[Sequence[str]], columns: Sequence[Column] = ()) -> list[tuple[str, ...]]:
    """Pad the cells so that the ± of a column of numbers stand below each other; rows may end early."""
    texts = {index for index, column in enumerate(columns) if column.is_text}
    found = enumerate(zip_longest(*rows, fillvalue=""))
    padded = [cells if index in texts else _align(cells) for index, cells in found]
    return [tuple(column[index] for column in padded[: len(row)]) for index, row in enumerate(rows)]


def _align(cells: Sequence[str]) -> list[str]:
    parts = [cell.partition(" ± ") for cell in cells]
    means = max(len(mean) for mean, _, _ in parts)
    halves = max(len(half) for _, _, half in parts)
    if not halves:
        return list(cells)
    return [f"{mean:>{means}}{sign or '   '}{half:>{halves}}" for mean, sign, half in parts]


def _layout(columns: Sequence[Column], lines: Sequence[Line]) -> Layout:
    """The widest that fits; where none does, the longest names give up their place in the first column."""
    widths = [max(map(len, column.heading)) for column in columns]
    for line in lines:
        for index, cell in enumerate(line.cells):
            widths[index] = max(widths[index], len(cell))
    layouts = [Layout(tuple(columns), tuple(widths), gaps) for gaps in _gaps(columns)]
    fitting = next((layout for layout in layouts if layout.end <= WIDTH), None)
    return fitting or (_without_names(layouts, lines) if columns[0].is_text else layouts[-1])


def _without_names(layouts: Sequence[Layout], lines: Sequence[Line]) -> Layout:
    """Names that are too long stand on lines of their own."""
    for layout in layouts[1:]:
        room = WIDTH - layout.end + layout.widths[0]
        short = [len(line.cells[0]) for line in lines if len(line.cells[0]) <= room]
        if room >= LEAST_NAME:
            break
    return layout._replace(widths=(max(short, default=LEAST_NAME), *layout.widths[1:]))


def _gaps(columns: Sequence[Column]) -> Iterable[tuple[int, ...]]:
    """Two spaces; one between the causes; one everywhere."""
    first = next(index for index, column in enumerate(columns) if column.is_loss)
    count = len(columns)
    yield (0, *(2,) * (count - 1))
    yield tuple(0 if index == 0 else 1 if index > first else 2 for index in range(count))
    yield (0, *(1,) * (count - 1))


def _headings(layout: Layout) -> Iterable[Text]:
    first = next(index for index, column in enumerate(layout.columns) if column.is_loss)
    start = layout.start(first)
    yield Text(" " * start + " loss by cause, % ".center(layout.end - start, "─"))
    for part in (0, 1):
        yield Text(_joined([column.heading[part] for column in layout.columns], layout))


def _joined(cells: Sequence[str], layout: Layout) -> str:
    placed = (_placed(cell, index, layout) for index, cell in enumerate(cells))
    return INDENT + "".join(placed)


def _placed(cell: str, index: int, layout: Layout) -> str:
    """A cell with the gap before it."""
    width = layout.widths[index]
    return " " * layout.gaps[index] + (cell.ljust(width) if layout.columns[index].is_text else cell.rjust(width))


def _rule(layout: Layout, label: str = "") -> Text:
    """What the next lines are: beside their names, or where a curve goes on to several nodes at the end."""
    width = layout.end - len(INDENT)
    is_named = layout.columns[0].is_text
    return Text(INDENT + (f"──{label}".ljust(width, "─") if is_named else f"{label}──".rjust(width, "─")))


def _drawn(line: Line, layout: Layout) -> Iterable[Text]:
    """The line with its marks; flags, which must not be overlooked, stand below it (ASYNC is no warning)."""
    first, *rest = line.cells
    if len(first) > layout.widths[0]:
        yield from (Text(INDENT + name) for name in wrap(first, WIDTH - len(INDENT), break_on_hyphens=False))
        first = ""
    text, marks = Text(INDENT), mark_text(line.marks)
    for index, cell in enumerate((first, *rest)):
        text.append(_placed(cell, index, layout), style=_style(line, layout.columns[index]))
    text.append("  ")
    stamps = " ".join(word for word in (*line.flags, line.remark, marks) if word)
    together = f"{line.says} {stamps}".strip()
    room = WIDTH - len(text) if line.says else WIDTH - layout.end - 2
    beside = len(together) <= room and (bool(line.says) or set(line.flags) <= BESIDE)
    text.append(together if beside else line.says, style="red" if line.says.startswith("failed") else "yellow")
    yield text
    if not beside:
        yield from _below(stamps, layout)


def _below(stamps: str, layout: Layout) -> Iterable[Text]:
    start = layout.stamps
    for index, text in enumerate(wrap(stamps, WIDTH - start - 2)):
        yield Text(" " * start + ("└ " if index == 0 else "  ") + text, style="yellow")


def _style(line: Line, column: Column) -> str:
    if column.name != "efficiency" or line.efficiency is None:
        return ""
    return "green" if line.efficiency >= 0.9 else "yellow" if line.efficiency >= 0.7 else "red"
