"""The history command, `python -m scaling history RESULTS_DIR`, and its formats: tables, JSON, CSV, the page."""

from __future__ import annotations

import csv as csv_module
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from itertools import starmap
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from scaling import text
from scaling.analysis.table import catalogue
from scaling.analysis.table.rows import PERCENT, Column
from scaling.command import deliver, has_color, obey
from scaling.errors import UsageError
from scaling.report import labels, quantities
from scaling.report.figures.parts import Curve, Dot, Figure, Table, Trends
from scaling.report.formats import markdown, terminal
from scaling.report.formats.csv import defused
from scaling.report.parts import NONE, Cell, Document, Entry, Line, Quantity, Section
from scaling.text import as_json, fixed, readable, rounded
from scaling.tools.history import flags
from scaling.tools.history.flags import Asked
from scaling.tools.history.lines import Headline, RunLine, Sight, Unreadable, read

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


# ---------------------------------------------------------------- figures of the page


# in one figure; more are not distinguishable
MOST_TRENDS = 16
MOST_RUNS = 250
# in one page, about 100 bytes each
MOST_DOTS = 8000
# Key: letter, unit, world size. Seen: by exchange and number of the run.
Key = tuple[str, str, int]
Seen = Mapping[str, Mapping[int, Sight]]


def figures(lines: Sequence[RunLine]) -> tuple[list[Figure], str]:
    """Return a figure per group of runs and world size, newest first, and a remark on figures left out."""
    found: list[Figure] = []
    dots, groups = 0, _series(lines)
    for key, seen in groups:
        trends = _trends(seen)
        dots += sum(len(trend.dots) for trend in trends)
        if found and dots > MOST_DOTS:
            break
        found.append(_figure(key, seen, trends))
    more = len(groups) - len(found)
    return found, f"{more} of {len(groups)} figures, those of the oldest groups, are left out" if more else ""


def _series(lines: Sequence[RunLine]) -> list[tuple[Key, Seen]]:
    by_key: dict[Key, list[tuple[int, Sight]]] = defaultdict(list)
    newest: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        newest[line.like] = number
        for sight in line.seen:
            by_key[line.like, sight.unit, sight.world_size].append((number, sight))
    several = [key for key, sights in by_key.items() if len({number for number, _ in sights}) > 1]
    ordered = sorted(several, key=lambda key: (-newest[key[0]], key[1], -key[2]))
    return [(key, _named(by_key[key])) for key in ordered]


def _named(sights: Sequence[tuple[int, Sight]]) -> Seen:
    shared = frozenset.intersection(*(frozenset(sight.contender.options.items()) for _, sight in sights))
    tells_work = len({sight.work for _, sight in sights}) > 1
    found: dict[str, dict[int, Sight]] = defaultdict(dict)
    for number, sight in sights:
        of = sight.contender
        servers = f"{of.servers} servers {of.server_hosts}" if of.servers else ""
        parts = (labels.exchange(of, shared), servers, sight.work if tells_work else "")
        found[", ".join(filter(None, parts))][number] = sight
    return found


def _trends(seen: Seen) -> tuple[Curve, ...]:
    kept = sorted(seen, key=lambda name: -len(seen[name]))[:MOST_TRENDS]
    return tuple(
        Curve(name, number, tuple(starmap(_dot, sorted(by_run.items())))[-MOST_RUNS:])
        for number, (name, by_run) in enumerate(sorted(seen.items()))
        if name in kept
    )


def _dot(run: int, sight: Sight) -> Dot:
    return Dot(run, sight.units_per_s, mark=catalogue.drawn(sight.flags))


def _figure(key: Key, seen: Seen, trends: tuple[Curve, ...]) -> Figure:
    like, unit, world_size = key
    title = f"{like}, N={world_size}: {unit}/s of each run"
    left_out = [f"{len(seen) - len(trends)} exchanges that were measured least"] if len(seen) > len(trends) else []
    if max(map(len, seen.values())) > MOST_RUNS:
        left_out.append(f"runs before the last {MOST_RUNS}")
    return Figure(
        name="history",
        title=title,
        says=f"{title}: {'; '.join(map(_said, trends))}",
        body=Trends(upright=f"{unit}/s", across="run", curves=trends),
        table=_table(trends),
        stamps=catalogue.serious(
            {flag for by_run in seen.values() for sight in by_run.values() for flag in sight.flags}
        ),
        left_out=" and ".join(left_out),
    )


def _said(trend: Curve) -> str:
    """`fake:a 1174 in run 12, -4.9 % from the median of the 11 before`."""
    *before, last = trend.dots
    newest = f"{trend.label} {last.value:.4g} in run {last.at}"
    if not before:
        return newest
    change = 100 * (last.value / median(turn.value for turn in before) - 1)
    return f"{newest}, {fixed(change, 1)} % from the median of the {len(before)} before"


def _table(trends: Sequence[Curve]) -> Table:
    columns = [{turn.at: f"{turn.value:,.4g} {turn.mark}".rstrip() for turn in trend.dots} for trend in trends]
    runs = sorted(set().union(*columns), reverse=True)
    lines = ((str(at), *(column.get(at, NONE) for column in columns)) for at in runs)
    return Table(("run", *(trend.label for trend in trends)), tuple(lines))


# ---------------------------------------------------------------- page

TEMPLATE = Path(__file__).with_name("page.html.j2")
# lines of the table; browsers are slow with more
MOST_LINES = 2000
NUMBER = Column(key="number", title="run")
NAME = Column(key="run", title="name", is_text=True)
MARKS = Column(key="marks", title="marks", is_text=True)
PARTS = (("tables", "Runs"), ("groups", "Groups"), ("data", "Data"), ("reading", "How to read"))


def page(folder: str, lines: Sequence[RunLine], unreadable: Sequence[Unreadable]) -> str:
    """Return the page of the runs in `folder`, the oldest first. The same runs give the same bytes. Raises
    UsageError without the page's libraries, which load slowly."""
    try:
        from scaling.report.formats import html
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed: pip install matplotlib jinja2"
        raise UsageError(f"--format html: {missing}") from None
    doc = document(folder, lines, unreadable)
    found, left_out = figures(lines)
    notices = [*doc.notices, *filter(None, [left_out])]
    if len(lines) > MOST_LINES:
        notices.append(f"the table has the last {MOST_LINES} of {len(lines)} runs; rows.csv has all")
    pictures = list(html.drawn(found))
    values = {
        "title": f"{TITLE}: {folder}",
        "heading": TITLE,
        "subject": f"{text.counted(len(lines), 'run')} in {folder}",
        "notices": notices,
        "drawn": pictures,
        "columns": (NUMBER, *(NAME if column.key == "run" else column for column in COLUMNS), MARKS),
        "rows": list(_rows(doc.sections[0].lines))[-MOST_LINES:][::-1] if lines else [],
        "facts": doc.facts,
        "reading": doc.how_to_read,
        "csv": html.data_link(csv(lines)),
        "parts": [*([("figures", "Figures")] if pictures else []), *PARTS],
    }
    return html.fill(TEMPLATE, values)


def _rows(lines: Sequence[Line]) -> Iterator[tuple[object, ...]]:
    from scaling.report.formats.html import Shown, shown, toned

    for number, line in enumerate(lines, start=1):
        cells = [(line.cells.get(column.key), column) for column in COLUMNS]
        yield (
            Shown(text=str(number), value=str(number)),
            *(Shown(text=str(of), is_text=True) if column.is_text else shown(of, column) for of, column in cells),
            Shown(text=line.remark, is_text=True, marks=toned(line.flags)),
        )


# ---------------------------------------------------------------- command


def rendered(asked: Asked) -> str:
    """Render the history. Raises UsageError for HTML on a terminal."""
    if asked.format == "html" and asked.output is None and sys.stdout.isatty():
        raise UsageError("--format html: not for a terminal; add --output FILE.html")
    lines, unreadable = read(asked.results, all_exchanges=asked.format == "html")
    match asked.format:
        case "json":
            return json(lines, unreadable)
        case "csv":
            return csv(lines)
        case "html":
            return page(readable(asked.results.resolve().name), lines, unreadable)
        case "markdown":
            return markdown.draw(document(str(asked.results), lines, unreadable))
        case "table":
            return terminal.draw(document(str(asked.results), lines, unreadable), color=has_color(asked.output))


def _act(argv: Sequence[str]) -> None:
    if asked := flags.parse(argv):
        deliver(rendered(asked), asked.output)


def main(argv: Sequence[str] | None = None) -> int:
    return obey(_act, argv, flags.NAME)


if __name__ == "__main__":
    raise SystemExit(main())
