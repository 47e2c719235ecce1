"""The report as GitHub markdown: the same content as the terminal's table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.records.run import Header, PointRecord
from scaling.report.document import document
from scaling.report.parts import Document, Line, Section


def render(header: Header, records: Sequence[PointRecord], joined: Sequence[str] = ()) -> str:
    """Return the report of a run as markdown; `joined` says how runs in one table differ."""
    return "\n".join(_lines(document(header, records, joined))) + "\n"


def _lines(doc: Document) -> Iterable[str]:
    yield "## Scaling of data-parallel training"
    yield ""
    yield from (f"- {label}: {_safe(text)}" for label, text in doc.facts)
    yield from (f"\n> {_safe(notice)}" for notice in doc.notices)
    for section in doc.comparisons:
        yield from _section(section)
    if doc.comparisons:
        yield from _baselines(doc)
    for section in doc.sections:
        yield from _section(section)
    if not doc.comparisons:
        yield from _baselines(doc)
    if doc.how_to_read:
        yield "\n### How to read\n"
        yield from (f"- {_safe(text)}" for text in doc.how_to_read)
    if doc.footnotes:
        yield ""
        yield from (f"[^{number}]: {_safe(text)}" for number, text in enumerate(doc.footnotes, 1))


def _baselines(doc: Document) -> Iterable[str]:
    if doc.baselines:
        yield "\n### Baselines\n"
        yield from _table(("what", "batch", "images/s", "efficiency"), _TEXT_FIRST, map(_escaped, doc.baselines))


def _section(section: Section) -> Iterable[str]:
    yield f"\n### {_safe(section.title)}\n"
    names = [f"{column.name}, %" if column.is_loss else column.name for column in section.columns]
    sides = [_LEFT if column.is_text else _RIGHT for column in section.columns]
    yield from _table((*names, "notes"), (*sides, _LEFT), _rows(section))
    if section.details:
        yield ""
        yield from (f"- {detail.label}: {_safe(', '.join(detail.values))}" for detail in section.details)


def _rows(section: Section) -> Iterable[Sequence[str]]:
    """The lines, and in a comparison what parts them: a curve tells its nodes in a column."""
    width = len(section.columns) + 1
    for line in section.lines:
        if line.above and section.columns[0].is_text:
            yield (f"**{_safe(line.above)}**", *("",) * (width - 1))
        yield _escaped(_row(line, width - 1))


def _row(line: Line, width: int) -> tuple[str, ...]:
    """All cells and the notes; GitHub cannot join cells, so what is said stands in the first free one."""
    stands = [line.says] if line.says else []
    cells = [*line.cells, *stands]
    cells += [""] * (width - len(cells))
    marks = "".join(f"[^{number}]" for number in line.marks)
    return (*cells, " ".join(word for word in (*line.flags, line.remark, marks) if word))


def _table(names: Sequence[str], sides: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """A table of escaped cells."""
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join(sides)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _escaped(row: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(_safe, row))


def _safe(text: str) -> str:
    """Keep a text from being read as markup or as the end of a cell."""
    for sign in "\\|<*_`":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


_LEFT, _RIGHT = "---", "---:"
_TEXT_FIRST = (_LEFT, _RIGHT, _RIGHT, _LEFT)
