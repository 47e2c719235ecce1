"""Every round of every row: how far repetitions lie apart. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from scaling.report import words
from scaling.report.figures.loss import left_out, row_labels, shown
from scaling.report.figures.parts import Figure, Spread, Spreads, Table, mark_of, stamps
from scaling.report.material import Material


def rounds(material: Material) -> Iterator[Figure]:
    """Samples/s of each round against the mean of its row."""
    rows = [row for row in shown(material.rows) if row.rounds]
    if not rows:
        return
    found = []
    for row, label in zip(rows, row_labels(material, rows), strict=True):
        rates = material.cell(row).rates
        values = tuple(100 * (rate / fmean(rates) - 1) for rate in rates)
        found.append(Spread(label=label, values=values, mark=mark_of(row.flags)))
    widest = max(found, key=lambda one: max(one.values) - min(one.values))
    yield Figure(
        name="rounds",
        title="Every round, against the mean of its row",
        says=(
            f"The rounds of {widest.label} lie farthest apart: from {words.number(min(widest.values), 1)} to "
            f"{words.number(max(widest.values), 1)} % off their mean"
        ),
        body=Spreads(spreads=tuple(found)),
        table=Table(("row", "rounds, % off the mean", "marks"), tuple(map(_line, found))),
        stamps=stamps({flag for row in rows for flag in row.flags}),
        left_out=left_out([row for row in material.rows if row.rounds], rows),
    )


def _line(one: Spread) -> tuple[str, ...]:
    return one.label, ", ".join(words.number(value, 2) for value in one.values), one.mark
