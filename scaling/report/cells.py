"""The columns of tables, and the cells that a row has for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from scaling.analysis.measured.audit import CLAIMLESS, WRONG
from scaling.analysis.measured.breakdown import Breakdown
from scaling.analysis.table.rows import Row
from scaling.records.events import Failed
from scaling.records.point import Unit
from scaling.report import quantities
from scaling.report.parts import Cell, Column, Line

BREAKDOWN = "loss by cause"
# The efficiency of asynchronous ranks that learnt less from as many samples.
NOT_COMPARABLE = "not comparable"
RATE = "samples_per_s"
# In the place of a standing: its bytes took another network than its name says.
NOT_RANKED = "not ranked"

NAME = Column(key="name", title="contender", is_text=True)
WORLD_SIZE = Column(key="world_size", title="N")
NODES = Column(key="nodes", title="nodes")
BATCH_SIZE = Column(key="batch_size", title="batch per device")
SPEEDUP = Column(key="speedup", title="speedup", shows_interval=False)
AGAINST_BEST = Column(
    key="against_best", title="against the fastest", unit=quantities.PERCENT, is_text=True, unit_in_cells=True
)
WITHIN_FRAMEWORK = replace(AGAINST_BEST, title="within its framework")
AGAINST_FASTEST_FRAMEWORK = replace(AGAINST_BEST, key="against_fastest_framework")
TFLOPS = Column(key="tflops", title="TFLOP/s per device", shows_interval=False)
MFU = Column(key="mfu", title="MFU", unit=quantities.PERCENT, shows_interval=False)
UNKNOWN = "-"
EFFICIENCY = Column(key="efficiency", title="efficiency", unit=quantities.PERCENT, unit_in_cells=True)
CAUSES = {
    "contention": "contention",
    "straggling": "straggling",
    "exchange_cpu": "exchange's CPU",
    "servers": "servers",
    "waiting": "waiting",
    "data_wait": "data wait",
    "exposed": "exposed comm.",
    "small_batch": "small batch",
    "unexplained": "rest",
}


def rate_column(unit: Unit, *, shows_interval: bool = True) -> Column:
    """Samples per second, called what samples are: `images/s`."""
    return Column(key=RATE, title=f"{unit}/s", unit=f"{unit}/s", shows_interval=shows_interval)


def operations_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """What devices compute, where that is known; of CPUs nobody publishes a peak."""
    if all(row.tflops is None for row in rows):
        return ()
    return (TFLOPS,) if rows[0].hardware.device == "cpu" else (TFLOPS, MFU)


def told(rows: Iterable[Row]) -> frozenset[str]:
    """The causes that any of these rows tells; the batch per device shrinks under the strong rule alone."""
    lost = [(row.breakdown, row.workload.is_strong) for row in rows if row.breakdown is not None]
    return frozenset(
        cause
        for breakdown, is_strong in lost
        for cause in CAUSES
        if getattr(breakdown, cause) is not None and (is_strong or cause != "small_batch")
    )


def breakdown_columns(causes: Collection[str]) -> tuple[Column, ...]:
    """One for each of these causes of lost efficiency."""
    return tuple(
        Column(
            key=cause,
            title=title,
            unit=quantities.PERCENT,
            group=BREAKDOWN,
            shows_interval=False,
            brackets_noise=True,
        )
        for cause, title in CAUSES.items()
        if cause in causes
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
        says = outcome(row.failed)
    else:
        measured, says = _measured(row)
        cells |= measured
    return Line(cells=cells, says=says, flags=row.flags, above=above, marks=marks)


def outcome(failed: Failed) -> str:
    """What stands in the place of numbers; out of memory is an answer of its own."""
    return "OOM" if failed.cause == "oom" else f"failed: {failed.cause}"


def _measured(row: Row) -> tuple[dict[str, Cell], str]:
    cells: dict[str, Cell] = {
        RATE: quantities.rate(row.samples_per_s, row.workload),
        TFLOPS.key: quantities.tflops(row.tflops),
        MFU.key: UNKNOWN if row.mfu is None else quantities.fraction(row.mfu),
        SPEEDUP.key: None if row.learnt_less else quantities.speedup(row.speedup),
        AGAINST_BEST.key: NOT_RANKED if is_wrong(row) else quantities.against(row.standing),
        AGAINST_FASTEST_FRAMEWORK.key: quantities.against(row.framework_standing),
    }
    if row.efficiency is None or row.breakdown is None:
        return cells, claimless(row) or ("" if row.is_plain else "no baseline")
    cells[EFFICIENCY.key] = NOT_COMPARABLE if row.learnt_less else quantities.percent(row.efficiency)
    return {**cells, **_lost(row, row.breakdown)}, ""


def _lost(row: Row, breakdown: Breakdown) -> dict[str, Cell]:
    """By cause; None where the control that tells it was not measured."""
    found: dict[str, Cell] = {}
    for cause in CAUSES:
        value: float | None = getattr(breakdown, cause)
        interval = row.breakdown_intervals.get(cause)
        found[cause] = None if value is None else quantities.part(value, interval)
    return found


def claimless(row: Row) -> str:
    """The mark that takes all claims from a row; "" for none."""
    return next((mark for mark in CLAIMLESS if mark in row.flags), "")


def is_wrong(row: Row) -> bool:
    """Whether it is not what its name says, or its counts disagree."""
    return bool(WRONG.intersection(row.flags))


def notes_of(row: Row, planned: int) -> tuple[str, ...]:
    """The row's footnotes; one that a broken-off run left with fewer rounds than `planned` says so."""
    fewer = (f"{row.rounds_tried} of {planned} rounds measured",) if row.rounds_tried < planned else ()
    return (*fewer, *row.footnotes)
