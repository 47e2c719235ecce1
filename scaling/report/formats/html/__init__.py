"""The page of a report, one file that works offline, and the parts of all pages: Jinja, style, script, policy.

The same run always gives the same bytes. Everything from a run is text: Jinja escapes it, and invisible signs are
removed. The policy allows only this style and this script, by their hashes (Content Security Policy Level 3, W3C).
"""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup
from msgspec.structs import replace

import scaling
from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import mark_named
from scaling.analysis.table.rows import Column, Row
from scaling.records.point import Record
from scaling.records.run import FAIL, PASS
from scaling.report import facts, parts, quantities, verdict
from scaling.report.answer import answer, banners
from scaling.report.figures import FIGURES
from scaling.report.figures.parts import Figure
from scaling.report.formats import csv
from scaling.report.formats.plots import draw
from scaling.report.formats.plots.sheet import NARROW
from scaling.report.material import Material, curved
from scaling.report.parts import Cell, Entry, Line, Quantity, stamped
from scaling.text import one_line

# ---------------------------------------------------------------- all pages


HERE = Path(__file__).parent
# A larger page is slow to mail and to open.
MOST_BYTES = 2_000_000


def fill(template: Path, values: Mapping[str, Any]) -> str:
    """Return the page of a template; it has `values`, style, script, policy, version and macros."""
    style, script, macros = (
        (HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "parts.html.j2")
    )
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: one_line(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=DictLoader({"parts.html.j2": macros}),
    )
    given = {"style": Markup(style), "script": Markup(script), "policy": policy, "version": scaling.__version__}
    return made.from_string(template.read_text(encoding="utf-8")).render({**given, **values})


def drawn(figures: Iterable[Figure]) -> Iterator[tuple[Figure, str, str]]:
    """Return each figure with its SVG, wide and for a phone; ids are unique in the page."""
    for number, figure in enumerate(figures, start=1):
        wide, narrow = draw.for_page(figure, f"f{number}"), draw.for_page(figure, f"n{number}", NARROW)
        yield figure, Markup(wide), Markup(narrow)


def data_link(text: str) -> str:
    return f"data:text/csv;charset=utf-8;base64,{b64encode(text.encode()).decode()}"


class Shown(Record, frozen=True, kw_only=True):
    """A cell of a sortable table. `value` is the key for sorting: None for the text, "" for no value. `marks`:
    each with its tone (`tone`)."""

    text: str
    value: str | None = None
    is_text: bool = False
    marks: tuple[tuple[str, str], ...] = ()
    notes: tuple[int, ...] = ()


def shown(cell: Cell, column: Column) -> Shown:
    text = stamped(*parts.shown(_grouped(cell), column)).strip()
    return Shown(text=text, value=f"{cell.value:.10g}" if isinstance(cell, Quantity) else "")


def toned(marks: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return each mark with its tone: bad for a wrong or failed row, good if it is a proof, else doubt."""
    return tuple((mark, tone(mark)) for mark in marks)


def tone(mark: str) -> str:
    found = mark_named(mark)
    if found.is_wrong or mark in ("FAILED", FAIL):
        return "bad"
    return "good" if mark in ("VERIFIED", PASS) else "doubt"


def _grouped(cell: Cell) -> Cell:
    return quantities.grouped(cell) if isinstance(cell, Quantity) else cell


# ---------------------------------------------------------------- the page of a report


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
    figures = list(drawn(one for name, make in FIGURES.items() if name not in names for one in make(material)))
    doc, header, columns = material.doc, material.header, catalogue.columns("page", material.rows)
    heading, said = facts.heading(header, material.rows), answer(material)
    first, sound = ([one for one in figures if one[0].name in of] for of in (FIRST, SOUND))
    curves = [section for section in doc.sections if section.is_curve]
    found = zip(curved(material.analysis), (line for section in curves for line in section.lines), strict=True)
    text = csv.of_rows(material.rows, header, material.pricing)
    values: dict[str, Any] = {
        "heading": heading,
        "title": ": ".join((heading, *filter(None, [" ".join(source.name for source in material.sources)]))),
        "subject": " · ".join(facts.setting(header, material.records)),
        "doc": doc,
        "banners": [(mark, says, tone(mark)) for mark, says in banners(material)],
        "answer": said,
        "left_out": f"To stay below 2 MB this page leaves out: {', '.join(names)}." if names else "",
        "first": first,
        "sound": sound,
        "others": [one for one in figures if one not in first and one not in sound],
        "rows": [[_of_row(column, line, row, material) for column in columns] for row, line in found],
        "columns": columns,
        "tables": [*doc.comparisons, *doc.baselines, *(one for one in doc.sections if not one.is_curve)],
        "curves": [section for section in curves if section.details],
        "texts": _texts,
        "toned": toned,
        "certificate": list(_certificate(material, said.verdict)),
        "certified": list(_certified(material)),
        "csv": data_link(text) if len(text.encode()) <= MOST_CSV_BYTES else "",
        "sources": material.sources,
        "is_import": header.is_import,
        "command": facts.command(header, shlex.join(header.command)) if header.hosts else "",
        "made_with": "; ".join(text for label, text in doc.facts if label in ("software", "hosts", "started")),
    }
    values["parts"] = [(anchor, name) for anchor, name, is_there in _parts(values) if is_there]
    return fill(HERE / "page.html.j2", values)


def _parts(page: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    """Yield the anchor and the name of each part, and whether this page has it."""
    yield "figures", "Figures", page["first"]
    yield "tables", "All rows", True
    yield "sound", "Is it sound?", page["sound"]
    yield "notes", "Notes", page["doc"].footnotes
    yield "certificate", "Certificate", page["certificate"]
    yield "machine", "Machine", True
    yield "reproduce", "Reproduce", page["command"]
    yield "data", "Data", True
    yield "reading", "How to read", page["doc"].how_to_read


def _of_row(column: Column, line: Line, row: Row, material: Material) -> Shown:
    if column.key == catalogue.CURVE.key:
        return Shown(text=material.label(row), is_text=True)
    if column.key == catalogue.MARKED.key:
        said = f"({row.failed.cause})" if row.failed else ""
        return Shown(text=said, is_text=True, marks=toned(row.flags), notes=line.marks)
    return shown(line.cells.get(column.key), column)


def _texts(line: Line, columns: Iterable[Column]) -> list[str]:
    return replace(line, cells={key: _grouped(cell) for key, cell in line.cells.items()}).texts(columns)


def _certificate(material: Material, said: str) -> Iterator[Entry]:
    """Yield the lines of a certificate: verdict, errors, work, hosts, time, version and digest of the records."""
    if (found := material.certificate) is None:
        return
    yield "result", said
    yield from ((label or "also", text) for label, text in verdict.lines(found))
    wanted = ("model", "batch", "strategies", "hosts", "started", "software")
    yield from (fact for fact in material.doc.facts if fact[0] in wanted)
    yield from (("records", f"{one.name}, run.jsonl sha256 {one.sha256}") for one in material.sources)


def _certified(material: Material) -> Iterator[tuple[str, str, str, str]]:
    """Yield node, device, serial number and UUID of all devices that a certificate is of."""
    found = material.certificate
    for one in found.devices if found else ():
        place = one.place.removeprefix(f"{one.host} ").partition(" (")[0]
        yield one.host, f"{one.name}, {place}", one.serial, one.uuid
    if found and not found.devices:
        yield from ((at.hostname, gpu.name, "", gpu.uuid) for at in material.header.hosts for gpu in at.gpus)
