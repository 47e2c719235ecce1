"""The report as GitHub markdown, with the content of the terminal's report."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scaling.report import words
from scaling.report.parts import Document, Line, Section


def draw(doc: Document) -> str:
    return "\n".join(_lines(doc)) + "\n"


def _lines(doc: Document) -> Iterable[str]:
    yield f"## {_safe(doc.title)}"
    yield ""
    yield from (f"- {_safe(fact.label)}: {_safe(words.text(fact.phrase))}" for fact in doc.facts)
    yield from (f"\n> {_safe(notice)}" for notice in doc.notices)
    for table in doc.tables:
        yield from _section(table)
    if doc.how_to_read:
        yield "\n### How to read\n"
        yield from (f"- {_safe(entry.label)}: {_safe(words.text(entry.phrase))}" for entry in doc.how_to_read)
    if doc.footnotes:
        yield ""
        yield from (f"[^{number}]: {_safe(text)}" for number, text in enumerate(doc.footnotes, 1))


def _section(section: Section) -> Iterable[str]:
    """Yield a table with notes in its last column; baselines have them beside their efficiency. Only comparisons
    have rules: a curve has its nodes in a column."""
    names = [*(column.heading for column in section.columns), "notes"]
    sides = ["---" if column.is_text else "---:" for column in section.columns] + ["---"]
    title, last = section.title, len(names) - 1
    if section.is_baselines:
        title, names, sides, last = "Baselines", names[:-1], [*sides[:-2], "---"], last - 1
    yield f"\n### {_safe(title)}\n"
    yield f"| {' | '.join(map(_safe, names))} |"
    yield f"| {' | '.join(sides)} |"
    for line in section.lines:
        if line.above and section.columns[0].is_text:
            yield f"| **{_safe(line.above)}** |{'  |' * len(section.columns)}"
        cells = _cells(line, section)
        yield f"| {' | '.join((*cells[:last], words.stamped(*cells[last:])))} |"
    if section.details:
        yield ""
        said = ((detail.label, ", ".join(map(words.value, detail.values))) for detail in section.details)
        yield from (f"- {_safe(label)}: {_safe(text)}" for label, text in said)


def _cells(line: Line, section: Section) -> tuple[str, ...]:
    """Return the cells and the notes. `says` is in the first free cell, since GitHub cannot join cells."""
    cells = [words.stamped(*cell) for cell in words.cells(line, section.columns)]
    cells += [line.says] if line.says else []
    cells += [""] * (len(section.columns) - len(cells))
    notes = _safe(words.stamped(*line.stamps, words.text(line.remark)))
    return (*map(_safe, cells), words.stamped(notes, "".join(f"[^{number}]" for number in line.marks)))


def _safe(text: str) -> str:
    """Escape markup, links, pictures and the ends of cells."""
    for sign in "\\|<*_`[]&":
        text = text.replace(sign, f"\\{sign}")
    text = re.sub(r"(?<!\w)@(?=\w)", "@<!-- -->", text)  # names without this mention a person
    return " ".join(text.split())
