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
from scaling.records.run import FAIL, PASS, Header
from scaling.report import document, facts, quantities, verdict, words
from scaling.report.answer import answer, banners
from scaling.report.figures import FIGURES
from scaling.report.figures.parts import Figure
from scaling.report.formats import csv
from scaling.report.formats.html import shell
from scaling.report.formats.html.shell import MOST_BYTES
from scaling.report.material import Material
from scaling.report.parts import Baseline, Baselines, Cell, Detail, Document, Line, Quantity, Section

# ---------------------------------------------------------------- tables
#
# The tables of a page: all rows in one sortable table, then comparisons and baselines.


class Shown(Record, frozen=True, kw_only=True):
    """A cell of the sortable table. `value` is the key for sorting: None for the text, "" for no value. `marks`:
    each with its tone (`tone`)."""

    text: str
    value: str | None = None
    is_text: bool = False
    marks: tuple[tuple[str, str], ...] = ()
    notes: tuple[int, ...] = ()


class Ruled(Record, frozen=True, kw_only=True):
    """A line of a table that is not sortable, and the rule above it."""

    texts: tuple[str, ...]
    says: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    remark: str = ""
    notes: tuple[int, ...] = ()
    above: str = ""


class Tabulated(Record, frozen=True, kw_only=True):
    """A table with its heading and the details below it."""

    title: str
    headings: tuple[str, ...]
    lines: tuple[Ruled, ...]
    details: tuple[tuple[str, str], ...] = ()


# ---------------------------------------------------------------- all rows


def rows(material: Material) -> list[tuple[Shown, ...]]:
    lines = [line for section in material.doc.sections if section.is_curve for line in section.lines]
    found = zip(document.curved(material.analysis), lines, strict=True)
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


def tabulated(material: Material) -> Iterator[Tabulated]:
    """Return comparisons, baselines and the sections that are no curves."""
    yield from map(_section, material.doc.comparisons)
    yield from map(_baselines, material.doc.baselines)
    yield from (_section(section) for section in material.doc.sections if not section.is_curve)


def curves(material: Material) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    for section in material.doc.sections:
        if section.is_curve and section.details:
            yield section.title, _details(section.details)


def _details(details: Sequence[Detail]) -> tuple[tuple[str, str], ...]:
    return tuple((detail.label, "; ".join(map(words.value, detail.values))) for detail in details)


def _section(section: Section) -> Tabulated:
    return Tabulated(
        title=section.title,
        headings=(*(column.heading for column in section.columns), "marks"),
        lines=tuple(_ruled(line, section.columns) for line in section.lines),
        details=_details(section.details),
    )


def _ruled(line: Line, shown: Sequence[Column]) -> Ruled:
    return Ruled(
        texts=tuple(words.stamped(*cell).strip() for cell in words.cells(_grouped_line(line), shown)),
        says=line.says,
        marks=toned(line.stamps),
        remark=words.text(line.remark),
        notes=line.marks,
        above=line.above,
    )


def _grouped_line(line: Line) -> Line:
    return replace(line, cells={key: _grouped(cell) for key, cell in line.cells.items()})


def _grouped_rate(line: Baseline) -> Baseline:
    return line if line.rate is None else replace(line, rate=quantities.grouped(line.rate))


def _grouped(cell: Cell) -> Cell:
    return quantities.grouped(cell) if isinstance(cell, Quantity) else cell


def _baselines(table: Baselines) -> Tabulated:
    lines = []
    for line in table.lines:
        texts = tuple(words.stamped(*cell).strip() for cell in words.baseline(_grouped_rate(line)))
        lines.append(Ruled(texts=texts, marks=toned(line.flags), notes=line.marks))
    return Tabulated(
        title=f"Baselines, {table.rate_unit}",
        headings=("what", "batch", table.rate_unit, "efficiency", "marks"),
        lines=tuple(lines),
    )


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
        "banners": [(one, tone(one.mark)) for one in banners(material)],
        "answer": found,
        "stamps": toned(found.stamps),
        "left_out": f"To stay below 2 MB this page leaves out: {', '.join(names)}." if names else "",
        "first": first,
        "sound": sound,
        "others": [one for one in drawn if one not in first and one not in sound],
        "rows": rows(material),
        "columns": catalogue.columns("page", material.rows),
        "tables": list(tabulated(material)),
        "curves": list(curves(material)),
        "certificate": list(_certificate(material)),
        "certified": list(_certified(material)),
        "facts": shell.entries(doc.facts),
        "reading": shell.entries(doc.how_to_read),
        "csv": _csv(material),
        "sources": material.sources,
        "is_import": material.header.is_import,
        "command": _command(material.header),
        "made_with": _made_with(doc),
        "parts": list(
            _parts(
                material,
                has_figures=bool(first),
                is_sound=bool(sound),
            )
        ),
    }
    return shell.render(shell.asset("page.html.j2"), values)


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
    text = csv.of_rows(material.rows, material.header, material.pricing)
    return shell.data_link(text) if len(text.encode()) <= MOST_CSV_BYTES else ""


def _parts(material: Material, *, has_figures: bool, is_sound: bool) -> Iterator[tuple[str, str]]:
    if has_figures:
        yield "figures", "Figures"
    yield "tables", "All rows"
    if is_sound:
        yield "sound", "Is it sound?"
    if material.doc.footnotes:
        yield "notes", "Notes"
    if material.certificate:
        yield "certificate", "Certificate"
    yield "machine", "Machine"
    if material.header.hosts:
        yield "reproduce", "Reproduce"
    yield "data", "Data"
    if material.doc.how_to_read:
        yield "reading", "How to read"
