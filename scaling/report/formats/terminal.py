"""The report for a terminal or a text file, in fixed width."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby, pairwise, zip_longest
from textwrap import wrap
from typing import Literal, NamedTuple

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

from scaling.analysis.table.catalogue import EFFICIENCY, mark_named
from scaling.analysis.table.rows import Column
from scaling.records.run import Header, PointRecord
from scaling.report.material import Material
from scaling.report.parts import Document, Line, Parts, Quantity, Section, mark_text, stamped
from scaling.text import printable

# ---------------------------------------------------------------- layout


WIDTH = 100
INDENT = "  "
# Least characters for the names of rows.
LEAST_NAME = 12


class Layout(NamedTuple):
    """Positions of the columns of a table: widths in characters, and the gap before each; `room`: of a line."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    gaps: tuple[int, ...]
    room: int = WIDTH

    def start(self, index: int) -> int:
        return len(INDENT) + sum(self.widths[:index]) + sum(self.gaps[: index + 1])

    @property
    def end(self) -> int:
        return len(INDENT) + sum(self.widths) + sum(self.gaps)

    @property
    def stamps(self) -> int:
        """The position of flags below a line."""
        return len(INDENT) + 4 if self.is_named else self.start(1)

    @property
    def is_named(self) -> bool:
        return self.columns[0].is_text

    def placed(self, text: str, index: int) -> str:
        width = self.widths[index]
        return " " * self.gaps[index] + (text.ljust(width) if self.columns[index].is_text else text.rjust(width))

    def rule(self, label: str = "") -> str:
        """Return a rule with a label, at the left in tables with names, otherwise at the right."""
        width = self.end - len(INDENT)
        return INDENT + (f"──{label}".ljust(width, "─") if self.is_named else f"{label}──".rjust(width, "─"))


# ---------------------------------------------------------------- cells

# Begin of an interval that is not skewed.
HALF = "± "


def line_cells(lines: Sequence[Line], columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Return the cells of each line up to the first that is missing."""
    return aligned([line.parts(columns) for line in lines], [column.is_text for column in columns])


def aligned(rows: Sequence[Sequence[Parts]], is_text: Sequence[bool] = ()) -> list[tuple[str, ...]]:
    """Pad the cells so that means and ± of a column are aligned; rows may end early."""
    padded = [
        [stamped(*cell) for cell in column] if text else _aligned(column)
        for column, text in zip_longest(zip_longest(*rows, fillvalue=("", "")), is_text)
        if column
    ]
    return [tuple(column[index] for column in padded[: len(row)]) for index, row in enumerate(rows)]


def _aligned(column: Sequence[Parts]) -> list[str]:
    """Words in a column of numbers take the room of mean and interval."""
    is_text = [not ends and mean[:1].isalpha() for mean, ends in column]
    means = max((len(mean) for (mean, _), text in zip(column, is_text, strict=True) if not text), default=0)
    halves = max((len(ends) - len(HALF) for _, ends in column if ends.startswith(HALF)), default=0)
    padded = [f"{HALF}{ends[len(HALF) :]:>{halves}}" if ends.startswith(HALF) else ends for _, ends in column]
    if not (room := max(map(len, padded))):
        return [mean for mean, _ in column]
    cells = zip(column, padded, is_text, strict=True)
    return [mean if text else f"{mean:>{means}} {ends:<{room}}" for (mean, _), ends, text in cells]


# ---------------------------------------------------------------- columns


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = WIDTH) -> Layout:
    """Return the widest layout that fits; if none does, the longest names get lines of their own."""
    layouts = list(_layouts(columns, rows, width))
    if found := next((layout for layout in layouts if layout.end <= width), None):
        return found
    if not columns[0].is_text:
        return layouts[-1]
    for layout in layouts[1:]:
        room = width - layout.end + layout.widths[0]
        if room >= LEAST_NAME:
            break
    short = [len(row[0]) for row in rows if len(row[0]) <= room]
    kept = max(short, default=max(0, min(room, LEAST_NAME)))
    return layout._replace(widths=(kept, *layout.widths[1:]))


def fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Layout | None:
    """Return the widest layout that fits without cutting anything; None if none does."""
    layouts = list(_layouts(columns, rows, width))[:-1]
    return next((layout for layout in layouts if layout.end <= width), None)


def _layouts(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Iterator[Layout]:
    """Yield the layouts with gaps of two spaces; of one inside groups; of one everywhere."""
    headings = [_column_heading(column) for column in columns]
    texts = zip_longest(*zip(*headings, strict=True), *rows, fillvalue="")
    widths = [max(map(len, column)) for column in texts]
    for heading, first, last in _groups(columns):
        inside = sum(widths[first : last + 1]) + last - first
        widths[first] += max(0, len(heading) - inside)
    grouped = [bool(column.group) and column.group == before.group for before, column in pairwise(columns)]
    for within, between in ((2, 2), (1, 2), (1, 1)):
        gaps = (0, *(within if is_grouped else between for is_grouped in grouped))
        yield Layout(tuple(columns), tuple(widths), gaps, width)


# ---------------------------------------------------------------- headings


def headings(layout: Layout) -> Iterator[str]:
    """Return the names of groups, then the columns' headings in one or two lines."""
    groups = ""
    for heading, first, last in _groups(layout.columns):
        width = layout.start(last) + layout.widths[last] - layout.start(first)
        groups = groups.ljust(layout.start(first)) + heading.center(width, "─")
    if groups:
        yield groups
    for part in (0, 1):
        texts = (_column_heading(column)[part] for column in layout.columns)
        own = "".join(layout.placed(text, index) for index, text in enumerate(texts))
        if own.strip():
            yield INDENT + own


def _groups(columns: Sequence[Column]) -> Iterator[tuple[str, int, int]]:
    """Yield the heading of adjacent columns, with the first and the last of them."""
    for name, members in groupby(enumerate(columns), key=lambda member: member[1].group):
        if name:
            inside = list(members)
            units = {column.unit for _, column in inside if column.unit}
            yield f" {', '.join((name, *sorted(units)))} ", inside[0][0], inside[-1][0]


def _column_heading(column: Column) -> tuple[str, str]:
    return column.short or ("", column.title if column.group else column.heading)


# ---------------------------------------------------------------- bars of efficiency


BAR = Column(key="efficiency_bar", title="", is_text=True)
# The widest that fits is used.
BAR_WIDTHS = (10, 8, 6, 5)
NARROW = 80
# Blocks of one to eight eighths (Unicode, Block Elements).
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(percent: float, width: int) -> str:
    """Draw `percent` of `width` characters, to an eighth of one, from 0 to 100 %."""
    eighths = round(min(max(percent, 0.0), 100.0) / 100 * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def with_bars(
    lines: Sequence[Line], columns: Sequence[Column], cells: Sequence[tuple[str, ...]], width: int = WIDTH
) -> tuple[Layout, list[tuple[str, ...]]]:
    """Add bars if they leave room for the marks of lines. A table that fits 80 columns still fits them with
    bars."""
    layout = fitted(columns, cells, width)
    beside = 2 + max((len(stamps_of(line)) for line in lines if not _complains(line)), default=0)
    limit = NARROW if layout.end + beside <= NARROW < width else width
    found = [line.cells.get(EFFICIENCY.key) for line in lines]
    percents = [cell.value if isinstance(cell, Quantity) else None for cell in found]
    if EFFICIENCY in columns and any(percent is not None for percent in percents):
        at = list(columns).index(EFFICIENCY) + 1
        for length in BAR_WIDTHS:
            bars = (bar(percent or 0.0, length).ljust(length) for percent in percents)
            rows = zip(cells, bars, strict=True)
            barred = [row if len(row) < at else (*row[:at], drawn, *row[at:]) for row, drawn in rows]
            wide = fitting([*columns[:at], BAR, *columns[at:]], barred, limit - beside)
            if wide is not None:
                return wide._replace(room=width), barred
    return layout, list(cells)


def _complains(line: Line) -> bool:
    return any(mark_named(name).is_complaint for name in line.stamps)


def stamps_of(line: Line) -> str:
    return stamped(line.remarks, mark_text(line.marks))


# ---------------------------------------------------------------- terminal

# Width of paragraphs and lists.
TEXT_WIDTH = 80


def render(header: Header, records: Sequence[PointRecord], *, color: bool) -> str:
    """Return the report of a run, with the line for programs at its end. It depends on the arguments only."""
    return whole(Material(header, records).doc, color=color)


def whole(doc: Document, *, color: bool) -> str:
    """Return the text of a document, with its line for programs."""
    return f"{draw(doc, color=color)}\n{doc.last_line}\n"


def draw(doc: Document, *, color: bool) -> str:
    """Return the text of a document without its last line."""
    console = _console(color=color)
    _heading(console, doc.title)
    _pairs(console, doc.facts)
    for notice in doc.notices:
        console.print()
        console.print(Text(f"! {notice}", style="yellow"), width=TEXT_WIDTH)
    for section in doc.tables:
        if section.is_baselines:
            _baselines(console, section)
            continue
        _printed(console, section_lines(section))
        if section.details:
            console.print()
            _pairs(console, [(label, Columns(list(values), padding=(0, 3))) for label, values in section.details])
    if doc.footnotes:
        _heading(console, "Notes")
        _pairs(console, [(mark_text([number]), text) for number, text in enumerate(doc.footnotes, 1)])
    if doc.how_to_read:
        _heading(console, "How to read")
        _pairs(console, doc.how_to_read)
    return _text(console)


def styled(lines: Iterable[Text], *, color: bool) -> str:
    """Return lines as text; none is cut or wrapped. Signs that are not printable become spaces."""
    return _text(_printed(_console(color=color), lines))


def _printed(console: Console, lines: Iterable[Text]) -> Console:
    """Print lines without cutting any: a missing number is worse than a long line."""
    for line in lines:
        line.plain = printable(line.plain)
        console.print(line, no_wrap=True, crop=False, overflow="ignore")
    return console


# Rich's own format loads a font from the network.
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>The last screen of a run</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def drawn(lines: Sequence[Text], *, title: str, theme: Literal["light", "dark"]) -> str:
    """Return lines as the SVG of a terminal of their width. It loads no font."""
    console = _printed(_console(color=True, width=max(line.cell_len for line in lines), records=True), lines)
    looks = DEFAULT_TERMINAL_THEME if theme == "light" else SVG_EXPORT_THEME
    return console.export_svg(title=printable(title), theme=looks, code_format=_SVG, unique_id="screen")


def _console(*, color: bool, width: int = WIDTH, records: bool = False) -> Console:
    # The environment is empty: COLUMNS, TERM and NO_COLOR must not change the text.
    return Console(
        file=StringIO(),
        width=width,
        record=records,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )


def _text(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _pairs(console: Console, pairs: Iterable[tuple[str, str | Columns]]) -> None:
    rows = [(Text(label, style="dim"), Text(text) if isinstance(text, str) else text) for label, text in pairs]
    _grid(console, rows, wrap=(1,), width=TEXT_WIDTH)


def _grid(
    console: Console, rows: Sequence[Sequence[RenderableType]], *, wrap: Collection[int], width: int
) -> None:
    """Print indented columns without lines; only those of `wrap` are folded."""
    if not rows:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    for index in range(len(rows[0])):
        grid.add_column(no_wrap=index not in wrap, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console.print(Padding(grid, (0, 0, 0, len(INDENT))), width=width)


# ---------------------------------------------------------------- baselines


def _baselines(console: Console, section: Section) -> None:
    """Print lines without headings; what is said of a line follows its last cell."""
    rows: list[Sequence[Parts]] = []
    for line in section.lines:
        *cells, (mean, half) = line.parts(section.columns)
        stamps = stamped(*line.flags, mark_text(line.marks))
        rows.append((*cells, (mean, stamped(half, stamps)) if half else (stamped(mean, stamps), "")))
    _heading(console, section.title)
    _grid(console, aligned(rows), wrap=(0,), width=WIDTH)


# ---------------------------------------------------------------- a section's table


def section_lines(section: Section, width: int = WIDTH) -> Iterator[Text]:
    """Return the title and the table of a section, without its details."""
    own = line_cells(section.lines, section.columns)
    layout, cells = with_bars(section.lines, section.columns, own, width)
    yield Text()
    yield Text(section.title, "bold")
    yield from table(layout, section.lines, cells)


def table(layout: Layout, lines: Sequence[Line], cells: Sequence[Sequence[str]]) -> Iterator[Text]:
    """Return the lines of a table: headings, rules, cells and marks."""
    yield from (Text(text, "dim") for text in headings(layout))
    if not lines[0].above:
        yield Text(layout.rule(), "dim")
    for line, texts in zip(lines, cells, strict=True):
        if line.above:
            yield Text(layout.rule(f" {line.above} "), "dim")
        yield from _drawn(line, texts, layout)


def _drawn(line: Line, cells: Sequence[str], layout: Layout) -> Iterable[Text]:
    """Draw a line with its marks; marks that are complaints follow below it."""
    first, *rest = cells
    if len(first) > layout.widths[0]:
        yield from (Text(INDENT + name) for name in wrap(first, layout.room - len(INDENT), break_on_hyphens=False))
        first = ""
    text = Text(INDENT)
    for index, cell in enumerate((first, *rest)):
        text.append(layout.placed(cell, index), style=_style(line, layout.columns[index].key))
    text.append("  ")
    stamps = stamps_of(line)
    together = stamped(line.says, stamps)
    room = layout.room - len(text) if line.says else layout.room - layout.end - 2
    beside = len(together) <= room and (bool(line.says) or not _complains(line))
    text.append(together if beside else line.says, style="red" if "FAILED" in line.flags else "yellow")
    yield text
    if not beside:
        for index, part in enumerate(wrap(stamps, layout.room - layout.stamps - 2)):
            yield Text(" " * layout.stamps + ("  " if index else "└ ") + part, style="yellow")


def _style(line: Line, key: str) -> str:
    cell = line.cells.get(EFFICIENCY.key if key == BAR.key else key)
    if not isinstance(cell, Quantity):
        return ""
    if key not in (EFFICIENCY.key, BAR.key):
        return "dim" if cell.is_noise else ""
    return "green" if cell.value >= 90 else "yellow" if cell.value >= 70 else "red"
