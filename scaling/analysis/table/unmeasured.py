"""Rows that were not measured here: imported from logs of other tools, or predicted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate, geometric
from scaling.analysis.table.catalogue import unranked_marks
from scaling.analysis.table.rows import Row
from scaling.records.point import Hardware, Placement, Point, Record, ServerHosts, Workload
from scaling.records.run import ImportedRow, ImportedUnit, Prediction

# ---------------------------------------------------------------- imported
#
# Rows from logs of other tools; several logs of a cell are one row.
#
# speedup = rate(N) / rate(1), efficiency = speedup / N. rate(1) is of the same tool, model, batch per device and
# precision in the same import. If model or batch are unknown, no efficiency is claimed.


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
        found[(_imported_curve(row), row.world_size)].append(row)
    made = [_cell(of_cell) for of_cell in found.values()]
    order = {key: place for place, key in enumerate(dict.fromkeys(map(_imported_curve, made)))}
    made.sort(key=lambda cell: (order[_imported_curve(cell)], cell.world_size))
    alone = {_imported_curve(cell): cell for cell in made if cell.world_size == 1}
    return tuple(_against(cell, alone.get(_imported_curve(cell))) for cell in made)


def _imported_curve(row: ImportedRow | Imported) -> Key:
    return (
        row.run, row.tool, row.model.casefold(), row.batch_size, row.precision.casefold(), row.unit,
        row.synchronous,
    )  # fmt: skip


def curves(found: Iterable[Imported]) -> list[list[Imported]]:
    """Group the cells that differ only in their number of devices."""
    by_key: dict[Key, list[Imported]] = defaultdict(list)
    for cell in found:
        by_key[_imported_curve(cell)].append(cell)
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


# ---------------------------------------------------------------- predicted
#
# Predictions beside the measured rows, and their score.


# Rows with these marks do not test a prediction.
UNJUDGED = (*unranked_marks(), "UNSETTLED", "THROTTLED")


class Judged(Record, frozen=True, kw_only=True):
    """A prediction and its row: medians with their 80 % interval. Efficiencies are fractions of 1.

    Measured values are None if nothing is measured or claimed. Not `claimed`: the interval is too wide. `refused`:
    why there is no prediction.
    """

    kind: Literal["PREDICTED"] = "PREDICTED"
    strategy: str
    interconnect: str
    workload: Workload
    hardware: Hardware
    options: dict[str, str]
    placement: Placement
    servers: int
    server_hosts: ServerHosts
    world_size: int
    nodes: int
    registered_unix_s: float
    up_to: int
    claimed: bool
    refused: str
    predicted_efficiency: float | None = None
    predicted_efficiency_low: float | None = None
    predicted_efficiency_high: float | None = None
    predicted_samples_per_s: float | None = None
    predicted_samples_per_s_low: float | None = None
    predicted_samples_per_s_high: float | None = None
    measured_efficiency: Estimate | None = None
    measured_samples_per_s: Estimate | None = None
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether the row tests the prediction: it was claimed, and no mark forbids it."""
        return self.claimed and not self.unjudged and self.error is not None

    @property
    def unjudged(self) -> str:
        """The mark that makes the row unfit as a test; "" without one."""
        return next((mark for mark in UNJUDGED if mark in self.flags), "")

    @property
    def error(self) -> float | None:
        """Predicted less measured efficiency; None if either is missing."""
        if self.predicted_efficiency is None or self.measured_efficiency is None:
            return None
        return self.predicted_efficiency - self.measured_efficiency.mean

    @property
    def inside(self) -> bool | None:
        """Whether the measured mean is in the interval; None if either is missing."""
        low, high = self.predicted_efficiency_low, self.predicted_efficiency_high
        if low is None or high is None or self.measured_efficiency is None:
            return None
        return low <= self.measured_efficiency.mean <= high

    def is_of_curve(self, row: Row) -> bool:
        """Return whether the row is on the same scaling curve, at any world size."""
        return _curve(self) == _curve(row)


class Score(NamedTuple):
    """Number of tested predictions, number inside, and sizes of errors as fractions of 1."""

    points: int
    inside: int
    median_error: float
    largest_error: float


def judged(predictions: Iterable[Prediction], rows: Sequence[Row]) -> tuple[Judged, ...]:
    """Join each prediction with the row of its exchange and world size, if there is one."""
    return tuple(
        _beside(one, next((row for row in rows if _is_of(one, row)), None))
        for one in sorted(predictions, key=lambda one: (_order(one), one.point.world_size))
    )


def score(found: Iterable[Judged]) -> Score | None:
    """Return the score; None without a tested prediction."""
    errors = [(abs(one.error), bool(one.inside)) for one in found if one.counts and one.error is not None]
    if not errors:
        return None
    sizes = [size for size, _ in errors]
    return Score(len(errors), sum(inside for _, inside in errors), median(sizes), max(sizes))


def of_row(row: Row, predictions: Iterable[Prediction]) -> Judged | None:
    """Return the prediction of a row; None without one."""
    return next((_beside(one, row) for one in predictions if _is_of(one, row)), None)


def _curve(one: Judged | Row | Point) -> tuple[object, ...]:
    where = (one.strategy, one.interconnect, one.options, one.placement, one.server_hosts)
    return (*where, one.workload, one.hardware)


def _order(one: Prediction) -> tuple[str, ...]:
    point = one.point
    work = (point.workload.model, f"{point.workload.batch_size:9}")
    return point.strategy, point.interconnect, *work, *map(str, point.sorted_options)


def _is_of(one: Prediction, row: Row) -> bool:
    point = one.point
    size = (point.world_size, point.servers)
    return (_curve(point), size) == (_curve(row), (row.world_size, row.servers))


def _beside(one: Prediction, row: Row | None) -> Judged:
    point = one.point
    return Judged(
        strategy=point.strategy, interconnect=point.interconnect, workload=point.workload,
        hardware=point.hardware, options=point.options, placement=point.placement, servers=point.servers,
        server_hosts=point.server_hosts, world_size=point.world_size, nodes=one.nodes,
        registered_unix_s=one.registered_unix_s, up_to=one.up_to, claimed=one.claimed, refused=one.refused,
        predicted_efficiency=one.efficiency, predicted_efficiency_low=one.efficiency_low,
        predicted_efficiency_high=one.efficiency_high, predicted_samples_per_s=one.samples_per_s,
        predicted_samples_per_s_low=one.samples_per_s_low, predicted_samples_per_s_high=one.samples_per_s_high,
        measured_efficiency=row.efficiency if row else None,
        measured_samples_per_s=row.samples_per_s if row else None,
        flags=row.flags if row else (),
        notes=one.notes,
    )  # fmt: skip
