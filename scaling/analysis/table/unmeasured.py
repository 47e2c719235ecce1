"""Predictions beside the measured rows, and their score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.catalogue import unranked_marks
from scaling.analysis.table.rows import Row
from scaling.records.point import Hardware, Placement, Point, Record, ServerHosts, Workload
from scaling.records.run import Prediction

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
