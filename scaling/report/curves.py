"""The scaling curves: a table per strategy and network. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.analysis.rows import Row
from scaling.report import cells, labels
from scaling.report.details import details
from scaling.report.labels import Context
from scaling.report.parts import Column, Line, Notes, Section


def by_curve(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each scaling curve, by world size."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.curve, []).append(row)
    return list(found.values())


def curve(
    rows: Sequence[Row], context: Context, planned: int, notes: Notes, stale: frozenset[tuple[int, int]]
) -> Section:
    """The table of one curve. `planned` are the rounds that each row should have; `stale` the groups
    and world sizes in which an asynchronous row takes part."""
    return Section(
        title=labels.title(rows, context),
        columns=_columns(rows),
        lines=tuple(
            _line(row, before, context, notes.marks(cells.notes_of(row, planned)))
            for row, before in zip(rows, (None, *rows[:-1]), strict=True)
        ),
        details=details(rows, stale),
        group=rows[0].group,
        is_curve=True,
    )


def _columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    first = rows[0]
    return (
        cells.WORLD_SIZE,
        *((cells.NODES,) if any(row.nodes > 1 for row in rows) else ()),
        *((cells.BATCH_SIZE,) if first.workload.is_strong else ()),
        cells.rate_column(first.workload.unit),
        *cells.operations_columns(rows),
        cells.SPEEDUP,
        cells.EFFICIENCY,
        *cells.breakdown_columns(cells.told(rows)),
    )


def _line(row: Row, before: Row | None, context: Context, marks: tuple[int, ...]) -> Line:
    crosses = row.nodes > 1 and before is not None and before.nodes == 1
    return cells.line(row, labels.name(row, context), above="several nodes" if crosses else "", marks=marks)
