"""Where each row's time went: its efficiency and its losses by cause, as one bar. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import drawn, serious
from scaling.analysis.table.entries import Column
from scaling.analysis.table.rows import Row
from scaling.report import words
from scaling.report.figures.parts import Bar, Bars, Figure, Table, shortened
from scaling.report.headline import headline
from scaling.report.material import Material

EFFICIENCY = "efficiency"
LABEL_WIDTH = 34
# More bars than these are no figure any more.
MOST = 40


def loss(material: Material) -> Iterator[Figure]:
    """One bar per row, those of several devices where there are too many."""
    rows = shown(material.rows)
    if not any(row.breakdown for row in rows):
        return
    causes = catalogue.causes(rows)
    names = (EFFICIENCY, *(cause.title for cause in causes))
    made = tuple(_bar(row, label, causes) for row, label in zip(rows, row_labels(material, rows), strict=True))
    yield Figure(
        name="loss",
        title="Where the time went, by cause",
        says=_says(material, rows, made, names),
        body=Bars(names=names, bars=made),
        table=Table(("row", *(f"{name}, %" for name in names), "marks"), tuple(map(_line, made))),
        stamps=serious({flag for row in rows for flag in row.flags}),
        left_out=left_out(material.rows, rows),
    )


def shown(rows: Sequence[Row]) -> list[Row]:
    """As many as have room: all, or those of the largest world sizes."""
    if len(rows) <= MOST:
        return list(rows)
    largest = sorted(range(len(rows)), key=lambda at: rows[at].world_size, reverse=True)[:MOST]
    return [rows[at] for at in sorted(largest)]


def left_out(rows: Sequence[Row], drawn: Sequence[Row]) -> str:
    """That some are missing; nothing where none is."""
    more = len(rows) - len(drawn)
    return f"{more} of {len(rows)} rows, those of smaller world sizes, are in the table only" if more else ""


def row_labels(material: Material, rows: Sequence[Row]) -> tuple[str, ...]:
    """`torch:nccl over ib0 N=16`, cut where too long."""
    names = tuple(material.label(row) for row in rows)
    cut = dict(zip(names, shortened(names, LABEL_WIDTH), strict=True))
    return tuple(f"{cut[name]} N={row.world_size}" for name, row in zip(names, rows, strict=True))


def _bar(row: Row, label: str, causes: Sequence[Column]) -> Bar:
    mark = drawn(row.flags)
    if row.failed is not None:
        return Bar(label=label, says=f"failed: {row.failed.cause}", mark=mark)
    if row.efficiency is None or row.breakdown is None:
        return Bar(label=label, says=catalogue.claimless(row) or "no baseline", mark=mark)
    parts = [getattr(row.breakdown, cause.key) for cause in causes]
    return Bar(
        label=label,
        parts=(100 * row.efficiency.mean, *(None if part is None else 100 * part for part in parts)),
        says=catalogue.NOT_COMPARABLE if row.learnt_less else "",
        mark=mark,
    )


def _line(bar: Bar) -> tuple[str, ...]:
    numbers = [words.NONE if part is None else words.number(part, 1) for part in bar.parts]
    shown = [bar.says, *numbers[1:]] if bar.says else numbers
    return (bar.label, *shown, bar.mark)


def _says(material: Material, rows: Sequence[Row], made: Sequence[Bar], names: Sequence[str]) -> str:
    """The headline's bar in words."""
    row = headline(material.rows)
    said = [_said(bar, names) for bar, of in zip(made, rows, strict=True) if of is row]
    return f"A bar per row; {said[0] if said else 'the ideal is 100 %'}"


def _said(bar: Bar, names: Sequence[str]) -> str:
    if bar.says:
        return f"{bar.label} {bar.says}"
    parts = [
        f"{name} {words.number(part, 1)} %"
        for name, part in zip(names, bar.parts, strict=True)
        if part is not None
    ]
    return f"{bar.label}: {', '.join(parts)}"
