"""The page of a report. The same run always gives the same bytes."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import mark_named
from scaling.analysis.table.rows import Column, Row
from scaling.records.point import Record
from scaling.records.run import FAIL, PASS
from scaling.report import facts, quantities, verdict, words
from scaling.report.answer import answer, banners
from scaling.report.figures import FIGURES
from scaling.report.formats import csv
from scaling.report.formats.html import shell
from scaling.report.formats.html.shell import MOST_BYTES
from scaling.report.material import Material, curved
from scaling.report.parts import Cell, Document, Line, Quantity, Section

# ---------------------------------------------------------------- all rows


class Shown(Record, frozen=True, kw_only=True):
    """A cell of the sortable table. `value` is the key for sorting: None for the text, "" for no value. `marks`:
    each with its tone (`tone`)."""

    text: str
    value: str | None = None
    is_text: bool = False
    marks: tuple[tuple[str, str], ...] = ()
    notes: tuple[int, ...] = ()


def rows(material: Material) -> list[tuple[Shown, ...]]:
    lines = [line for section in material.doc.sections if section.is_curve for line in section.lines]
    found = zip(curved(material.analysis), lines, strict=True)
    wanted = catalogue.columns("page", material.rows)
    return [tuple(_shown(column, line, row, material) for column in wanted) for row, line in found]


def _shown(column: Column, line: Line, row: Row, material: Material) -> Shown:
    if column.key == catalogue.CURVE.key:
        return Shown(text=material.label(row), is_text=True)
    if column.key == catalogue.MARKED.key:
        said = f"({row.failed.cause})" if row.failed else ""
        return Shown(text=said, is_text=True, marks=toned(row.flags), notes=line.marks)
    return shown(line.cells.get(column.key), column)


def shown(cell: Cell, column: Column) -> Shown:
    text = words.stamped(*words.cell(_grouped(cell), column)).strip()
    return Shown(text=text, value=f"{cell.value:.10g}" if isinstance(cell, Quantity) else "")


def toned(marks: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return each mark with its tone: bad for a wrong or failed row, good if it is a proof, else doubt."""
    return tuple((mark, tone(mark)) for mark in marks)


def tone(mark: str) -> str:
    found = mark_named(mark)
    if found.is_wrong or mark in ("FAILED", FAIL):
        return "bad"
    return "good" if mark in ("VERIFIED", PASS) else "doubt"


# ---------------------------------------------------------------- comparisons, baselines, details


def _tables(doc: Document) -> list[Section]:
    """Return comparisons, baselines and the sections that are no curves."""
    return [*doc.comparisons, *doc.baselines, *(section for section in doc.sections if not section.is_curve)]


def _texts(line: Line, columns: Sequence[Column]) -> list[str]:
    cells = {key: _grouped(cell) for key, cell in line.cells.items()}
    return [words.stamped(*cell).strip() for cell in words.cells(replace(line, cells=cells), columns)]


def _grouped(cell: Cell) -> Cell:
    return quantities.grouped(cell) if isinstance(cell, Quantity) else cell


def _details(section: Section) -> list[tuple[str, str]]:
    return [(detail.label, "; ".join(map(words.value, detail.values))) for detail in section.details]


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
    figures = (figure for name, of in FIGURES.items() if name not in names for figure in of(material))
    drawn = list(shell.drawn(figures))
    doc, header = material.doc, material.header
    heading = facts.heading(header, material.rows)
    first = [one for one in drawn if one[0].name in FIRST]
    sound = [one for one in drawn if one[0].name in SOUND]
    text = csv.of_rows(material.rows, header, material.pricing)
    made_with = (words.text(fact.phrase) for fact in doc.facts if fact.label in ("software", "hosts", "started"))
    values: dict[str, Any] = {
        "heading": heading,
        "title": ": ".join((heading, *filter(None, [" ".join(source.name for source in material.sources)]))),
        "subject": " · ".join(facts.setting(header, material.records)),
        "doc": doc,
        "banners": [(one, tone(one.mark)) for one in banners(material)],
        "answer": answer(material),
        "left_out": f"To stay below 2 MB this page leaves out: {', '.join(names)}." if names else "",
        "first": first,
        "sound": sound,
        "others": [one for one in drawn if one not in first and one not in sound],
        "rows": rows(material),
        "columns": catalogue.columns("page", material.rows),
        "tables": _tables(doc),
        "curves": [section for section in doc.sections if section.is_curve and section.details],
        **{"texts": _texts, "toned": toned, "text": words.text, "details": _details},
        "certificate": list(_certificate(material)),
        "certified": list(_certified(material)),
        "facts": shell.entries(doc.facts),
        "reading": shell.entries(doc.how_to_read),
        "csv": shell.data_link(text) if len(text.encode()) <= MOST_CSV_BYTES else "",
        "sources": material.sources,
        "is_import": header.is_import,
        "command": facts.command(header, shlex.join(header.command)) if header.hosts else "",
        "made_with": "; ".join(made_with),
        "parts": list(_parts(material, first, sound)),
    }
    return shell.render(shell.asset("page.html.j2"), values)


def _parts(material: Material, first: Sequence[Any], sound: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the anchor and the name of each part that this page has."""
    for anchor, name, is_there in (
        ("figures", "Figures", first),
        ("tables", "All rows", True),
        ("sound", "Is it sound?", sound),
        ("notes", "Notes", material.doc.footnotes),
        ("certificate", "Certificate", material.certificate),
        ("machine", "Machine", True),
        ("reproduce", "Reproduce", material.header.hosts),
        ("data", "Data", True),
        ("reading", "How to read", material.doc.how_to_read),
    ):
        if is_there:
            yield anchor, name


def _certificate(material: Material) -> Iterator[tuple[str, str]]:
    """Yield the lines of a certificate: verdict, errors, work, hosts, time, version and digest of the records."""
    if (found := material.certificate) is None:
        return
    yield "result", answer(material).verdict
    yield from ((label or "also", text) for label, text in verdict.lines(found))
    wanted = ("model", "batch", "strategies", "hosts", "started", "software")
    yield from ((fact.label, words.text(fact.phrase)) for fact in material.doc.facts if fact.label in wanted)
    yield from (("records", f"{one.name}, run.jsonl sha256 {one.sha256}") for one in material.sources)


def _certified(material: Material) -> Iterator[tuple[str, str, str, str]]:
    """Yield node, device, serial number and UUID of all devices that a certificate is of."""
    found = material.certificate
    for one in found.devices if found else ():
        place = one.place.removeprefix(f"{one.host} ").partition(" (")[0]
        yield one.host, f"{one.name}, {place}", one.serial, one.uuid
    if found and not found.devices:
        yield from ((at.hostname, gpu.name, "", gpu.uuid) for at in material.header.hosts for gpu in at.gpus)
