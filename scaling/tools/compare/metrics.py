"""What runs are compared by: each metric of a row, with its direction and its unit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from scaling.analysis.rows import Row
from scaling.analysis.stats import Estimate
from scaling.records.point import Record

Name = Literal["efficiency", "speedup", "samples_per_s", "exposed", "cost", "j_per_sample"]


class Metric(Record, frozen=True, kw_only=True):
    """A figure of a row. `is_ratio`: differences are of logarithms and told as fractions; else they are plain and
    told in points. `{unit}` stands for what a row's samples are; `needs_same_unit`: images per second say nothing
    beside tokens per second."""

    name: Name
    title: str
    of: Callable[[Row], Estimate | None]
    unit: str
    more_is_better: bool = True
    is_ratio: bool = True
    needs_same_unit: bool = False

    def unit_of(self, row: Row) -> str:
        """`images/s`."""
        return self.unit.format(unit=row.workload.unit)

    @property
    def sign(self) -> int:
        """What a difference is multiplied with to be a gain."""
        return 1 if self.more_is_better else -1

    @property
    def verdicts(self) -> tuple[Literal["slower", "worse"], Literal["faster", "better"]]:
        """What a loss and a gain are called."""
        return ("slower", "faster") if self.more_is_better else ("worse", "better")


def _rate(row: Row) -> Estimate | None:
    """In the work's unit: tokens/s are sequences/s x their length."""
    return row.samples_per_s and row.samples_per_s.times(row.workload.units_per_sample)


def _exposed(row: Row) -> Estimate | None:
    """Communication that compute does not hide; on CPUs the time that ranks wait stands for it."""
    intervals = row.breakdown_intervals
    return intervals.get("exposed") or intervals.get("waiting")


def _joules(row: Row) -> Estimate | None:
    """Of the GPUs alone; on CPUs, of processors and memory. Over all rounds: a row does not tell those of each, so
    that there is no interval."""
    use = row.machine_energy if row.hardware.device == "cpu" else row.device_use
    joules = use.j_per_sample if use else None
    return Estimate(mean=joules, low=None, high=None, n=row.rounds) if joules else None


def cost(estimates: Mapping[int, Estimate], currency: str) -> Metric:
    """The price of a million samples, given that of each row, by its id."""
    return Metric(
        name="cost",
        title="cost of 1e6 samples",
        of=lambda row: estimates.get(id(row)),
        unit=currency,
        more_is_better=False,
        needs_same_unit=True,
    )


METRICS: Mapping[Name, Metric] = {
    "efficiency": Metric(name="efficiency", title="efficiency", of=lambda row: row.efficiency, unit="%"),
    "speedup": Metric(name="speedup", title="speedup", of=lambda row: row.speedup, unit=""),
    "samples_per_s": Metric(
        name="samples_per_s",
        title="samples/s",
        of=_rate,
        unit="{unit}/s",
        needs_same_unit=True,
    ),
    "exposed": Metric(
        name="exposed",
        title="exposed communication",
        of=_exposed,
        unit="%",
        more_is_better=False,
        is_ratio=False,
    ),
    "cost": cost({}, ""),
    "j_per_sample": Metric(
        name="j_per_sample",
        title="energy",
        of=_joules,
        unit="J/sample",
        more_is_better=False,
        needs_same_unit=True,
    ),
}
