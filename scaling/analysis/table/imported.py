"""Rows from logs of other tools; several logs of a cell are one row.

speedup = rate(N) / rate(1), efficiency = speedup / N. rate(1) is of the same tool, model, batch per device and
precision in the same import. If model or batch are unknown, no efficiency is claimed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate, geometric
from scaling.records.point import Record
from scaling.records.run import ImportedRow, ImportedUnit

IMPORTED = "IMPORTED"
Key = tuple[object, ...]


class Imported(Record, frozen=True, kw_only=True):
    """A cell of an import. `rate` is in `unit` per second over all devices; None if it failed.

    With several logs, each a launch, `rate` has an interval. `batch_size` is per device, 0 if unknown.
    """

    tool: str
    model: str
    precision: str
    unit: ImportedUnit
    world_size: int
    batch_size: int
    synchronous: bool
    rate: Estimate | None
    logs: tuple[str, ...]
    speedup: float | None = None
    efficiency: float | None = None
    flags: tuple[str, ...] = (IMPORTED,)
    failed: str = ""
    notes: tuple[str, ...] = ()
    run: str = ""


def cells(rows: Iterable[ImportedRow]) -> tuple[Imported, ...]:
    """Return one cell per tool, model, batch, precision and number of devices, curve by curve."""
    found: dict[Key, list[ImportedRow]] = defaultdict(list)
    for row in rows:
        found[(_curve(row), row.world_size)].append(row)
    made = [_cell(of_cell) for of_cell in found.values()]
    order = {key: place for place, key in enumerate(dict.fromkeys(map(_curve, made)))}
    made.sort(key=lambda cell: (order[_curve(cell)], cell.world_size))
    alone = {_curve(cell): cell for cell in made if cell.world_size == 1}
    return tuple(_against(cell, alone.get(_curve(cell))) for cell in made)


def _curve(row: ImportedRow | Imported) -> Key:
    return (
        row.run, row.tool, row.model.casefold(), row.batch_size, row.precision.casefold(), row.unit,
        row.synchronous,
    )  # fmt: skip


def curves(found: Iterable[Imported]) -> list[list[Imported]]:
    """Group the cells that differ only in their number of devices."""
    by_key: dict[Key, list[Imported]] = defaultdict(list)
    for cell in found:
        by_key[_curve(cell)].append(cell)
    return list(by_key.values())


def _cell(rows: Sequence[ImportedRow]) -> Imported:
    first = rows[0]
    rates = [row.rate for row in rows if row.rate is not None]
    failed = next((row.failed for row in rows if row.failed), "") if not rates else ""
    audits = [row.audit for row in rows if row.audit]
    flags = [IMPORTED, *(["FAILED"] if failed else []), *(["AUDIT"] if audits else [])]
    notes = [*audits, *(f"{row.log}: {row.failed}" for row in rows if row.failed)]
    return Imported(
        tool=first.tool,
        model=first.model,
        precision=first.precision,
        unit=first.unit,
        world_size=first.world_size,
        batch_size=first.batch_size,
        synchronous=first.synchronous,
        rate=geometric(rates) if rates else None,
        logs=tuple(row.log for row in rows),
        flags=(*flags, *(() if first.synchronous else ("ASYNC",))),
        failed=failed,
        notes=tuple(dict.fromkeys((*notes, *(note for row in rows for note in row.notes)))),
        run=first.run,
    )


def _against(cell: Imported, alone: Imported | None) -> Imported:
    if alone is None or alone.rate is None or cell.rate is None:
        return cell
    if "AUDIT" in (*cell.flags, *alone.flags):
        return cell
    if why := _unknown(cell):
        return replace(cell, notes=(*cell.notes, why))
    speedup = cell.rate.mean / alone.rate.mean
    return replace(cell, speedup=speedup, efficiency=speedup / cell.world_size)


def _unknown(cell: Imported) -> str:
    lacking = [flag for flag, known in (("--model", cell.model), ("--batch-size", cell.batch_size)) if not known]
    if not lacking:
        return ""
    flags = " and ".join(lacking)
    return f"no efficiency: the logs do not say whether one device did the same work; import with {flags}"
