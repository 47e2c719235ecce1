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
from scaling.analysis.table.comparisons import comparisons, contender, resolutions
from scaling.analysis.table.rows import Analysis, Baseline, Contender, Minibatch, OverCpu, Row
from scaling.records.host import joined_variables
from scaling.records.point import Pass, Workload
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


Exchanges = Sequence[tuple[Cell, Row]]
PlainLoops = Sequence[tuple[Alone, Baseline]]


def over_cpu(exchanges: Exchanges, plain_loops: PlainLoops, controls: Controls) -> Iterator[OverCpu]:
    """Yield for each CPU the plain loops of one GPU, then the exchanges, as ratios of rates."""
    for alone, cpu in plain_loops:
        if cpu.hardware.cores:
            works = [(of, made, made.strategy, made.workload) for of, made in plain_loops]
            found: list[tuple[Alone | Cell, Row | Baseline, str, Workload]] = [*works]
            found += [(of, row, controls.plain(row.strategy), of.point.reference) for of, row in exchanges]
            for of, row, plain, work in found:
                if row.hardware.device == "cuda" and plain == cpu.strategy and _work(work) == _work(cpu.workload):
                    own, base = _rates(of), _rates(alone)
                    ratios = [own[number] / base[number] for number in sorted(own.keys() & base.keys())]
                    yield OverCpu(**_facts(row), ratio=geometric(ratios) if ratios else None, cpu=cpu)


def _work(work: Workload) -> Workload:
    """Precision and memory format may differ."""
    return replace(work.alone(), precision="fp32", memory_format="contiguous")


def _rates(of: Alone | Cell) -> dict[int, float]:
    size = of.point.global_batch_size if isinstance(of, Cell) else of.whole.point.workload.batch_size
    return {number: size / step_s for number, step_s in _step_times(of).items()}


def _step_times(of: Alone | Cell) -> dict[int, float]:
    if isinstance(of, Cell):
        return {number: time.step_s for number, time in of.times.items()}
    return {number: time.harmonic_s for number, time in of.of_all_seats.items()}


def _facts(of: Row | Baseline) -> dict[str, Any]:
    """Return the fields that `OverCpu` and `Minibatch` share."""
    fields = {name: getattr(of, name) for name in ("workload", "hardware", "samples_per_s", "failed", "footnotes")}
    if isinstance(of, Row):
        return {**fields, "contender": contender(of), "world_size": of.world_size, "alone": False}
    alone = Contender(strategy=of.strategy, interconnect="auto", options={})
    return {**fields, "contender": alone, "world_size": 1, "alone": True}


# ---------------------------------------------------------------- minibatches
#
# Sweeps over the batch of a device. The minibatch efficiency of a batch is its rate over the fastest batch's.
# A batch is also compared with the next smaller one. All sweeps of a table are one family of tests (contrasts.py).

Key = tuple[object, ...]
ORDER: Mapping[Pass, int] = {"forward": 0, "backward": 1, "step": 2}
# A batch with the logarithms of its step times by round; none if it is not compared.
Entry = tuple[Minibatch, Mapping[int, float]]


def minibatches(exchanges: Exchanges, plain_loops: PlainLoops) -> tuple[Minibatch, ...]:
    """Return all batches, sweep by sweep; a single batch counts only if its passes were measured. Weak rule only:
    under other rules baselines have several batches anyway."""
    found: dict[Key, list[Entry]] = {}
    every: list[tuple[Alone | Cell, Row | Baseline]] = [*exchanges, *plain_loops]
    for of, row in every:
        if row.workload.batch_rule == "weak":
            batch, logs = _batch(row, {number: log(step_s) for number, step_s in _step_times(of).items()})
            ranked = isinstance(of, Alone) or competes(of)
            found.setdefault(_sweep(batch), []).append((batch, logs if ranked else {}))
    parts = {_whole(sweep) for sweep in found.values() if not sweep[0][0].workload.trains}
    swept = {
        key: sorted(sweep, key=lambda one: one[0].workload.batch_size)
        for key, sweep in found.items()
        if len(sweep) > 1 or _whole(sweep) in parts
    }
    layouts = {key: Layout([logs for _, logs in sweep], [""] * len(sweep)) for key, sweep in swept.items()}
    table = Table(list(layouts.values()))
    return tuple(one for key in sorted(swept, key=repr) for one in _compared(swept[key], layouts[key], table))


def _batch(of: Row | Baseline, logs: Mapping[int, float]) -> Entry:
    step_s = geometric([exp(value) for value in logs.values()]) if logs else None
    batch = Minibatch(**_facts(of), step_s=step_s)
    if isinstance(of, Row):
        flags = tuple(flag for flag in of.flags if flag in unranked_marks())
        return replace(batch, placement=of.placement, flags=flags), logs
    return replace(batch, workload=of.workload.alone()), logs


def _whole(sweep: Sequence[Entry]) -> Key:
    """The sweep that a sweep of passes is part of."""
    one = sweep[0][0]
    return _sweep(replace(one, workload=replace(one.workload, pass_="step")))


def _sweep(one: Minibatch) -> Key:
    """Key of the batches of a sweep."""
    of = one.contender
    options = tuple(sorted(of.options.items()))
    work = replace(one.workload, batch_size=0, pass_="step")
    which = (of.strategy, of.interconnect, options, of.servers, of.server_hosts, work, one.hardware)
    return (*which, one.placement, not one.alone, ORDER[one.workload.pass_], one.world_size)


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
    return found.each(lambda more: factor * (1 + more))


# ---------------------------------------------------------------- whole table


def analyse(records: Iterable[PointRecord]) -> Analysis:
    """Analyse the last record of each key."""
    every = kept(records)
    found = Analyser(every)
    rows, controls = found.rows(), found.controls
    exchanges = list(zip(found.cells, rows, strict=True))
    plain_loops = [(alone, baseline(alone)) for alone in controls.baselines()]
    return Analysis(
        rows=rows,
        baselines=tuple(made for _, made in plain_loops),
        comparisons=tuple(comparisons(found.table, found.contests)),
        resolutions=tuple(resolutions(found.table, found.contests, found.groups)),
        minibatches=minibatches(exchanges, plain_loops),
        over_cpu=tuple(over_cpu(exchanges, plain_loops, controls)),
        trainings=trainings(every),
    )


def rows(records: Iterable[PointRecord]) -> tuple[Row, ...]:
    """Return one row per measured exchange, sorted by curve and world size."""
    return analyse(records).rows


def kept(records: Iterable[PointRecord]) -> list[PointRecord]:
    """Return the last record of each key, sorted by round and key."""
    latest = {record.point.key: record for record in records}
    return [latest[key] for key in sorted(latest, key=lambda key: (latest[key].point.round, key))]
