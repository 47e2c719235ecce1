"""Predicted beside measured: a table of what was registered before the points were measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from time import gmtime, strftime

from scaling.analysis.table import catalogue
from scaling.analysis.table.entries import PERCENT, Column
from scaling.analysis.table.predictions import Judged, score
from scaling.report import quantities
from scaling.report.parts import Cell, Line, Notes, Section

TITLE = "PREDICTED before it was measured"
PREDICTED = Column(key="predicted", title="PREDICTED", unit=PERCENT)
BETWEEN = Column(key="between", title="80 % of it", is_text=True)
MEASURED = Column(key="measured", title="measured", unit=PERCENT)
ERROR = Column(key="error", title="error, points")
INSIDE = Column(key="inside", title="inside", is_text=True)
COLUMNS = (catalogue.NAME, catalogue.WORLD_SIZE, catalogue.NODES, PREDICTED, BETWEEN, MEASURED, ERROR, INSIDE)


def sections(found: Sequence[Judged], notes: Notes) -> tuple[Section, ...]:
    """One table of all curves; nothing where nothing was predicted."""
    if not found:
        return ()
    return (Section(title=_title(found), columns=COLUMNS, lines=tuple(_line(one, found, notes) for one in found)),)


def _title(found: Sequence[Judged]) -> str:
    sizes = sorted({one.up_to for one in found if one.up_to})
    upto = f", from N up to {sizes[-1]}" if sizes else ""
    total = score(found)
    if total is None:
        return f"{TITLE}{upto}"
    error = f"off by {100 * total.median_error:.1f} points in the median, {100 * total.largest_error:.1f} at most"
    return f"{TITLE}{upto}: {total.inside} of {total.points} inside their 80 % interval, {error}"


def _line(one: Judged, found: Sequence[Judged], notes: Notes) -> Line:
    at = strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(one.registered_unix_s))
    known: dict[str, Cell] = {
        catalogue.NAME.key: _name(one, found),
        catalogue.WORLD_SIZE.key: quantities.integer(one.world_size),
        catalogue.NODES.key: quantities.integer(one.nodes),
    }
    low, high = one.predicted_efficiency_low, one.predicted_efficiency_high
    if one.predicted_efficiency is None or low is None or high is None:
        return Line(cells=known, says="not predicted", flags=one.flags, marks=notes.marks([one.refused]))
    known[PREDICTED.key] = quantities.fraction(one.predicted_efficiency) if one.claimed else "not claimed"
    known[BETWEEN.key] = f"{100 * low:.0f} to {100 * high:.0f}"
    marks = notes.marks([f"written into the run at {at}", *one.notes])
    if one.measured_efficiency is None or one.error is None:
        return Line(cells=known, says="not measured", flags=one.flags, marks=marks)
    known[MEASURED.key] = quantities.percent(one.measured_efficiency)
    known[ERROR.key] = f"{100 * one.error:+.1f}"
    known[INSIDE.key] = ("yes" if one.inside else "no") if one.counts else "not judged"
    return Line(cells=known, flags=one.flags, marks=marks)


def _name(one: Judged, found: Sequence[Judged]) -> str:
    """Strategy and network, and of model and batch what is not the same in the whole table."""
    over = one.strategy if one.interconnect == "auto" else f"{one.strategy} over {one.interconnect}"
    works = [judged.workload for judged in found]
    model = (one.workload.model,) if len({work.model for work in works}) > 1 else ()
    batch = (f"batch {one.workload.batch_size}",) if len({work.batch_size for work in works}) > 1 else ()
    options = tuple(f"{key}={value}" for key, value in sorted(one.options.items()) if _differs(key, found))
    return ", ".join((over, *model, *batch, *options))


def _differs(key: str, found: Sequence[Judged]) -> bool:
    return len({one.options.get(key) for one in found}) > 1
