"""Cells of imported rows, and the base of an efficiency.

A cell has one tool, model, batch per device, precision, device kind, framework, variables, parallelism, unit and
number of devices. Several logs of a cell are launches of it.

    speedup = rate(N) / rate(B)        efficiency = speedup x B / N

B, the base, is one device, or the devices of `--base`. A model that is split (tensor, pipeline, context or expert
parallelism above 1) does not run on one device: B is then the smallest number of devices with the same split.
Unknown values count as equal with `--same-work` alone. Rows whose batch per device shrinks while N grows, at one
global batch, are of strong scaling.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from msgspec.structs import replace

from scaling.analysis.measured.cell import SUPERLINEAR
from scaling.analysis.statistics.intervals import Estimate, geometric
from scaling.analysis.table.rows import shared
from scaling.records.point import Record
from scaling.records.run import ImportedRow, ImportedUnit
from scaling.text import counted

IMPORTED = "IMPORTED"
Key = tuple[object, ...]
# The fields of a cell with their names for people, in the order of titles.
FACTS = {
    "model": "model", "batch_size": "batch per device", "precision": "precision", "device_kind": "device kind",
    "framework": "framework", "variables": "variables", "unit": "unit", "synchronous": "synchronous",
    "label": "label",
}  # fmt: skip
# Without these a cell is unknown; the flags that add them.
NEEDED = {
    "model": "--model", "batch_size": "--batch-size", "precision": "--precision", "parallelism": "--parallelism",
}  # fmt: skip
# the parallelism of a tool that splits models, whose log does not say it
UNKNOWN = "unknown"
STRONG = "strong scaling"
_DEGREE = re.compile(r"([a-z_]+) *= *(\d+)")
# tensor, pipeline, context, expert: the parallelisms that split a model
DEGREES = ("tp", "pp", "cp", "ep")


class Imported(Record, frozen=True, kw_only=True):
    """A cell of an import. `rate` is in `unit` per second over all devices; None if it failed.

    With several logs, each a launch, `rate` has an interval. `batch_size` is per device, 0 if unknown.
    `parallelism`: the degrees above 1 by which the model is split, or "unknown".
    `base_world_size`: the devices of the row that speedup and efficiency are relative to; None without them.
    `base`: the devices that the user asks for as the base, 0 for the default.
    `steps`, `spread`: as in ImportedRow; of several logs the sum and the largest.
    `strong`: the global batch of the rows of a strong scaling, 0 for weak scaling.
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
    device_kind: str = ""
    framework: str = ""
    variables: str = ""
    parallelism: str = ""
    base_world_size: int | None = None
    label: str = ""
    steps: int = 0
    spread: float | None = None
    same_work: bool = False
    base: int = 0
    strong: int = 0


def cells(rows: Iterable[ImportedRow]) -> tuple[Imported, ...]:
    """Return the cells, curve by curve. A row that lacks a value of `NEEDED` is a cell of its own."""
    found: dict[Key, list[ImportedRow]] = defaultdict(list)
    for place, row in enumerate(rows):
        found[(_curve(row), row.world_size, place if lacking(row) else None)].append(row)
    made = [cell for curve in curves(_strong(list(map(_cell, found.values())))) for cell in curve]
    return tuple(_against(cell, made) for cell in made)


def curves(found: Iterable[Imported]) -> list[list[Imported]]:
    """Group the cells that differ only in their number of devices, which is their order."""
    by_key: dict[Key, list[Imported]] = defaultdict(list)
    for cell in found:
        by_key[_curve(cell)].append(cell)
    return [sorted(curve, key=lambda cell: cell.world_size) for curve in by_key.values()]


def _strong(made: Sequence[Imported]) -> list[Imported]:
    """Mark cells that share a global batch with other numbers of devices, and their batch per device with none."""
    alike: dict[Key, set[int]] = defaultdict(set)
    for cell in made:
        alike[_curve(cell)].add(cell.world_size)
        alike[_of_one_global(cell)].add(cell.world_size)
    return [
        replace(cell, strong=whole, notes=(f"{STRONG}: the global batch is {whole} on every N", *cell.notes))
        if (whole := global_batch_size(cell))
        and not lacking(cell)
        and len(alike[_curve(cell)]) < 2 <= len(alike[_of_one_global(cell)])
        else cell
        for cell in made
    ]


def _of_one_global(cell: Imported) -> Key:
    return (*_work(replace(cell, batch_size=0)), parallelism(cell), global_batch_size(cell) or 0, STRONG)


def lacking(one: ImportedRow | Imported) -> list[str]:
    """Return the flags that would add the values that the log lacks."""
    if one.same_work:
        return []
    known = {name: getattr(one, name) for name in NEEDED} | {"parallelism": parallelism(one) != UNKNOWN}
    return [flag for name, flag in NEEDED.items() if not known[name]]


def parallelism(one: ImportedRow | Imported) -> str:
    """Return the degrees that split the model, `tp=4,pp=2`: those above 1 without data parallelism. Or UNKNOWN."""
    if one.world_size == 1 or one.parallelism == UNKNOWN:
        return "" if one.world_size == 1 else UNKNOWN
    text = one.parallelism.casefold()
    degrees = {name: int(degree) for name, degree in _DEGREE.findall(text) if not name.startswith("dp")}
    order = (*DEGREES, *sorted(degrees.keys() - set(DEGREES)))
    return ",".join(f"{name}={degrees[name]}" for name in order if degrees.get(name, 1) > 1)


def _fact(one: ImportedRow | Imported, name: str) -> object:
    value = getattr(one, name)
    return value.casefold() if isinstance(value, str) else value


def _work(one: ImportedRow | Imported) -> Key:
    return (one.run, one.tool, *(_fact(one, name) for name in FACTS))


def _curve(one: ImportedRow | Imported) -> Key:
    if isinstance(one, Imported) and one.strong:
        return _of_one_global(one)
    return (*_work(one), parallelism(one))


def _cell(rows: Sequence[ImportedRow]) -> Imported:
    first = rows[0]
    rates = [row.rate for row in rows if row.rate is not None]
    failed = next((row.failed for row in rows if row.failed), "") if not rates else ""
    audits = [row.audit for row in rows if row.audit]
    flags = [IMPORTED, *(["FAILED"] if failed else []), *(["AUDIT"] if audits else [])]
    notes = [*audits, *(f"{row.log}: {row.failed}" for row in rows if row.failed)]
    own: dict[str, Any] = {
        "parallelism": parallelism(first),
        "rate": geometric(rates) if rates else None,
        "flags": (*flags, *(() if first.synchronous else ("ASYNC",))),
        "failed": failed,
        "notes": tuple(dict.fromkeys((*notes, *(note for row in rows for note in row.notes)))),
        "steps": sum(row.steps for row in rows),
        "spread": max((row.spread for row in rows if row.spread is not None), default=None),
    }
    return Imported(**{**shared(Imported, first), **own}, logs=tuple(row.log for row in rows))


# ---------------------------------------------------------------- base


def _against(cell: Imported, made: Sequence[Imported]) -> Imported:
    if cell.rate is None or "AUDIT" in cell.flags:
        return cell
    base = None if lacking(cell) else _base(cell, made)
    if base is None or base.rate is None:
        return replace(cell, notes=(_why_none(cell, made), *cell.notes))
    speedup = cell.rate.mean / base.rate.mean
    efficiency = speedup * base.world_size / cell.world_size
    cell = replace(cell, speedup=speedup, efficiency=efficiency, base_world_size=base.world_size)
    if efficiency <= SUPERLINEAR:
        return cell
    above = "above 100 %: the base is slow, its work is another, or memory or caches hold more per device"
    return replace(cell, flags=(*cell.flags, "SUPERLINEAR"), notes=(above, *cell.notes))


def _base(cell: Imported, made: Iterable[Imported]) -> Imported | None:
    """Return the row that the efficiency is over. A smallest row is its own base only on the fewest devices that
    its parallelism allows, or on those of `--base`."""
    key = _of_one_global if cell.strong else _work
    found = [one for one in made if _may_be_base(one, cell) and key(one) == key(cell) and _is_usable(one)]
    base = min(found, key=lambda one: one.world_size, default=None)
    return None if base is cell and cell.world_size not in (fewest(cell), cell.base) else base


def _may_be_base(one: Imported, cell: Imported) -> bool:
    """Check whether the number of devices and the parallelism of `one` make a base."""
    if cell.base:
        return one.world_size == cell.base <= cell.world_size
    return one.parallelism == cell.parallelism if cell.parallelism else one.world_size == 1


def _is_usable(one: Imported) -> bool:
    return one.rate is not None and "AUDIT" not in one.flags


def fewest(cell: Imported) -> int | None:
    """Return the fewest devices of its parallelism; None if unknown. Experts may share the devices of others."""
    degrees = dict(_DEGREE.findall(cell.parallelism))
    is_known = cell.parallelism != UNKNOWN and degrees.keys() <= {"tp", "pp", "cp"}
    return prod(map(int, degrees.values())) if is_known else None


def global_batch_size(cell: Imported) -> int | None:
    """Return the samples of a step of all devices; None if unknown. Devices that share a model share its batch."""
    shared = fewest(cell)
    return cell.batch_size * cell.world_size // shared if shared and cell.batch_size else None


def _why_none(cell: Imported, made: Sequence[Imported]) -> str:
    if flags := lacking(cell):
        lacks = " and ".join(FACTS.get(name, name) for name, flag in NEEDED.items() if flag in flags)
        return f"no efficiency and no interval: the log does not say its {lacks}; add {' and '.join(flags)}"
    devices = cell.base or fewest(cell)
    where = "fewer devices" if devices is None else counted(devices, "device")
    needs = f"no efficiency: it needs a row of {cell.parallelism or 'the same work'} on {where}"
    if cell.base > cell.world_size:
        return f"no efficiency: the base has {cell.base} devices"
    sizes = [one.world_size for one in made if _curve(one) == _curve(cell)]
    if not cell.base and min(sizes) < max(sizes):
        needs += f", or --base {min(sizes)}"
    others = [one for one in made if (one.tool, one.run) == (cell.tool, cell.run) and _may_be_base(one, cell)]
    smaller = [one for one in others if one.world_size < cell.world_size]
    nearest = min(smaller, key=lambda one: len(_differences(cell, one)), default=None)
    if nearest is None:
        return needs
    if not _is_usable(nearest):
        return f"{needs}; the one of {nearest.logs[0]} is marked {nearest.flags[-1]}"
    told = _differences(cell, nearest)
    return f"{needs}; {nearest.logs[0]} differs: {', '.join(told)}" if told else needs


def _differences(cell: Imported, other: Imported) -> list[str]:
    return [
        f"{what} {getattr(other, name) or 'unknown'}, here {getattr(cell, name) or 'unknown'}"
        for name, what in FACTS.items()
        if _fact(cell, name) != _fact(other, name)
    ]
