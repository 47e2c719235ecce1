"""The report as GitHub markdown: the same content as the terminal's table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.records import Header, PointRecord
from scaling.report.document import Document, Line, Section, document


def render(header: Header, records: Sequence[PointRecord], joined: Sequence[str] = ()) -> str:
    """Return the report of a run as markdown; `joined` says how runs in one table differ."""
    return "\n".join(_lines(document(header, records, joined))) + "\n"


def _lines(doc: Document) -> Iterable[str]:
    yield "## Scaling of data-parallel training"
    yield ""
    yield from (f"- {label}: {_safe(text)}" for label, text in doc.facts)
    yield from (f"\n> {_safe(notice)}" for notice in doc.notices)
    for section in doc.sections:
        yield from _section(section)
    if doc.baselines:
        yield "\n### Baselines\n"
        yield from _table(("what", "batch", "images/s", "efficiency"), doc.baselines, left=1)
    if doc.comparisons:
        yield "\n### Best against the others, paired by round, with 99 % intervals\n"
        yield from _table(("N", "best", "against", "difference"), doc.comparisons, left=4)
    if doc.how_to_read:
        yield "\n### How to read\n"
        yield from (f"- {_safe(text)}" for text in doc.how_to_read)
    if doc.footnotes:
        yield ""
        yield from (f"[^{number}]: {_safe(text)}" for number, text in enumerate(doc.footnotes, 1))


def _section(section: Section) -> Iterable[str]:
    yield f"\n### {_safe(section.title)}\n"
    names = [f"{column.name}, %" if column.is_loss else column.name for column in section.columns]
    rows = [_row(line, len(names)) for line in section.lines]
    yield from _table((*names, "notes"), rows, left=0)
    if section.details:
        yield ""
        yield from (f"- {detail.label}: {', '.join(detail.values)}" for detail in section.details)


def _row(line: Line, width: int) -> tuple[str, ...]:
    """All cells and the notes; GitHub cannot join cells, so what is said stands in the first free one."""
    stands = [line.says] if line.says else []
    cells = [*line.cells, *stands]
    cells += [""] * (width - len(cells))
    marks = "".join(f"[^{number}]" for number in line.marks)
    return (*cells, " ".join(word for word in (*line.flags, marks) if word))


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], *, left: int) -> Iterable[str]:
    """A table whose first `left` columns and last column are left-justified."""
    sides = ["---" if index < left or index == len(names) - 1 else "---:" for index in range(len(names))]
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join(sides)} |"
    for row in rows:
        yield f"| {' | '.join(_safe(cell) for cell in row)} |"


def _safe(text: str) -> str:
    """Keep a text from being read as markup or as the end of a cell."""
    for sign in "\\|<*_`":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
