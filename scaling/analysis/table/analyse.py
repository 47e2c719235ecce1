"""From the records of one or several runs to everything a table shows: rows, baselines, comparisons.

    efficiency  t(1) / t(N) under the weak rule, t(1) / (N t(N)) under the strong one, t(1) / (k t(N)) under the
                node rule with k devices per node
    t(1)        the same framework's plain loop on one device at the batch per device, the global batch or a
                node's batch; the harmonic mean of the row's own seats if all were measured alone
    speedup     N x efficiency

scaling/analysis/README.md has the other formulas. Of several records of a key the last counts. Points of scaling
bisect (`Point.hosts`) are in no table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import exp, log
from typing import Any

from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Alone, Controls
from scaling.analysis.statistics.contrasts import Layout, Table
from scaling.analysis.statistics.intervals import Estimate, geometric
from scaling.analysis.table.accuracy import trainings
from scaling.analysis.table.catalogue import competes, unranked_marks
from scaling.analysis.table.cell_rows import Analyser, baseline
from scaling.analysis.table.comparisons import (
    comparisons,
    contender,
    resolutions,
)
from scaling.analysis.table.rows import (
    Analysis,
    Baseline,
    Contender,
    Minibatch,
    OverCpu,
    Row,
)
from scaling.records.host import joined_variables
from scaling.records.point import Pass, Point, Workload
from scaling.records.run import Header, PointRecord

# ---------------------------------------------------------------- joining runs


def joinable(headers: Sequence[Header]) -> tuple[str, ...]:
    """Return the reasons why runs cannot share a table, with the values of each run; empty if they can."""
    return tuple(f"{what} differ: {values}" for what, values in differing(headers).items())


def differing(headers: Sequence[Header]) -> dict[str, str]:
    """Return what differs between the launches, with all values: `{"hosts": "a | b"}`."""
    launches = [launch(header) for header in headers]
    if not all(host.variables is not None for header in headers for host in header.hosts):  # older runs
        launches = [{what: of for what, of in one.items() if not what.startswith(VALUES)} for one in launches]
    known = [*_COMPARED, *sorted({what for one in launches for what in one} - _COMPARED.keys())]
    found = {what: list(dict.fromkeys(one.get(what, "none") for one in launches)) for what in known}
    return {what: " | ".join(values) for what, values in found.items() if len(values) > 1}


def launch(header: Header) -> dict[str, str]:
    """Return what a run was launched with, by name: hosts, devices, code, versions, variables."""
    own = {what: of(header) for what, of in _COMPARED.items()}
    versions = {f"{VERSIONS}{name}": version for name, version in _versions(header).items()}
    values = joined_variables(header.hosts)
    return own | versions | {f"{VALUES}{name}": value for name, value in values.items()}


def _devices(header: Header) -> str:
    models = {gpu.name for host in header.hosts for gpu in host.gpus} if header.device == "cuda" else set()
    models = models or {host.cpu_model for host in header.hosts}
    named: str = header.device
    if named == "emulated":
        config = header.config
        named = f"{config.get('device')}, sizes / {config.get('shrink', 1):g}, times x {config.get('dilate', 1):g}"
    return ", ".join((named, *sorted(models)))


VALUES, VERSIONS = "values of ", "versions of "
HOSTS, VERSION, CODE = "hosts", f"{VERSIONS}scaling", "revisions of its code"
# Launches that differ in these are still compared: the code is under test, and CI runners have changing names.
EXPECTED = frozenset({HOSTS, VERSION, CODE})
_COMPARED: Mapping[str, Callable[[Header], str]] = {
    HOSTS: lambda header: " ".join(sorted({host.hostname for host in header.hosts})),
    "devices": _devices,
    VERSION: lambda header: header.version,
    CODE: lambda header: header.code,
    "MPI libraries": lambda header: header.mpi,
}


def _versions(header: Header) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for host in header.hosts:
        for name, version in {**host.versions, "Python": host.python}.items():
            found.setdefault(name, set()).add(version)
    return {name: "/".join(sorted(versions)) for name, versions in found.items()}


def join(runs: Sequence[Sequence[PointRecord]]) -> tuple[PointRecord, ...]:
    """Return the records of all runs, the rounds of each numbered after those of the run before.

    So an exchange is compared only with exchanges and controls of its own run and round.
    """
    joined: list[PointRecord] = []
    first = 0
    for records in runs:
        joined += [
            replace(record, point=replace(record.point, round=first + record.point.round)) for record in records
        ]
        first += 1 + max((record.point.round for record in records), default=-1)
    return tuple(joined)


# ---------------------------------------------------------------- GPUs against a CPU
#
# The CPU uses all cores of a host and computes in fp32. Both have the batch of one GPU and the same framework.
# Ratios are by round, with Student's interval of their logarithms.


Rates = Mapping[int, float]


def over_cpu(cells: Sequence[Cell], rows: Sequence[Row], controls: Controls) -> Iterator[OverCpu]:
    """Yield for each CPU the plain loops of one GPU, then the exchanges, as ratios of rates."""
    for alone in controls.baselines():
        if not alone.whole.point.hardware.cores:
            continue
        cpu, of_cpu = baseline(alone), _alone(alone)
        for other in controls.baselines():
            point = other.whole.point
            if point.hardware.device == "cuda" and _is_same(point.strategy, point.workload, cpu):
                yield OverCpu(**_facts(baseline(other)), ratio=_cpu_ratio(_alone(other), of_cpu), cpu=cpu)
        for cell, row in zip(cells, rows, strict=True):
            point = cell.point
            if point.hardware.device == "cuda" and _is_same(controls.plain(point.strategy), point.reference, cpu):
                yield OverCpu(**_facts(row), ratio=_cpu_ratio(_own(cell, point), of_cpu), cpu=cpu)


def _facts(of: Row | Baseline) -> dict[str, Any]:
    """Return the fields that `OverCpu` and `Minibatch` share."""
    fields = {name: getattr(of, name) for name in ("workload", "hardware", "samples_per_s", "failed", "footnotes")}
    if isinstance(of, Row):
        return {**fields, "contender": contender(of), "world_size": of.world_size, "alone": False}
    who = Contender(strategy=of.strategy, interconnect="auto", options={})
    return {**fields, "contender": who, "world_size": 1, "alone": True}


def _is_same(plain: str, work: Workload, cpu: Baseline) -> bool:
    """Precision and memory format may differ."""
    return plain == cpu.strategy and _work(work) == _work(cpu.workload)


def _work(work: Workload) -> Workload:
    return replace(work.alone(), precision="fp32", memory_format="contiguous")


def _own(cell: Cell, point: Point) -> Rates:
    return {number: point.global_batch_size / time.step_s for number, time in cell.times.items()}


def _alone(alone: Alone) -> Rates:
    batch_size = alone.whole.point.workload.batch_size
    return {number: batch_size / time.harmonic_s for number, time in alone.times(alone.seats(0), 0).items()}


def _cpu_ratio(gpu: Rates, cpu: Rates) -> Estimate | None:
    ratios = [gpu[number] / cpu[number] for number in sorted(gpu.keys() & cpu.keys())]
    return geometric(ratios) if ratios else None


# ---------------------------------------------------------------- minibatches
#
# Sweeps over the batch of a device. The minibatch efficiency of a batch is its rate over the fastest batch's.
# A batch is also compared with the next smaller one. All sweeps of a table are one family of tests (contrasts.py).


Key = tuple[object, ...]
ORDER: Mapping[Pass, int] = {"forward": 0, "backward": 1, "step": 2}


# A batch with the logarithms of its step times by round; none if it is not compared.
Entry = tuple[Minibatch, Mapping[int, float]]


def minibatches(cells: Sequence[Cell], rows: Iterable[Row], controls: Controls) -> tuple[Minibatch, ...]:
    """Return all batches, sweep by sweep; a single batch counts only if its passes were measured."""
    of = {cell.name: cell for cell in cells}
    found: dict[Key, list[Entry]] = {}
    for entry in (*_exchanges(of.values(), rows), *_plain_loops(controls)):
        found.setdefault(_sweep(entry[0]), []).append(entry)
    parts = {_whole(sweep) for sweep in found.values() if not sweep[0][0].workload.trains}
    swept = {
        key: sorted(sweep, key=lambda one: one[0].workload.batch_size)
        for key, sweep in found.items()
        if len(sweep) > 1 or _whole(sweep) in parts
    }
    layouts = {key: Layout([logs for _, logs in sweep], [""] * len(sweep)) for key, sweep in swept.items()}
    table = Table(list(layouts.values()))
    return tuple(one for key in sorted(swept, key=repr) for one in _compared(swept[key], layouts[key], table))


def _whole(sweep: Sequence[Entry]) -> Key:
    """The sweep that a sweep of passes is part of."""
    one = sweep[0][0]
    return _sweep(replace(one, workload=replace(one.workload, pass_="step")))


def _sweep(one: Minibatch) -> Key:
    """Key of the batches of a sweep."""
    who = one.contender
    options = tuple(sorted(who.options.items()))
    work = replace(one.workload, batch_size=0, pass_="step")
    which = (who.strategy, who.interconnect, options, who.servers, who.server_hosts, work, one.hardware)
    return (*which, one.placement, not one.alone, ORDER[one.workload.pass_], one.world_size)


def _exchanges(cells: Iterable[Cell], rows: Iterable[Row]) -> Iterator[Entry]:
    for cell, row in zip(cells, rows, strict=True):
        if row.workload.batch_rule == "weak":
            logs = {number: log(time.step_s) for number, time in cell.times.items()}
            flags = tuple(flag for flag in row.flags if flag in unranked_marks())
            batch = Minibatch(**_facts(row), step_s=_mean(logs), placement=row.placement, flags=flags)
            yield batch, logs if competes(cell) else {}


def _plain_loops(controls: Controls) -> Iterator[Entry]:
    """Weak rule only: under other rules baselines have several batches anyway."""
    for alone in controls.baselines():
        if alone.whole.point.workload.batch_rule == "weak":
            logs = {number: log(time.harmonic_s) for number, time in alone.times(alone.seats(0), 0).items()}
            made = baseline(alone)
            made = replace(made, workload=made.workload.alone())
            yield Minibatch(**_facts(made), step_s=_mean(logs)), logs


def _mean(logs: Mapping[int, float]) -> Estimate | None:
    return geometric([exp(value) for value in logs.values()]) if logs else None


def _compared(sweep: Sequence[Entry], layout: Layout, table: Table) -> Iterator[Minibatch]:
    rates = {place: batch.samples_per_s for place, (batch, logs) in enumerate(sweep) if logs}
    known = {place: rate.mean for place, rate in rates.items() if rate is not None}
    best = max(known, key=known.__getitem__, default=0)
    sizes = [batch.workload.batch_size for batch, _ in sweep]
    for place, (batch, _) in enumerate(sweep):
        if place not in known:
            yield batch
            continue
        smaller = max((one for one in known if one < place), default=None)
        yield replace(
            batch,
            efficiency=_ratio(table, layout, place, best, sizes[place] / sizes[best]),
            over_smaller=None if smaller is None else _ratio(table, layout, smaller, place),
            smaller_batch_size=None if smaller is None else sizes[smaller],
        )


def _ratio(table: Table, layout: Layout, one: int, other: int, factor: float = 1.0) -> Estimate | None:
    if one == other:
        return Estimate(mean=1.0, low=None, high=None, n=0)
    found = table.estimate(layout, one, other)
    if found is None:
        return None
    low, high = (None if end is None else factor * (1 + end) for end in (found.low, found.high))
    return replace(found, mean=factor * (1 + found.mean), low=low, high=high)


# ---------------------------------------------------------------- whole table


def analyse(records: Iterable[PointRecord]) -> Analysis:
    """Analyse the last record of each key."""
    every = kept(records)
    found = Analyser(every)
    rows, cells, controls = found.rows(), found.cells, found.controls
    return Analysis(
        rows=rows,
        baselines=tuple(baseline(alone) for alone in controls.baselines()),
        comparisons=tuple(comparisons(found.table, found.contests, controls.plain)),
        resolutions=tuple(resolutions(found.table, found.contests, found.groups)),
        minibatches=minibatches(cells, rows, controls),
        over_cpu=tuple(over_cpu(cells, rows, controls)),
        trainings=trainings(every),
    )


def rows(records: Iterable[PointRecord]) -> tuple[Row, ...]:
    """Return one row per measured exchange, sorted by curve and world size."""
    return analyse(records).rows


def kept(records: Iterable[PointRecord]) -> list[PointRecord]:
    """Return the last record of each key, sorted by round and key."""
    latest = {record.point.key: record for record in records}
    return [latest[key] for key in sorted(latest, key=lambda key: (latest[key].point.round, key))]
