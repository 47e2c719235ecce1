"""The page of a report. The same run always gives the same bytes."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from typing import Any

from scaling.analysis.table import catalogue
from scaling.records.run import Header
from scaling.report import facts, words
from scaling.report.answer import answer, banners
from scaling.report.figures import FIGURES
from scaling.report.figures.parts import Figure
from scaling.report.formats import csv
from scaling.report.formats.html import shell, tables
from scaling.report.formats.html.shell import MOST_BYTES
from scaling.report.material import Material
from scaling.report.parts import Document

# A larger CSV is not embedded.
MOST_CSV_BYTES = 400_000
# Figures that a large page leaves out, in steps. Those that grow with windows and points are first.
LEFT_OUT: tuple[tuple[str, ...], ...] = ((), ("ranks",), ("ranks", "run", "rounds"), tuple(FIGURES))
# Figures next to the answer, and those in "Is this measurement sound?".
FIRST = ("efficiency", "loss")
SOUND = ("burn-in", "rounds", "ranks", "cards", "devices", "run")


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
    doc, found = material.doc, answer(material)
    heading = facts.heading(material.header, material.rows)
    first = [one for one in drawn if one[0].name in FIRST]
    sound = [one for one in drawn if one[0].name in SOUND]
    values: dict[str, Any] = {
        "heading": heading,
        "title": ": ".join((heading, *filter(None, [" ".join(source.name for source in material.sources)]))),
        "subject": " · ".join(facts.setting(material.header, material.records)),
        "doc": doc,
        "banners": [(one, tables.tone(one.mark)) for one in banners(material)],
        "answer": found,
        "stamps": tables.toned(found.stamps),
        "left_out": f"To stay below 2 MB this page leaves out: {', '.join(names)}." if names else "",
        "first": first,
        "sound": sound,
        "others": [one for one in drawn if one not in first and one not in sound],
        "rows": tables.rows(material),
        "columns": catalogue.columns("page", material.rows),
        "tables": list(tables.tabulated(material)),
        "curves": list(tables.curves(material)),
        "facts": shell.entries(doc.facts),
        "reading": shell.entries(doc.how_to_read),
        "csv": _csv(material),
        "sources": material.sources,
        "is_import": material.header.is_import,
        "command": _command(material.header),
        "made_with": _made_with(doc),
        "parts": list(_parts(material, has_figures=bool(first), is_sound=bool(sound))),
    }
    return shell.render(shell.asset("page.html.j2"), values)


def _command(header: Header) -> str:
    """Return the command line of the run; "" for an import."""
    if not header.hosts:
        return ""
    return facts.command(header, shlex.join(header.command))


def _made_with(doc: Document) -> str:
    wanted = ("software", "hosts", "started")
    return "; ".join(words.text(fact.phrase) for fact in doc.facts if fact.label in wanted)


def _figures(material: Material, names: Collection[str]) -> Iterator[Figure]:
    for name, of in FIGURES.items():
        yield from of(material) if name not in names else ()


def _csv(material: Material) -> str:
    """Return a data link with the bytes of `--format csv`; "" if too large."""
    text = csv.of_rows(material.rows, material.header, material.pricing, material.predictions)
    return shell.data_link(text) if len(text.encode()) <= MOST_CSV_BYTES else ""


def _parts(material: Material, *, has_figures: bool, is_sound: bool) -> Iterator[tuple[str, str]]:
    if has_figures:
        yield "figures", "Figures"
    yield "tables", "All rows"
    if is_sound:
        yield "sound", "Is it sound?"
    if material.doc.footnotes:
        yield "notes", "Notes"
    yield "machine", "Machine"
    if material.header.hosts:
        yield "reproduce", "Reproduce"
    yield "data", "Data"
    if material.doc.how_to_read:
        yield "reading", "How to read"
