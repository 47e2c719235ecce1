"""Material -> the page. The same run gives the same bytes, wherever and whenever that is.

Whatever comes from a run is text: Jinja escapes it, invisible signs that turn or hide text are taken out, and the
policy lets no style and no script run but these two, which it names by their hashes (Content Security Policy
Level 3, W3C).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import scaling
from scaling.report import words
from scaling.report.figures import FIGURES
from scaling.report.figures.parts import Figure
from scaling.report.formats import csv
from scaling.report.formats.html import tables
from scaling.report.formats.plots import draw
from scaling.report.material import Material
from scaling.report.parts import TITLE, Entry
from scaling.report.verdict import banners, verdict
from scaling.text import one_line

HERE = Path(__file__).parent
# Above this a page is slow to mail and to open; above that its rows are not carried a second time as CSV.
MOST_BYTES = 2_000_000
MOST_CSV_BYTES = 400_000
# What is left out first where a page gets too large: figures that grow with windows and points.
LEFT_OUT: tuple[tuple[str, ...], ...] = ((), ("ranks",), ("ranks", "run", "rounds"), tuple(FIGURES))
FACTS_IN_SUBJECT = ("model", "batch", "devices")


def render(material: Material, most_bytes: int = MOST_BYTES) -> str:
    """Return the page; above `most_bytes` without the figures that are largest, which it says."""
    text = ""
    for names in LEFT_OUT:
        text = _page(material, names)
        if len(text.encode()) <= most_bytes:
            break
    return text


def _page(material: Material, names: Collection[str]) -> str:
    style, script = (_asset("page.css"), _asset("page.js"))
    drawn = [(figure, Markup(svg)) for figure, svg in _drawn(material, names)]
    doc = material.doc
    subject = [words.text(fact.phrase) for fact in doc.facts if fact.label in FACTS_IN_SUBJECT]
    found: dict[str, Any] = {
        "policy": _policy(style, script),
        "style": Markup(style),
        "script": Markup(script),
        "heading": TITLE,
        "title": f"{TITLE}: {', '.join(source.name for source in material.sources) or subject[0]}",
        "subject": " · ".join(subject),
        "doc": doc,
        "banners": banners(material),
        "verdict": verdict(material),
        "left_out": f"To stay below 2 MB this page leaves out: {', '.join(names)}." if names else "",
        "drawn": drawn,
        "rows": tables.rows(material),
        "columns": tables.columns(material),
        "tables": list(tables.tabulated(material)),
        "curves": list(tables.curves(material)),
        "facts": _entries(doc.facts),
        "reading": _entries(doc.how_to_read),
        "csv": _csv(material),
        "sources": material.sources,
        "is_import": material.header.is_import,
        "version": scaling.__version__,
        "parts": list(_parts(material, has_figures=bool(drawn))),
    }
    return _environment().from_string(_asset("page.html.j2")).render(found)


def _environment() -> Environment:
    return Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True
    )


def _shown(value: object) -> object:
    """Texts on one line, without what cannot be seen."""
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _drawn(material: Material, names: Collection[str]) -> Iterator[tuple[Figure, str]]:
    number = 0
    for name, of in FIGURES.items():
        for figure in of(material) if name not in names else ():
            number += 1
            yield figure, draw.for_page(figure, f"f{number}")


def _entries(entries: Collection[Entry]) -> list[tuple[str, str]]:
    return [(entry.label, words.text(entry.phrase)) for entry in entries]


def _csv(material: Material) -> str:
    """As a link that a browser saves, byte for byte what `--format csv` prints; nothing where it is too large."""
    data = csv.of_rows(material.rows, material.header, material.pricing, material.predictions).encode()
    return f"data:text/csv;charset=utf-8;base64,{b64encode(data).decode()}" if len(data) <= MOST_CSV_BYTES else ""


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
