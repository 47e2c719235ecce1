"""The last screen of a run: the answer, a table that fits the terminal, and what to type next."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Literal

from msgspec.structs import replace
from rich.text import Text

from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import EFFICIENCY, NAME, RATE, SPEEDUP, WORLD_SIZE
from scaling.analysis.table.footnotes import describe
from scaling.analysis.table.rows import Column, Row
from scaling.records.burn_in import asked_s
from scaling.records.events import Failed
from scaling.report import facts, quantities
from scaling.report.answer import answer, largest_loss
from scaling.report.formats import terminal
from scaling.report.labels import mean_rate
from scaling.report.material import Material, Place
from scaling.report.notes import shortened
from scaling.report.parts import Line
from scaling.report.sections import is_over_time
from scaling.text import counted

NARROWEST, WIDEST = 60, 250
PICTURE_WIDTH = 88
INDENT = "  "
LABEL = 9  # characters of a label, with the gap after it
MOST_FAILURES = 3
# Narrower terminals have the largest loss alone.
ALL_CAUSES = 100
# A longer table has the largest world size only.
MOST_ROWS = 12
LOSS = Column(key="largest_loss", title="largest loss", is_text=True)


def render(material: Material, place: Place, *, width: int, color: bool) -> str:
    """Return the last screen without its line for programs. Only paths and commands may be wider."""
    return terminal.styled(_screen(material, place, width), color=color)


def picture(material: Material, place: Place, *, theme: Literal["light", "dark"]) -> str:
    """Return the last screen as SVG, with its line for programs."""
    lines = [*_screen(material, place, PICTURE_WIDTH), Text(material.doc.last_line, "dim")]
    return terminal.drawn(lines, title=material.doc.title, theme=theme)


def _screen(material: Material, place: Place, width: int) -> list[Text]:
    width = min(max(width, NARROWEST), WIDEST)
    # What the run was asked for beyond its curves; the tables over time only of a burn-in.
    sections = [one for one in material.doc.sections if not one.is_curve]
    if not asked_s(material.header.config):
        sections = [one for one in sections if not is_over_time(one)]
    return [
        *(Text(line, "yellow") for line in _wrapped(place.event, width)),
        *_answer(material, width),
        Text(),
        *_table(material, width),
        *(line for section in sections for line in terminal.section_lines(section, width)),
        Text(),
        *(Text(line, "dim") for line in _setting(material, width)),
        *map(Text, footer(material, place)),
    ]


# ---------------------------------------------------------------- answer


def _answer(material: Material, width: int) -> Iterator[Text]:
    found = answer(material)
    yield from (Text(line, "bold") for line in _wrapped(found.verdict, width))
    for label, text in (*found.lines, *_failures(material)):
        first = f"{INDENT}{label:<{LABEL}}"
        for index, line in enumerate(_wrapped(text, width - len(first))):
            yield Text.assemble((first if index == 0 else " " * len(first), "dim"), line)
    for notice in material.doc.notices:
        yield from (Text(f"{INDENT}{line}", "yellow") for line in _wrapped(f"! {notice}", width - len(INDENT)))


def _failures(material: Material) -> Iterator[tuple[str, str]]:
    """Yield each cause of failure once, with the rows and points that have it."""
    by_cause: dict[str, list[str]] = {}
    for row in material.rows:
        if row.failed is not None:
            name = f"{material.label(row)} N={row.world_size}"
            by_cause.setdefault(shortened(describe(row.failed)), []).append(name)
    for record in material.partly_failed:
        if isinstance(record.outcome, Failed):
            by_cause.setdefault(shortened(describe(record.outcome)), []).append(record.point.label)
    for cause, points in list(by_cause.items())[:MOST_FAILURES]:
        more = len(points) - MOST_FAILURES
        yield "failed", f"{', '.join(points[:MOST_FAILURES])}{f' and {more} more' if more > 0 else ''}: {cause}"


_GLUE = "\N{NO-BREAK SPACE}"
_INTERVAL = re.compile(r" %| ± | \(-?[\d.,]+ to -?[\d.,]+\)")


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap at spaces; a number is not separated from its unit and interval."""
    glued = _INTERVAL.sub(lambda found: found[0].replace(" ", _GLUE), text)
    lines = wrap(glued, width, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_GLUE, " ") for line in lines]


# ---------------------------------------------------------------- table


def _table(material: Material, width: int) -> Iterator[Text]:
    rows = _shown(material.rows)
    if rows:
        drawn_lines = list(lines(rows, material))
        columns, cells = _columns(rows, drawn_lines, width)
        layout, drawn = terminal.with_bars(drawn_lines, columns, cells, width)
        yield from terminal.table(layout, drawn_lines, drawn)
    if len(rows) < len(material.rows):
        yield Text(f"{INDENT}{counted(len(material.rows) - len(rows), 'row')} of smaller N: --verbose", "dim")


def _columns(
    rows: Sequence[Row], lines: Sequence[Line], width: int
) -> tuple[tuple[Column, ...], list[tuple[str, ...]]]:
    """Return the most columns that fit; if none do, names get lines of their own."""
    choices = [(columns, terminal.line_cells(lines, columns)) for columns in _choices(rows, width)]
    for fit in (terminal.fitting, terminal.fitted):
        for columns, cells in choices:
            layout = fit(columns, cells, width)
            if layout is not None and layout.end <= width:
                return columns, cells
    return choices[-1]


def lines(rows: Sequence[Row], material: Material) -> Iterator[Line]:
    before = None
    for row in rows:
        name = "" if row.curve == before else material.label(row)
        before = row.curve
        line = quantities.line(row, name)
        yield replace(line, cells={**line.cells, LOSS.key: largest_loss(row)} if row.efficiency else line.cells)


def _shown(rows: Sequence[Row]) -> Sequence[Row]:
    if len(rows) <= MOST_ROWS:
        return rows
    largest = max(row.world_size for row in rows)
    return sorted((row for row in rows if row.world_size == largest), key=mean_rate, reverse=True)


def _choices(rows: Sequence[Row], width: int) -> Iterator[tuple[Column, ...]]:
    """Yield the columns, from wide to narrow terminals. Rates have the unit of their rows."""
    name = (NAME,) if len({row.curve for row in rows}) > 1 else ()
    rate = RATE.of_rows(rows)
    if width >= ALL_CAUSES:
        causes = catalogue.causes([row for row in rows if row.breakdown])
        yield (*name, WORLD_SIZE, rate, SPEEDUP, EFFICIENCY, *causes)
    yield (*name, WORLD_SIZE, rate, SPEEDUP, EFFICIENCY, LOSS)
    yield (*name, WORLD_SIZE, rate, EFFICIENCY, LOSS)
    yield (*name, WORLD_SIZE, rate, EFFICIENCY)


# ---------------------------------------------------------------- setting, and what to type next


def _setting(material: Material, width: int) -> list[str]:
    """Return `digits-cnn, fp32 · 2 x AMD EPYC core · host vm · 2026-11-26 03:18 UTC`, cut between its parts."""
    lines = [""]
    for part in facts.setting(material.header, material.records):
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        lines = [*lines[:-1], longer] if len(longer) <= width - len(INDENT) else [*lines, part]
    return [f"{INDENT}{line}" for line in lines if line]


def footer(material: Material, place: Place) -> Iterator[str]:
    """Yield the page, and the commands for all details and for the next run."""
    run = shlex.quote(place.run)
    if place.page:
        yield f"{INDENT}{'page':<{LABEL}}{place.page}"
    if place.run:
        yield f"{INDENT}{'more':<{LABEL}}python -m scaling report {run} --verbose"
    if place.run and not place.packed:
        label, words, program = "again", f"--like {run}", "scaling.run"
        if material.certificate:
            words, program = shlex.join(material.header.command), ""
        elif place.lacks:
            label, words = "resume", f"--resume {run}"
        yield f"{INDENT}{label:<{LABEL}}{facts.command(material.header, words, program)}"
