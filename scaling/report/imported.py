"""Sections, facts and the last line of what was imported from logs of other tools.

Imported numbers are in tables of their own. They have no causes, no receipt and no rank, and an interval only over
several logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scaling.analysis.table.catalogue import EFFICIENCY, SPEEDUP, WORLD_SIZE
from scaling.analysis.table.imported import STRONG, UNKNOWN, Imported, cells, curves
from scaling.analysis.table.rows import Column
from scaling.records.run import Header, ImportedBandwidth
from scaling.report import quantities
from scaling.report.notes import Notes
from scaling.report.parts import NONE, Cell, Entry, Line, Quantity, Section
from scaling.text import counted, decimals, several

TITLE = "Imported"
LOGS = Column(key="logs", title="logs", is_text=True)
BASE = Column(key="base_world_size", title="base N")
STEPS = Column(key="steps", title="steps")
SPREAD = Column(key="spread", title="spread, %")
SIZE = Column(key="size", title="bytes")
TIME = Column(key="time", title="time, us")
ALGBW = Column(key="algbw", title="algbw, GB/s")
BUSBW = Column(key="busbw", title="busbw, GB/s")
PLACE = Column(key="place", title="place", is_text=True)
WRONG = Column(key="wrong", title="wrong")


def sections(header: Header, notes: Notes) -> Iterator[Section]:
    """Yield a table for each curve, then those of networks."""
    yield from (_curve(of_curve, notes) for of_curve in curves(cells(header.imported)))
    by_key: dict[tuple[str, ...], list[ImportedBandwidth]] = {}
    for one in header.bandwidths:
        parts = (one.tool, one.collective, f"N={one.world_size}", one.dtype, one.redop, one.log, one.run)
        by_key.setdefault(parts, []).append(one)
    for name, found in by_key.items():
        yield Section(
            title=f"{TITLE}, network: {', '.join(filter(None, name))}",
            columns=(SIZE, PLACE, TIME, ALGBW, BUSBW, WRONG),
            lines=tuple(_bandwidth(one, notes) for one in found),
        )


def notices(header: Header) -> Iterator[str]:
    if header.is_import:
        yield (
            f"IMPORTED: values printed by {several(tools(header))}; nothing was measured or checked here. One "
            "log gives no interval. No row is ranked or compared with rows of scaling.run"
        )


def facts(header: Header) -> Iterator[Entry]:
    logs = list(dict.fromkeys([*(row.log for row in header.imported), *(one.log for one in header.bandwidths)]))
    if logs:
        yield "imported", f"{counted(len(logs), 'log')}: {several(logs)} ({several(tools(header))})"


def tools(header: Header) -> list[str]:
    return list(dict.fromkeys([*(row.tool for row in header.imported), *(one.tool for one in header.bandwidths)]))


def headline(header: Header) -> Imported | None:
    """Return the fastest cell at the largest number of devices; None without any."""
    found = [cell for cell in cells(header.imported) if cell.rate is not None]
    return max(found, key=lambda cell: (cell.world_size, cell.rate.mean if cell.rate else 0.0), default=None)


def last_line(header: Header) -> str:
    """Return the line for programs; "" without imports."""
    cell = headline(header)
    if cell is not None and cell.rate is not None:
        speedup = NONE if cell.speedup is None else f"{cell.speedup:.2f}"
        efficiency = NONE if cell.efficiency is None else f"{cell.efficiency:.3f}"
        rate = f"{cell.rate.mean:.{max(1, decimals(cell.rate.mean))}f}"
        base = f" base N={cell.base_world_size}" if (cell.base_world_size or 1) > 1 else ""
        return (
            f"scaling: imported:{cell.tool} N={cell.world_size} {rate} {cell.unit}/s speedup {speedup} "
            f"efficiency {efficiency}{base} flags {','.join(cell.flags)}"
        )
    best = max(header.bandwidths, key=lambda one: one.busbw_gbytes_per_s, default=None)
    if best is None:
        return ""
    rate, flags = f"{best.busbw_gbytes_per_s:g} GB/s busbw", ",".join(_flags(best))
    return f"scaling: imported:{best.tool} N={best.world_size} {rate} speedup - efficiency - flags {flags}"


# ---------------------------------------------------------------- curves


def _curve(of_curve: Sequence[Imported], notes: Notes) -> Section:
    first = of_curve[0]
    parts = (
        first.tool,
        first.model or "model unknown",
        _batch(first),
        first.precision or "precision unknown",
        first.device_kind,
        first.framework,
        f"variables {first.variables}" if first.variables else "",
        "parallelism unknown" if first.parallelism == UNKNOWN else first.parallelism,
        first.label,
        first.run,
    )
    rate = Column(key="rate", title=f"{first.unit}/s", unit=f"{first.unit}/s")
    return Section(
        title=f"{TITLE}: {', '.join(filter(None, parts))}",
        columns=(WORLD_SIZE, rate, SPEEDUP, EFFICIENCY, BASE, STEPS, SPREAD, LOGS),
        lines=tuple(_line(cell, notes) for cell in of_curve),
    )


def _batch(cell: Imported) -> str:
    if cell.strong:
        return f"{STRONG}, global batch {cell.strong}"
    if not cell.batch_size:
        return "batch unknown"
    return f"batch {cell.batch_size} per {'replica' if cell.parallelism else 'device'}"


def _line(cell: Imported, notes: Notes) -> Line:
    rate, unit, base = cell.rate, f"{cell.unit}/s", cell.base_world_size
    found: dict[str, Cell] = {
        WORLD_SIZE.key: quantities.integer(cell.world_size),
        "rate": None if rate is None else _quantity(rate.mean, unit=unit, low=rate.low, high=rate.high),
        SPEEDUP.key: None if cell.speedup is None else Quantity(value=cell.speedup, digits=2),
        EFFICIENCY.key: None if cell.efficiency is None else quantities.fraction(cell.efficiency),
        BASE.key: None if base is None else quantities.integer(base),
        STEPS.key: quantities.integer(cell.steps) if cell.steps else None,
        SPREAD.key: None if cell.spread is None else quantities.fraction(cell.spread),
        LOGS.key: several(cell.logs, shown=2),
    }
    return Line(cells=found, flags=cell.flags, marks=notes.marks(cell.notes))


def _quantity(value: float, **more: Any) -> Quantity:
    return Quantity(value=value, digits=decimals(value), **more)


def _bandwidth(one: ImportedBandwidth, notes: Notes) -> Line:
    found: dict[str, Cell] = {
        SIZE.key: Quantity(value=one.size_bytes, digits=0, grouped=True),
        PLACE.key: "in-place" if one.in_place else "out-of-place",
        TIME.key: _quantity(1e6 * one.time_s),
        ALGBW.key: Quantity(value=one.algbw_gbytes_per_s, digits=2),
        BUSBW.key: Quantity(value=one.busbw_gbytes_per_s, digits=2),
        WRONG.key: None if one.wrong is None else quantities.integer(one.wrong),
    }
    return Line(cells=found, flags=_flags(one), marks=notes.marks(filter(None, (one.audit, *one.notes))))


def _flags(one: ImportedBandwidth) -> tuple[str, ...]:
    return ("IMPORTED", "AUDIT") if one.wrong or one.audit else ("IMPORTED",)
