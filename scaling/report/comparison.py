"""Which strategy and network is the best at each world size: one line per row, asynchronous ones apart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from scaling.analysis.rows import Row
from scaling.report import cells, labels, quantities
from scaling.report.labels import Context
from scaling.report.parts import Line, Notes, Phrase, Section

TITLE = "Comparison at each world size"


def comparisons(rows: Sequence[Row], context: Context, planned: int, notes: Notes) -> tuple[Section, ...]:
    """A table per group of rows that may be compared; world sizes at which a row has no rival are left out."""
    groups: dict[int, dict[int, list[Row]]] = {}
    for row in rows:
        groups.setdefault(row.group, {}).setdefault(row.world_size, []).append(row)
    with_rivals = ([rivals for _, rivals in sorted(sizes.items()) if len(rivals) > 1] for sizes in groups.values())
    return tuple(_section(by_size, context, planned, notes) for by_size in with_rivals if by_size)


def _section(by_size: Sequence[Sequence[Row]], context: Context, planned: int, notes: Notes) -> Section:
    first = by_size[0][0]
    return Section(
        title=", ".join((TITLE, *labels.varying(first, context))),
        columns=(
            cells.NAME,
            cells.rate_column(first.workload.unit, shows_interval=False),
            cells.AGAINST_BEST,
            cells.EFFICIENCY,
            *cells.breakdown_columns(is_strong=first.workload.is_strong),
        ),
        lines=tuple(line for rivals in by_size for line in _lines(rivals, context, planned, notes)),
        group=first.group,
    )


def _lines(rivals: Sequence[Row], context: Context, planned: int, notes: Notes) -> Iterable[Line]:
    """Synchronous rows by their rate, then the asynchronous ones."""
    size = f"N = {rivals[0].world_size}"
    waiting = [row for row in rivals if row.synchronous]
    others = [row for row in rivals if not row.synchronous]
    apart = f"{size}, asynchronous: ranked among themselves" if others else size
    for rows, label in ((waiting, size), (others, apart)):
        for index, row in enumerate(sorted(rows, key=_rate, reverse=True)):
            marks = notes.marks(cells.notes_of(row, planned))
            line = cells.line(row, labels.name(row, context), above=label if index == 0 else "", marks=marks)
            yield replace(line, remark=_remark(row, waiting))


def _rate(row: Row) -> float:
    return row.samples_per_s.mean if row.samples_per_s else -1.0


def _remark(row: Row, synchronous: Sequence[Row]) -> Phrase:
    """What an asynchronous row's samples are worth beside those of the synchronous ones."""
    if row.synchronous:
        return ()
    staleness: Phrase = () if row.staleness is None else ("staleness ", quantities.steps(row.staleness))
    if row.loss_at is None or row.loss_at_samples is None:
        return staleness
    return (
        *staleness,
        ", loss " if staleness else "loss ",
        quantities.training_loss(row.loss_at),
        " after ",
        quantities.samples(row.loss_at_samples, row.workload.unit),
        *_beside([other.loss_at for other in synchronous if other.loss_at is not None]),
    )


def _beside(losses: Sequence[float]) -> Phrase:
    """`(synchronous: 0.576 to 0.920)`."""
    if not losses:
        return ()
    low, high = quantities.training_loss(min(losses)), quantities.training_loss(max(losses))
    return " (synchronous: ", *quantities.low_to_high(low, high), ")"
