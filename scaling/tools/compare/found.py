"""A comparison: its sides, metrics, a verdict for each cell, and its formats. Fractions are of 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from scaling import frameworks
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import HOSTS, VERSIONS, differing, join, rows
from scaling.analysis.table.catalogue import unclaimed
from scaling.analysis.table.rows import PERCENT, Column, Row
from scaling.errors import UsageError
from scaling.records.point import Hardware, Placement, Record, ServerHosts, Workload
from scaling.records.run import Header, PointRecord
from scaling.records.store import folder_of, is_being_written, load
from scaling.report import quantities
from scaling.report.formats.junit import Case, suite
from scaling.report.parts import Document, Entry, Line, Quantity, Section
from scaling.text import as_json, counted, decimals, is_skewed, one_line, readable, rounded

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


# ---------------------------------------------------------------- JUnit, a test case per cell


def junit(found: Found, *, require_proof: bool) -> str:
    """Return the document. An undecided cell is skipped, or fails with `require_proof`."""
    properties = [
        ("metric", found.metric),
        ("unit", found.unit),
        ("base", ", ".join(found.base)),
        ("new", ", ".join(found.new)),
        *(("power", said) for said in _power(found)),
        *(("notice", notice) for notice in found.notices),
    ]
    cases = [_case(cell, METRICS[found.metric], require_proof=require_proof) for cell in found.cells]
    return suite("scaling compare", cases, properties, headline(found))


def _case(cell: Cell, metric: Metric, *, require_proof: bool) -> Case:
    """Make a case; it says `slower: efficiency -5.1 % ± 0.9: VERIFIED`."""
    by = f"{metric.title} {change(cell.change, metric)}" if cell.change else ""
    stamps = " ".join(flag for flag in cell.flags if flag != "FAILED")
    said = ": ".join(filter(None, (cell.verdict, by, cell.reason, stamps)))
    is_failure = cell.is_lost or (require_proof and cell.is_untold)
    is_skipped = not is_failure and (cell.is_untold or cell.change is None)
    failure, skipped = (said if holds else "" for holds in (is_failure, is_skipped))
    return Case(_name(cell), failure, skipped, said, cell.verdict, cell.workload.model)


def _name(cell: Cell) -> str:
    return " ".join((cell.name, *(flag for flag in cell.flags if flag == "EMULATED")))


# ---------------------------------------------------------------- JSON


def json(found: Found, exit_code: int) -> str:
    return as_json({**rounded(msgspec.to_builtins(found)), "counts": found.counts, "exit_code": exit_code})


# ---------------------------------------------------------------- github-action-benchmark
# `customBiggerIsBetter`, or `customSmallerIsBetter` if less is better (README of
# benchmark-action/github-action-benchmark).


def benchmark(found: Found) -> str:
    """Return the new side's value of every cell; fractions in percent."""
    return as_json([_entry(cell, cell.new) for cell in found.cells if cell.new is not None])


def _entry(cell: Cell, new: Value) -> dict[str, object]:
    scale = 100.0 if cell.unit == PERCENT else 1.0
    entry: dict[str, object] = {
        "name": one_line(_name(cell)),
        "unit": cell.unit or "x",
        "value": rounded(scale * new.mean),
        "extra": one_line(" ".join(filter(None, (cell.verdict, cell.reason, *cell.flags)))),
    }
    if new.low is not None and new.high is not None:
        low, high = scale * new.low, scale * new.high
        skewed = is_skewed(scale * new.mean, low, high)
        entry["range"] = f"{low:.4g} to {high:.4g}" if skewed else f"± {(high - low) / 2:.4g}"
    return entry


# ---------------------------------------------------------------- table and Markdown


def document(found: Found, *, verdict_first: bool = False) -> Document:
    """Build the document. `verdict_first` makes the verdict the first column."""
    metric = METRICS[found.metric]
    units = {cell.unit for cell in found.cells}
    unit = units.pop() if len(units) == 1 else ""
    named = Column(key="name", title="cell", is_text=True), Column(key="verdict", title="verdict", is_text=True)
    columns = (
        *(reversed(named) if verdict_first else named),
        Column(key="base", title="base", unit=unit),
        Column(key="new", title="new", unit=unit),
        Column(key="change", title="change", unit=metric.change_unit, unit_in_cells=True),
    )
    lines = tuple(_line(cell, metric) for cell in found.cells)
    return Document(
        title="Comparison of runs",
        facts=tuple(_facts(found, metric)),
        notices=found.notices,
        sections=(Section(title=f"{metric.title}, new against base", columns=columns, lines=lines),),
        how_to_read=tuple(_reading(found, metric)),
    )


def headline(found: Found) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())


def _line(cell: Cell, metric: Metric) -> Line:
    return Line(
        cells={
            "name": cell.name,
            "verdict": cell.verdict,
            "base": _value(cell.base, cell.unit),
            "new": _value(cell.new, cell.unit),
            "change": None if cell.change is None else change(cell.change, metric),
        },
        flags=tuple(flag for flag in cell.flags if flag != "FAILED"),
        remark=cell.reason,
    )


def _value(value: Value | None, unit: str) -> Quantity | None:
    if value is None:
        return None
    scale = 100.0 if unit == PERCENT else 1.0
    digits = 1 if scale > 1 else decimals(abs(value.mean))
    low, high = (None if end is None else scale * end for end in (value.low, value.high))
    return Quantity(value=scale * value.mean, low=low, high=high, digits=digits, unit=unit)


def change(of: Change, metric: Metric) -> Quantity:
    """Express a change in percent, or in points if the metric is not a ratio."""
    low, high = (None if end is None else 100 * end for end in (of.low, of.high))
    return Quantity(value=100 * of.mean, low=low, high=high, digits=1, unit=metric.change_unit)


def _facts(found: Found, metric: Metric) -> Iterator[Entry]:
    unit = "rounds, and an assumption of how launches differ"
    if found.unit == "runs":
        unit = f"runs: {len(found.base)} against {len(found.new)}"
    elif sds := found.launch_sds(assumed=False):
        unit = f"rounds, and launches that differ by {_span(sds)} %, learnt from {found.learnt_from} runs"
    yield "verdict", headline(found)
    yield "base", ", ".join(found.base)
    yield "new", ", ".join(found.new)
    yield "compared", f"{metric.title}; a loss counts above {quantities.fraction(found.fail_above)}"
    yield "unit", unit
    yield from (("power", said) for said in _power(found))
    for mean in found.means:
        by = quantities.fraction(mean.change)
        yield "geometric mean", f"{mean.model}: {by} over {counted(mean.cells, 'cell')}"


def _power(found: Found) -> Iterator[str]:
    """Yield the loss that would be found; nothing without a tested cell."""
    losses = {100 * cell.detects: cell.name for cell in reversed(found.cells) if cell.detects}
    if losses:
        size = _span([*losses])
        most = f" (the largest: {losses[max(losses)]})" if " to " in size else ""
        unit = METRICS[found.metric].change_unit
        yield f"a loss of {size} {unit} in a cell is found in 80 % of cases{most}"


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def _reading(found: Found, metric: Metric) -> Iterator[Entry]:
    loss, win = metric.verdicts
    sds = found.launch_sds(assumed=True)
    premise = f", if launches differ by {min(sds):.1f} % or less" if sds else ""
    verdicts = (
        f"{loss}, {win}: the interval of the change excludes zero and its mean is beyond the loss that counts. "
        "same: the whole interval is within that loss. cannot tell: neither. Intervals are at the levels of "
        f"Holm's procedure: of 100 comparisons of equal sides, at most 5 call any cell {loss} or {win}"
        f"{premise}"
    )
    yield "verdict", verdicts
    sides = "half the 95 % interval of the side's own " + found.unit
    yield "base, new", f"mean ± {sides}"
