"""The history as a page: a figure per group and world size, and a line for every run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from statistics import median

from scaling.analysis.table import catalogue
from scaling.analysis.table.rows import Column
from scaling.report import labels
from scaling.report.figures.parts import Curve, Dot, Figure, Table, Trends
from scaling.report.formats.html.page import Shown, data_link, drawn, fill, shown, toned
from scaling.report.parts import NONE, Line
from scaling.text import counted, fixed
from scaling.tools.history import formats
from scaling.tools.history.formats import COLUMNS, TITLE, document
from scaling.tools.history.lines import RunLine, Sight, Unreadable

# ---------------------------------------------------------------- figures


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
    dots, groups = 0, _groups(lines)
    for key, seen in groups:
        trends = _trends(seen)
        dots += sum(len(trend.dots) for trend in trends)
        if found and dots > MOST_DOTS:
            break
        found.append(_figure(key, seen, trends))
    more = len(groups) - len(found)
    return found, f"{more} of {len(groups)} figures, those of the oldest groups, are left out" if more else ""


def _groups(lines: Sequence[RunLine]) -> list[tuple[Key, Seen]]:
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


def render(folder: str, lines: Sequence[RunLine], unreadable: Sequence[Unreadable]) -> str:
    """Return the page of the runs in `folder`, the oldest first. The same runs give the same bytes."""
    doc = document(folder, lines, unreadable)
    found, left_out = figures(lines)
    notices = [*doc.notices, *filter(None, [left_out])]
    if len(lines) > MOST_LINES:
        notices.append(f"the table has the last {MOST_LINES} of {len(lines)} runs; rows.csv has all")
    pictures = list(drawn(found))
    values = {
        "title": f"{TITLE}: {folder}",
        "heading": TITLE,
        "subject": f"{counted(len(lines), 'run')} in {folder}",
        "notices": notices,
        "drawn": pictures,
        "columns": (NUMBER, *(NAME if column.key == "run" else column for column in COLUMNS), MARKS),
        "rows": list(_rows(doc.sections[0].lines))[-MOST_LINES:][::-1] if lines else [],
        "facts": doc.facts,
        "reading": doc.how_to_read,
        "csv": data_link(formats.csv(lines)),
        "parts": [*([("figures", "Figures")] if pictures else []), *PARTS],
    }
    return fill(TEMPLATE, values)


def _rows(lines: Sequence[Line]) -> Iterator[tuple[Shown, ...]]:
    for number, line in enumerate(lines, start=1):
        marks = Shown(text=line.remark, is_text=True, marks=toned(line.flags))
        yield Shown(text=str(number), value=str(number)), *(_cell(line, column) for column in COLUMNS), marks


def _cell(line: Line, column: Column) -> Shown:
    cell = line.cells.get(column.key)
    return Shown(text=str(cell), is_text=True) if column.is_text else shown(cell, column)
