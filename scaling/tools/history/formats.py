"""The formats of the history: table and Markdown, JSON, CSV."""

from __future__ import annotations

import csv as csv_module
import re
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any

import msgspec

from scaling import text
from scaling.analysis.table.rows import PERCENT, Column
from scaling.report import quantities
from scaling.report.formats.csv import defused
from scaling.report.parts import Cell, Document, Entry, Line, Quantity, Section
from scaling.text import as_json, rounded
from scaling.tools.history.lines import Headline, RunLine, Unreadable

# ---------------------------------------------------------------- table and Markdown


TITLE = "Runs"
# explained in the table; --format json has all
MOST_GROUPS = 12
_STAMP = re.compile(r"^\d{8}-\d{6}-")
COLUMNS = (
    Column(key="started", title="started, UTC", is_text=True),
    Column(key="run", title="run", is_text=True),
    Column(key="hosts", title="hosts", is_text=True),
    Column(key="work", title="settings", is_text=True),
    Column(key="strategy", title="fastest", is_text=True),
    Column(key="world_size", title="N"),
    Column(key="rate", title="samples/s"),
    Column(key="efficiency", title="efficiency", unit=PERCENT, unit_in_cells=True),
    Column(key="like", title="like", is_text=True),
)


READING = {
    "fastest": "at the largest world size, among exchanges with an efficiency, else among all",
    "like": "scaling compare compares runs of one letter; code and hosts may differ",
}


def document(results: str, lines: Sequence[RunLine], unreadable: Sequence[Unreadable]) -> Document:
    table = Section(title="Every run", columns=COLUMNS, lines=tuple(map(_line, lines)))
    return Document(
        title=TITLE,
        facts=(("folder", results), *_groups(lines)),
        notices=tuple(f"{one.run}: cannot be read: {one.reason}" for one in unreadable),
        sections=(table,) if lines else (),
        how_to_read=tuple(READING.items()),
    )


def _groups(lines: Sequence[RunLine]) -> Iterator[Entry]:
    groups = {line.like: line.conditions for line in lines if line.like}
    shown = list(groups.items())[-MOST_GROUPS:]
    if len(groups) > len(shown):
        yield "groups", f"{len(groups) - len(shown)} older ones are in --format json"
    yield from shown


def _line(line: RunLine) -> Line:
    found = line.headline
    rate = found.samples_per_s if found else 0.0
    cells: dict[str, Cell] = {
        "started": text.date(line.started_unix_s).removesuffix(" UTC"),
        "run": _STAMP.sub("", line.run),
        "hosts": line.hosts,
        "work": line.work,
        "strategy": found.strategy if found else _nothing(line),
        "world_size": quantities.integer(found.world_size) if found else None,
        "rate": Quantity(value=rate, digits=text.decimals(rate)) if found else None,
        "efficiency": quantities.fraction(found.efficiency) if found and found.efficiency is not None else None,
        "like": line.like or "-",
    }
    remarks = ["still being written"] if line.is_running else []
    remarks += [f"{text.counted(line.failed, 'point')} failed"] if line.failed else []
    return Line(cells=cells, flags=found.flags if found else (), remark=", ".join(remarks))


def _nothing(line: RunLine) -> str:
    if any(name.startswith("imported:") for name in line.strategies):
        return f"{line.strategies[0]} IMPORTED"
    return f"N={line.world_sizes[-1]} failed" if line.world_sizes else "no exchange ended"


# ---------------------------------------------------------------- JSON and CSV

# fields of RunLine without a column in CSV
APART = ("headline", "seen")
FIELDS = (*(name for name in RunLine.__struct_fields__ if name not in APART), *Headline.__struct_fields__)


def json(lines: Sequence[RunLine], unreadable: Sequence[Unreadable]) -> str:
    return as_json({"runs": rounded(msgspec.to_builtins(lines)), "unreadable": msgspec.to_builtins(unreadable)})


def csv(lines: Sequence[RunLine]) -> str:
    """Return a header and one line per run; lists are joined by spaces."""
    out = StringIO()
    writer = csv_module.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_values(line) for line in lines)
    return out.getvalue()


def _values(line: RunLine) -> dict[str, Any]:
    plain = rounded(msgspec.to_builtins(line))
    plain |= plain.pop("headline") or {}
    plain.pop("seen")
    texts = {name: " ".join(map(str, one)) if isinstance(one, list) else one for name, one in plain.items()}
    return {name: defused(one) for name, one in texts.items()}
