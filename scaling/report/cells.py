"""The columns of tables, and the cells that a row has for them. Pure."""

from __future__ import annotations

from scaling.analysis.breakdown import Breakdown
from scaling.analysis.rows import Row
from scaling.records.point import Unit
from scaling.report import quantities
from scaling.report.parts import Cell, Column, Line

BREAKDOWN = "loss by cause"
RATE = "samples_per_s"

NAME = Column(key="name", title="contender", is_text=True)
WORLD_SIZE = Column(key="world_size", title="N")
NODES = Column(key="nodes", title="nodes")
BATCH_SIZE = Column(key="batch_size", title="batch per device")
SPEEDUP = Column(key="speedup", title="speedup", shows_interval=False)
AGAINST_BEST = Column(
    key="against_best", title="against the best", unit=quantities.PERCENT, is_text=True, unit_in_cells=True
)
EFFICIENCY = Column(key="efficiency", title="efficiency", unit=quantities.PERCENT, unit_in_cells=True)
_CAUSES = {
    "contention": "contention",
    "straggling": "straggling",
    "exposed": "exposed comm.",
    "small_batch": "small batch",
    "unexplained": "unexplained",
}


def rate_column(unit: Unit, *, shows_interval: bool = True) -> Column:
    """Samples per second, called what samples are: `images/s`."""
    return Column(key=RATE, title=f"{unit}/s", unit=f"{unit}/s", shows_interval=shows_interval)


def breakdown_columns(*, is_strong: bool) -> tuple[Column, ...]:
    """One per cause of lost efficiency; the batch per device shrinks under the strong rule alone."""
    return tuple(
        Column(key=cause, title=title, unit=quantities.PERCENT, group=BREAKDOWN, shows_interval=False)
        for cause, title in _CAUSES.items()
        if is_strong or cause != "small_batch"
    )


def line(row: Row, name: str, *, above: str, marks: tuple[int, ...]) -> Line:
    """All cells of a row that was measured, and what is said in the place of those that it does not have."""
    cells: dict[str, Cell] = {
        NAME.key: name,
        WORLD_SIZE.key: quantities.integer(row.world_size),
        NODES.key: quantities.integer(row.nodes),
        BATCH_SIZE.key: quantities.integer(row.workload.batch_size),
    }
    if row.failed is not None:
        says = f"failed: {row.failed.cause}"
    else:
        measured, says = _measured(row)
        cells |= measured
    return Line(cells=cells, says=says, flags=row.flags, above=above, marks=marks)


def _measured(row: Row) -> tuple[dict[str, Cell], str]:
    cells: dict[str, Cell] = {
        RATE: quantities.rate(row.samples_per_s, row.workload.unit),
        SPEEDUP.key: quantities.speedup(row.speedup),
        AGAINST_BEST.key: quantities.against_best(row),
    }
    if row.efficiency is None or row.breakdown is None:
        return cells, "OVERSUBSCRIBED" if "OVERSUBSCRIBED" in row.flags else "no baseline"
    cells[EFFICIENCY.key] = quantities.percent(row.efficiency)
    return {**cells, **_lost(row, row.breakdown)}, ""


def _lost(row: Row, breakdown: Breakdown) -> dict[str, Cell]:
    """By cause; None where the control that tells it was not measured."""
    found: dict[str, Cell] = {}
    for cause in _CAUSES:
        value: float | None = getattr(breakdown, cause)
        interval = row.breakdown_intervals.get(cause)
        found[cause] = None if value is None else quantities.fraction(value, interval)
    return found


def notes_of(row: Row, planned: int) -> tuple[str, ...]:
    """The row's footnotes; one that a broken-off run left with fewer rounds than `planned` says so."""
    fewer = (f"{row.rounds_tried} of {planned} rounds measured",) if row.rounds_tried < planned else ()
    return (*fewer, *row.footnotes)
