"""Who is better at each world size: one line per contender, synchronous and asynchronous ones apart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling import text
from scaling.analysis.rows import Row
from scaling.report import labels, words
from scaling.report.curves import efficiency_cells, notes_of, shown_flags
from scaling.report.labels import Context
from scaling.report.parts import (
    AGAINST_BEST,
    CONTENDER,
    EFFICIENCY,
    RATE,
    Line,
    Notes,
    Section,
    breakdown_columns,
)

TITLE = "Comparison at each world size"


def comparisons(rows: Sequence[Row], known: Context, planned: int, notes: Notes) -> tuple[Section, ...]:
    """A table per way of measuring that has rivals at some world size; sizes without rivals are left out."""
    by_group: dict[int, dict[int, list[Row]]] = {}
    for row in rows:
        by_group.setdefault(row.group, {}).setdefault(row.world_size, []).append(row)
    found = []
    for by_size in by_group.values():
        rivals = [of_size for _, of_size in sorted(by_size.items()) if len(of_size) > 1]
        if rivals:
            found.append(_section(rivals, known, planned, notes))
    return tuple(found)


def _section(rivals: Sequence[Sequence[Row]], known: Context, planned: int, notes: Notes) -> Section:
    first = rivals[0][0]
    return Section(
        title=", ".join((TITLE, *labels.varying(first, known))),
        columns=(
            CONTENDER,
            RATE,
            AGAINST_BEST,
            EFFICIENCY,
            *breakdown_columns(is_strong=first.workload.batch_rule == "strong"),
        ),
        lines=tuple(line for of_size in rivals for line in _lines(of_size, known, planned, notes)),
    )


def _lines(rivals: Sequence[Row], known: Context, planned: int, notes: Notes) -> Iterable[Line]:
    """Synchronous contenders by images/s, then the asynchronous ones."""
    size = f"N = {rivals[0].world_size}"
    waiting = [row for row in rivals if row.synchronous]
    others = [row for row in rivals if not row.synchronous]
    apart = f"{size}, asynchronous: ranked among themselves" if others else size
    for rows, label in ((waiting, size), (others, apart)):
        for index, row in enumerate(sorted(rows, key=_rate, reverse=True)):
            marks = notes.marks(notes_of(row, planned))
            yield _line(row, known, marks, label if index == 0 else "", _remark(row, waiting))


def _rate(row: Row) -> float:
    return row.samples_per_s.mean if row.samples_per_s else -1.0


def _line(row: Row, known: Context, marks: tuple[int, ...], above: str, remark: str) -> Line:
    cells, says = [labels.contender(row, known)], ""
    if row.failed is not None:
        says = f"failed: {row.failed.cause}"
    else:
        efficiency, says = efficiency_cells(row)
        cells += [words.mean_rate(row.samples_per_s), words.standing(row), *efficiency]
    return Line(
        cells=tuple(cells),
        says=says,
        flags=shown_flags(row, says),
        remark=remark,
        marks=marks,
        above=above,
        efficiency=row.efficiency.mean if row.efficiency else None,
    )


def _remark(row: Row, synchronous: Sequence[Row]) -> str:
    """What an asynchronous contender's images are worth beside those of the synchronous ones."""
    if row.synchronous:
        return ""
    parts = [] if row.staleness is None else [f"staleness {row.staleness:.2f}"]
    if row.loss_at is not None:
        others = [one.loss_at for one in synchronous if one.loss_at is not None]
        beside = f" (synchronous: {text.low_to_high(others)})" if others else ""
        parts.append(f"loss {words.loss_at(row)} after {words.images(row.loss_at_samples)}{beside}")
    return ", ".join(parts)
