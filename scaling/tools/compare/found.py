"""The records of a comparison: its sides, metrics, and a verdict for each cell. Fractions are of 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from scaling import frameworks
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import HOSTS, VERSIONS, differing, join, rows
from scaling.analysis.table.catalogue import unclaimed
from scaling.analysis.table.rows import Row
from scaling.errors import UsageError
from scaling.records.point import Hardware, Placement, Record, ServerHosts, Workload
from scaling.records.run import Header, PointRecord
from scaling.records.store import folder_of, is_being_written, load
from scaling.text import readable

# ---------------------------------------------------------------- sides


# what intervals are over: rounds of one launch, or whole runs
Unit = Literal["rounds", "runs"]
# runs per side that suffice to estimate the variation between launches
ENOUGH_RUNS = 3


class Side(NamedTuple):
    folders: tuple[Path, ...]
    headers: tuple[Header, ...]
    records: tuple[tuple[PointRecord, ...], ...]

    def rows(self, unit: Unit) -> tuple[tuple[Row, ...], ...]:
        """Return the rows of each run, or of all runs joined if the unit is rounds."""
        return tuple(map(rows, self.records if unit == "runs" else (join(self.records),)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(readable(folder.resolve().name) for folder in self.folders)


def read(name: str, runs: Sequence[Path], *, although_different: bool) -> Side:
    """Read one side. Raises UsageError if a run is unreadable, imported, given twice, still being written, or
    differs."""
    folders = tuple(folder_of(run) for run in runs)
    for folder, count in Counter(folder.resolve() for folder in folders).items():
        if count > 1:
            raise UsageError(f"RUN {folder}: given twice on one side; give separate launches")
    headers, records = zip(*map(load, runs), strict=True)
    for run, header in zip(runs, headers, strict=True):
        if header.is_import:
            raise UsageError(f"RUN {run}: is IMPORTED from logs of other tools: not comparable")
        if is_being_written(run):
            raise UsageError(f"RUN {run}: is still being written; compare it when its sweep has ended")
    strategies = {record.point.strategy for of_run in records for record in of_run}
    apart = [
        f"{what} differ: {values}"
        for what, values in differing(headers).items()
        if what != HOSTS and any(concerns(what, strategy) for strategy in strategies)
    ]
    if apart and not although_different:
        said = f"these runs are not alike: {'; '.join(apart)}"
        raise UsageError(f"{name}: {said}; --although-different compares them anyway")
    return Side(folders, headers, records)


def concerns(what: str, strategy: str) -> bool:
    """Check whether a difference between launches (`versions of jax ...`) may change the results of a strategy.
    Packages of no framework concern all strategies; those from outside may use every package. One with the name of
    a mode (Horovod) is used by that mode alone."""
    framework, _, mode = strategy.partition(":")
    package = what.removeprefix(VERSIONS).partition(" ")[0]
    of = {one.name: one.distributions for one in frameworks.LISTED}
    if not what.startswith(VERSIONS) or framework not in of:
        return True
    if any(package in one.strategies for one in frameworks.LISTED):
        return mode == package
    return package in of[framework] or not any(package in each for each in of.values())


# ---------------------------------------------------------------- metrics


Name = Literal["efficiency", "speedup", "samples_per_s", "exposed", "cost", "j_per_sample"]


class Metric(NamedTuple):
    """A value of a row.

    * unit: `{unit}` is replaced by the workload's unit
    * is_ratio: changes are differences of logarithms, shown in percent; else plain differences, in points
    * needs_same_unit: images/s and tokens/s are not comparable
    * is_claimed: only rows that claim an efficiency have it
    """

    name: Name
    title: str
    of: Callable[[Row], Estimate | None]
    unit: str
    more_is_better: bool = True
    is_ratio: bool = True
    needs_same_unit: bool = False
    is_claimed: bool = False

    @property
    def sign(self) -> int:
        return 1 if self.more_is_better else -1

    @property
    def verdicts(self) -> tuple[Literal["slower", "worse"], Literal["faster", "better"]]:
        return ("slower", "faster") if self.more_is_better else ("worse", "better")

    @property
    def change_unit(self) -> str:
        return "%" if self.is_ratio else "points"


def _claimed(row: Row, value: Estimate | None) -> Estimate | None:
    return None if unclaimed(row) else value


def _exposed(row: Row) -> Estimate | None:
    """Communication not hidden by compute. On CPUs: the time that ranks wait."""
    return row.breakdown_intervals.get("exposed") or row.breakdown_intervals.get("waiting")


def _joules(row: Row) -> Estimate | None:
    use = row.machine_energy if row.hardware.device == "cpu" else row.device_use
    joules = use.j_per_sample if use else None
    return Estimate(mean=joules, low=None, high=None, n=row.rounds) if joules else None


def cost(estimates: Mapping[int, Estimate], currency: str) -> Metric:
    """Build the metric for the price of a million samples. `estimates` is by id(row)."""
    title = "cost of 1e6 samples"
    return Metric("cost", title, lambda row: estimates.get(id(row)), currency, False, needs_same_unit=True)


_ALL = (
    Metric("efficiency", "efficiency", lambda row: _claimed(row, row.efficiency), "%", is_claimed=True),
    Metric("speedup", "speedup", lambda row: _claimed(row, row.speedup), "", is_claimed=True),
    Metric("samples_per_s", "samples/s", lambda row: row.units_per_s, "{unit}/s", needs_same_unit=True),
    Metric("exposed", "exposed communication", _exposed, "%", more_is_better=False, is_ratio=False),
    cost({}, ""),
    Metric("j_per_sample", "energy", _joules, "J/sample", more_is_better=False, needs_same_unit=True),
)
METRICS: Mapping[Name, Metric] = {one.name: one for one in _ALL}


# ---------------------------------------------------------------- verdicts

Verdict = Literal[
    "slower", "faster", "worse", "better", "same", "cannot tell", "missing", "new", "not comparable",
    "newly failed", "newly oversubscribed", "newly mislabelled", "newly doubtful", "newly unsent", "newly unknown",
    "mended", "failed before and after",
]  # fmt: skip
LOST: tuple[Verdict, ...] = (
    "newly failed", "newly oversubscribed", "newly mislabelled", "newly doubtful", "newly unsent", "newly unknown",
    "slower", "worse",
)  # fmt: skip
UNTOLD: tuple[Verdict, ...] = ("cannot tell", "missing", "not comparable")


class Value(Record, frozen=True, kw_only=True):
    """Mean of a side over `n` rounds or runs, with its 95 % interval; None for n = 1."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Change(Record, frozen=True, kw_only=True):
    """New / base - 1, or new - base if the metric is not a ratio. The interval is at the `confidence` of Holm's
    test. `p` is not adjusted. None if a side has a single round or run."""

    mean: float
    low: float | None
    high: float | None
    confidence: float | None
    p: float | None


class Cell(Record, frozen=True, kw_only=True):
    """One exchange at one world size. Descriptions are the new side's if it has the cell. `needed` is the number
    of runs a side that would decide it. `detects`: the loss that is found in 80 % of cases. `launch_sd`: how
    launches differ, learnt or assumed, as a fraction; None if the unit is runs, which contain it."""

    name: str
    strategy: str
    interconnect: str
    options: dict[str, str]
    world_size: int
    workload: Workload
    hardware: Hardware
    placement: Placement
    servers: int
    server_hosts: ServerHosts
    unit: str
    verdict: Verdict
    reason: str = ""
    base: Value | None = None
    new: Value | None = None
    change: Change | None = None
    needed: int | None = None
    detects: float | None = None
    launch_sd: float | None = None
    launch_sd_is_assumed: bool = False
    flags: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        return self.verdict in LOST

    @property
    def is_untold(self) -> bool:
        return self.verdict in UNTOLD


class Mean(Record, frozen=True, kw_only=True):
    """Geometric mean of new / base over the cells of one model, minus 1."""

    model: str
    change: float
    cells: int


class Found(Record, frozen=True, kw_only=True):
    """A whole comparison. `fail_above` is the loss that counts, as a fraction. `learnt_from`: the runs that show
    how launches differ; 0 if that is assumed."""

    metric: Name
    unit: Unit
    fail_above: float
    base: tuple[str, ...]
    new: tuple[str, ...]
    notices: tuple[str, ...]
    cells: tuple[Cell, ...]
    means: tuple[Mean, ...]
    learnt_from: int = 0

    def launch_sds(self, *, assumed: bool) -> list[float]:
        """Return how launches differ, in percent, of the cells where that is assumed, or learnt."""
        found = (cell for cell in self.cells if cell.launch_sd_is_assumed == assumed)
        return [100 * cell.launch_sd for cell in found if cell.launch_sd]

    @property
    def counts(self) -> dict[Verdict, int]:
        counts = Counter(cell.verdict for cell in self.cells)
        return {verdict: counts[verdict] for verdict in dict.fromkeys((*LOST, *counts)) if counts[verdict]}
