"""The report as GitHub markdown, with the content of the terminal's report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from scaling.analysis.table.cost import Pricing
from scaling.records.run import Header, PointRecord
from scaling.report import words
from scaling.report.document import document
from scaling.report.parts import Baselines, Document, Line, Section


def render(
    header: Header, records: Sequence[PointRecord], joined: Sequence[str] = (), pricing: Pricing | None = None
) -> str:
    return draw(document(header, records, joined, pricing))


def draw(doc: Document) -> str:
    return "\n".join(_lines(doc)) + "\n"


def _lines(doc: Document) -> Iterable[str]:
    yield f"## {_safe(doc.title)}"
    yield ""
    yield from (f"- {_safe(fact.label)}: {_safe(words.text(fact.phrase))}" for fact in doc.facts)
    yield from (f"\n> {_safe(notice)}" for notice in doc.notices)
    for table in doc.tables:
        yield from _section(table) if isinstance(table, Section) else _baselines(table)
    if doc.how_to_read:
        yield "\n### How to read\n"
        yield from (f"- {_safe(entry.label)}: {_safe(words.text(entry.phrase))}" for entry in doc.how_to_read)
    if doc.footnotes:
        yield ""
        yield from (f"[^{number}]: {_safe(text)}" for number, text in enumerate(doc.footnotes, 1))


def _baselines(table: Baselines) -> Iterable[str]:
    yield "\n### Baselines\n"
    names = ("what", "batch", table.rate_unit, "efficiency")
    yield from _table(names, (_LEFT, _RIGHT, _RIGHT, _LEFT), _baseline_rows(table))


def _baseline_rows(table: Baselines) -> Iterable[Sequence[str]]:
    for line in table.lines:
        *cells, last = (_safe(words.stamped(*cell)) for cell in words.baseline(line))
        yield (*cells, words.stamped(last, *map(_safe, line.flags), _marks(line.marks)))


def _section(section: Section) -> Iterable[str]:
    yield f"\n### {_safe(section.title)}\n"
    names = [column.heading for column in section.columns]
    sides = [_LEFT if column.is_text else _RIGHT for column in section.columns]
    yield from _table((*names, "notes"), (*sides, _LEFT), _rows(section))
    if section.details:
        yield ""
        yield from (
            f"- {_safe(detail.label)}: {_safe(', '.join(map(words.value, detail.values)))}"
            for detail in section.details
        )


def _rows(section: Section) -> Iterable[Sequence[str]]:
    """Only comparisons have rules: a curve has its nodes in a column."""
    for line in section.lines:
        if line.above and section.columns[0].is_text:
            yield (f"**{_safe(line.above)}**", *("",) * len(section.columns))
        yield _row(line, section)


def _row(line: Line, section: Section) -> tuple[str, ...]:
    """Put `says` into the first free cell, since GitHub cannot join cells."""
    cells = [words.stamped(*cell) for cell in words.cells(line, section.columns)]
    cells += [line.says] if line.says else []
    cells += [""] * (len(section.columns) - len(cells))
    notes = _safe(words.stamped(*line.stamps, words.text(line.remark)))
    return (*map(_safe, cells), words.stamped(notes, _marks(line.marks)))


def _marks(marks: Iterable[int]) -> str:
    return "".join(f"[^{number}]" for number in marks)


def _table(names: Sequence[str], sides: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield f"| {' | '.join(map(_safe, names))} |"
    yield f"| {' | '.join(sides)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _safe(text: str) -> str:
    """Escape markup, links, pictures and the ends of cells."""
    for sign in "\\|<*_`[]&":
        text = text.replace(sign, f"\\{sign}")
    text = re.sub(r"(?<!\w)@(?=\w)", "@<!-- -->", text)  # names without this mention a person
    return " ".join(text.split())


_LEFT, _RIGHT = "---", "---:"
