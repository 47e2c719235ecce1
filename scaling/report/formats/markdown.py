"""The report as GitHub markdown, with the content of the terminal's report."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scaling.report.parts import Document, Entry, Section, stamped


def draw(doc: Document) -> str:
    return "\n".join(_lines(doc)) + "\n"


def _lines(doc: Document) -> Iterator[str]:
    yield f"## {_safe(doc.title)}"
    yield ""
    yield from map(_entry, doc.facts)
    yield from (f"\n> {_safe(notice)}" for notice in doc.notices)
    for table in doc.tables:
        yield from _section(table)
    if doc.how_to_read:
        yield "\n### How to read\n"
        yield from map(_entry, doc.how_to_read)
    if doc.footnotes:
        yield ""
        yield from (f"[^{number}]: {_safe(text)}" for number, text in enumerate(doc.footnotes, 1))


def _entry(entry: Entry) -> str:
    return f"- {': '.join(map(_safe, entry))}"


def _section(section: Section) -> Iterator[str]:
    """Yield a table with notes in its last column; baselines have them beside their efficiency. Only comparisons
    have rules: a curve has its nodes in a column. `says` is in the first free cell, since GitHub cannot join
    cells."""
    columns = section.columns
    names = [*(column.heading for column in columns), "notes"]
    sides = ["---" if column.is_text else "---:" for column in columns] + ["---"]
    title, last = section.title, len(names) - 1
    if section.is_baselines:
        title, names, sides, last = "Baselines", names[:-1], [*sides[:-2], "---"], last - 1
    yield f"\n### {_safe(title)}\n"
    yield f"| {' | '.join(map(_safe, names))} |"
    yield f"| {' | '.join(sides)} |"
    for line in section.lines:
        if line.above and columns[0].is_text:
            yield f"| **{_safe(line.above)}** |{'  |' * len(columns)}"
        cells = [*line.texts(columns), *filter(None, [line.says])]
        cells += [""] * (len(columns) - len(cells))
        notes = stamped(_safe(line.remarks), "".join(f"[^{number}]" for number in line.marks))
        cells = [*map(_safe, cells), notes]
        yield f"| {' | '.join((*cells[:last], stamped(*cells[last:])))} |"
    if section.details:
        yield ""
        yield from (_entry((label, ", ".join(values))) for label, values in section.details)


def _safe(text: str) -> str:
    """Escape markup, links, pictures and the ends of cells."""
    for sign in "\\|<*_`[]&":
        text = text.replace(sign, f"\\{sign}")
    text = re.sub(r"(?<!\w)@(?=\w)", "@<!-- -->", text)  # names without this mention a person
    return " ".join(text.split())
