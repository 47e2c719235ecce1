"""The page of a report. The same run always gives the same bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from scaling.analysis.table import catalogue
from scaling.report import words
from scaling.report.answer import answer, banners
from scaling.report.figures import FIGURES
from scaling.report.figures.parts import Figure
from scaling.report.formats import csv
from scaling.report.formats.html import shell, tables
from scaling.report.formats.html.shell import MOST_BYTES
from scaling.report.material import Material
from scaling.report.parts import TITLE

# A larger CSV is not embedded.
MOST_CSV_BYTES = 400_000
# Figures that a large page leaves out, in steps. Those that grow with windows and points are first.
LEFT_OUT: tuple[tuple[str, ...], ...] = ((), ("ranks",), ("ranks", "run", "rounds"), tuple(FIGURES))
FACTS_IN_SUBJECT = ("model", "batch", "devices")


def render(material: Material, most_bytes: int = MOST_BYTES) -> str:
    """Return the page. Above `most_bytes` it omits the largest figures and says so."""
    text = ""
    for names in LEFT_OUT:
        text = _page(material, names)
        if len(text.encode()) <= most_bytes:
            break
    return text


def _page(material: Material, names: Collection[str]) -> str:
    drawn = list(shell.drawn(_figures(material, names)))
    doc = material.doc
    subject = [words.text(fact.phrase) for fact in doc.facts if fact.label in FACTS_IN_SUBJECT]
    found: dict[str, Any] = {
        "heading": TITLE,
        "title": f"{TITLE}: {', '.join(source.name for source in material.sources) or subject[0]}",
        "subject": " · ".join(subject),
        "doc": doc,
        "banners": banners(material),
        "answer": answer(material),
        "left_out": f"To stay below 2 MB this page leaves out: {', '.join(names)}." if names else "",
        "drawn": drawn,
        "rows": tables.rows(material),
        "columns": catalogue.columns("page", material.rows),
        "tables": list(tables.tabulated(material)),
        "curves": list(tables.curves(material)),
        "facts": shell.entries(doc.facts),
        "reading": shell.entries(doc.how_to_read),
        "csv": _csv(material),
        "sources": material.sources,
        "is_import": material.header.is_import,
        "parts": list(_parts(material, has_figures=bool(drawn))),
    }
    return shell.render(shell.asset("page.html.j2"), found)


def _figures(material: Material, names: Collection[str]) -> Iterator[Figure]:
    for name, of in FIGURES.items():
        yield from of(material) if name not in names else ()


def _csv(material: Material) -> str:
    """Return a data link with the bytes of `--format csv`; "" if too large."""
    text = csv.of_rows(material.rows, material.header, material.pricing, material.predictions)
    return shell.data_link(text) if len(text.encode()) <= MOST_CSV_BYTES else ""


def _parts(material: Material, *, has_figures: bool) -> Iterator[tuple[str, str]]:
    if has_figures:
        yield "figures", "Figures"
    yield "tables", "Tables"
    if material.doc.footnotes:
        yield "notes", "Notes"
    yield "machine", "Machine"
    yield "data", "Data"
    if material.doc.how_to_read:
        yield "reading", "How to read"
