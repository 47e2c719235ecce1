"""The report for a terminal or a text file: fixed width, the same text wherever it is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from io import StringIO
from textwrap import wrap

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scaling.analysis.table.catalogue import EFFICIENCY, mark_named
from scaling.analysis.table.cost import Pricing
from scaling.analysis.table.entries import Column
from scaling.records.run import Header, PointRecord
from scaling.report import words
from scaling.report.document import document
from scaling.report.formats import layout as layouts
from scaling.report.formats.layout import INDENT, WIDTH, Layout
from scaling.report.parts import Baseline, Baselines, Detail, Document, Line, Quantity, Section

# ---------------------------------------------------------------- bars
#
# Bars of eighth blocks in a terminal's table: how much of 100 % an efficiency is, at a glance.


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
    beside = 2 + max((len(stamps_of(line)) for line in lines if not _complains(line)), default=0)
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


def _complains(line: Line) -> bool:
    """Whether a mark must not be overlooked: it stands below the row, not beside it."""
    return any(mark_named(name).is_complaint for name in line.stamps)


def stamps_of(line: Line) -> str:
    """Flags, remark and marks of a line."""
    return words.stamped(*line.stamps, words.text(line.remark), words.mark_text(line.marks))


# ---------------------------------------------------------------- terminal

# Paragraphs and lists keep to the narrowest terminal in use.
TEXT_WIDTH = 80


def render(
    header: Header,
    records: Sequence[PointRecord],
    *,
    color: bool,
    joined: Sequence[str] = (),
    pricing: Pricing | None = None,
) -> str:
    """Return the report of a run, and the line for programs after it; it depends on nothing but the arguments.

    `joined` are the lines that say how runs in one table differ.
    """
    return whole(document(header, records, joined, pricing), color=color)


def whole(doc: Document, *, color: bool) -> str:
    """Return the text of a report, and its line for programs."""
    return f"{draw(doc, color=color)}\n{doc.last_line}\n"


def draw(doc: Document, *, color: bool) -> str:
    """Return the text of a report without its last line."""
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
    _print(console, doc)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _print(console: Console, doc: Document) -> None:
    _heading(console, doc.title)
    _pairs(console, [(fact.label, words.text(fact.phrase)) for fact in doc.facts])
    for notice in doc.notices:
        console.print()
        console.print(Text(f"! {notice}", style="yellow"), width=TEXT_WIDTH)
    for table in doc.tables:
        if isinstance(table, Section):
            _section(console, table)
        else:
            _baselines(console, table)
    if doc.footnotes:
        _heading(console, "Notes")
        _pairs(console, [(words.mark_text([number]), text) for number, text in enumerate(doc.footnotes, 1)])
    if doc.how_to_read:
        _heading(console, "How to read")
        _pairs(console, [(entry.label, words.text(entry.phrase)) for entry in doc.how_to_read])


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
        grid.add_column(no_wrap=index not in wrap, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console.print(Padding(grid, (0, 0, 0, len(INDENT))), width=width)


# ---------------------------------------------------------------- baselines


def _baselines(console: Console, table: Baselines) -> None:
    _heading(console, f"Baselines, {table.rate_unit}")
    cells = layouts.aligned([_baseline(line) for line in table.lines])
    _grid(console, cells, wrap=(0,), width=WIDTH)


def _baseline(line: Baseline) -> Sequence[words.Parts]:
    """Its cells; flags and marks stand behind the last of them."""
    *cells, (mean, half) = words.baseline(line)
    stamps = words.stamped(*line.flags, words.mark_text(line.marks))
    return (*cells, (mean, words.stamped(half, stamps)) if half else (words.stamped(mean, stamps), half))


# ---------------------------------------------------------------- a section's table


def _section(console: Console, section: Section) -> None:
    layout, cells = with_bars(section.lines, section.columns, layouts.cells(section.lines, section.columns))
    _heading(console, section.title)
    for text in layouts.headings(layout):
        _whole(console, text, style="dim")
    if not section.lines[0].above:
        _whole(console, layout.rule(), style="dim")
    for line, texts in zip(section.lines, cells, strict=True):
        if line.above:
            _whole(console, layout.rule(f" {line.above} "), style="dim")
        for drawn in _drawn(line, texts, layout):
            _whole(console, drawn)
    if section.details:
        console.print()
        _pairs(console, [(detail.label, _values(detail)) for detail in section.details])


def _whole(console: Console, line: str | Text, style: str | None = None) -> None:
    """A line of a table that no width cuts: a number that is missing is worse than a line that is too long."""
    console.print(line, style=style, no_wrap=True, crop=False, overflow="ignore")


def _values(detail: Detail) -> Columns:
    return Columns([words.value(value) for value in detail.values], padding=(0, 3))


def _drawn(line: Line, cells: Sequence[str], layout: Layout) -> Iterable[Text]:
    """The line with its marks; flags, which must not be overlooked, stand below it (ASYNC is no warning)."""
    first, *rest = cells
    if len(first) > layout.widths[0]:
        yield from (Text(INDENT + name) for name in wrap(first, WIDTH - len(INDENT), break_on_hyphens=False))
        first = ""
    text = Text(INDENT)
    for index, cell in enumerate((first, *rest)):
        text.append(layout.placed(cell, index), style=_style(line, layout.columns[index].key))
    text.append("  ")
    stamps = stamps_of(line)
    together = words.stamped(line.says, stamps)
    room = WIDTH - len(text) if line.says else WIDTH - layout.end - 2
    beside = len(together) <= room and (bool(line.says) or not _complains(line))
    text.append(together if beside else line.says, style="red" if "FAILED" in line.flags else "yellow")
    yield text
    if not beside:
        yield from _below(stamps, layout)


def _below(stamps: str, layout: Layout) -> Iterable[Text]:
    start = layout.stamps
    for index, text in enumerate(wrap(stamps, WIDTH - start - 2)):
        yield Text(" " * start + ("└ " if index == 0 else "  ") + text, style="yellow")


def _style(line: Line, key: str) -> str:
    cell = line.cells.get(EFFICIENCY.key if key == BAR.key else key)
    if not isinstance(cell, Quantity):
        return ""
    if key not in (EFFICIENCY.key, BAR.key):
        return "dim" if cell.is_noise else ""
    efficiency = cell
    return "green" if efficiency.value >= 90 else "yellow" if efficiency.value >= 70 else "red"
