"""The history of a folder as a page: a series for each exchange and world size, and a line for every run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scaling.history import formats
from scaling.history.document import COLUMNS, TITLE, document
from scaling.history.figures import figures
from scaling.history.lines import RunLine, Unreadable
from scaling.report import words
from scaling.report.formats.html import shell
from scaling.report.formats.html.tables import Shown, shown
from scaling.report.parts import Column, Line
from scaling.text import counted

TEMPLATE = Path(__file__).with_name("page.html.j2")
# Of the table; a browser is slow with more.
MOST_LINES = 2000
NUMBER = Column(key="number", title="run")
# The number leads from a figure to its line.
NAME = Column(key="run", title="name", is_text=True)
MARKS = Column(key="marks", title="marks", is_text=True)


def render(folder: str, lines: Sequence[RunLine], unreadable: Sequence[Unreadable]) -> str:
    """Return the page of the runs in `folder`, the oldest first; the same runs give the same bytes."""
    doc = document(folder, lines, unreadable)
    found, left_out = figures(lines)
    notices = [*doc.notices, *filter(None, [left_out])]
    if len(lines) > MOST_LINES:
        notices.append(f"the table has the last {MOST_LINES} of {len(lines)} runs; rows.csv has all")
    drawn = list(shell.drawn(found))
    values = {
        "title": f"{TITLE}: {folder}",
        "heading": TITLE,
        "subject": f"{counted(len(lines), 'run')} in {folder}",
        "notices": notices,
        "drawn": drawn,
        "columns": _columns(),
        "rows": list(_rows(doc.sections[0].lines))[-MOST_LINES:][::-1] if lines else [],
        "facts": shell.entries(doc.facts),
        "reading": shell.entries(doc.how_to_read),
        "csv": shell.data_link(formats.csv(lines)),
        "parts": list(_parts(has_figures=bool(drawn))),
    }
    return shell.render(TEMPLATE.read_text(encoding="utf-8"), values)


def _columns() -> tuple[Column, ...]:
    return (NUMBER, *(NAME if column.key == "run" else column for column in COLUMNS), MARKS)


def _rows(lines: Sequence[Line]) -> Iterator[tuple[Shown, ...]]:
    """The oldest first."""
    for number, line in enumerate(lines, start=1):
        said = " ".join(filter(None, (words.stamped(*line.flags), words.text(line.remark))))
        marks = Shown(text=said, is_text=True, is_mark=True)
        yield Shown(text=str(number), value=str(number)), *(_cell(line, column) for column in COLUMNS), marks


def _cell(line: Line, column: Column) -> Shown:
    """Texts stand left, and are sorted as texts."""
    cell = line.cells.get(column.key)
    return Shown(text=str(cell), is_text=True) if column.is_text else shown(cell, column)


def _parts(*, has_figures: bool) -> Iterator[tuple[str, str]]:
    if has_figures:
        yield "figures", "Figures"
    yield from (("tables", "Runs"), ("groups", "Groups"), ("data", "Data"), ("reading", "How to read"))
