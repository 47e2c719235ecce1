"""Turn the records of one or several runs into all that a table shows: rows, baselines, comparisons. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import exp, log
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.measured.cell import Cell
from scaling.analysis.measured.controls import Alone, Controls, find_less_work
from scaling.analysis.measured.pools import pool_of, shared
from scaling.analysis.statistics.contrasts import Layout, Table
from scaling.analysis.statistics.intervals import Estimate, geometric
from scaling.analysis.table.accuracy import trainings
from scaling.analysis.table.catalogue import claims, competes, unranked_marks
from scaling.analysis.table.cell_rows import Measured, across_nodes, among, baseline, measured
from scaling.analysis.table.comparisons import (
    Beside,
    Contest,
    beside,
    comparable,
    contests,
    curve_keys,
    difference,
    equal_losses,
    exchanges,
    groups,
    numbered,
    resolutions,
)
from scaling.analysis.table.comparisons import comparisons as compare
from scaling.analysis.table.rows import (
    Analysis,
    Baseline,
    Comparison,
    Contender,
    Minibatch,
    OverCpu,
    Row,
    Standing,
)
from scaling.records import other_code
from scaling.records.host import joined_variables
from scaling.records.point import Pass, Point, Workload
from scaling.records.run import Header, PointRecord

# ---------------------------------------------------------------- analyse
#
# Records -> what a table says: rows, baselines, comparisons. Pure.
#
# step time synchronous: longest rank's time from the common start to its last synchronisation / its steps, side
# by side of each window; asynchronous: N x batch per device / samples/s samples/s(N) synchronous: N x batch per
# device / step time; asynchronous: sum of the ranks' own rates, batch x steps / the rank's own time efficiency
# t(1) / t(N) under the weak rule, t(1) / (N t(N)) under the strong, t(1) / (k t(N)) under the node rule with k
# devices of each node; t(1) is the plain loop of the same framework on one device, at the batch per device
# (weak), the global batch (strong) or that of a node (node); where every seat was measured alone, the harmonic
# mean over the row's own: N / t(1) is then the sum of what its devices do alone speedup N x efficiency
#
# Points on some nodes of the launch alone (`Point.hosts`, of scaling bisect) stand in no table.
#
# Each is formed inside a round, in logarithms, its interval over rounds, with the variance of all cells that
# share the work (intervals.py). Where a key was measured twice, the last counts. The weak rule is Gustafson's
# ("Reevaluating Amdahl's law", 1988), the strong one Amdahl's (1967); the node rule is the strong one inside a
# node and the weak one from node to node.


# ---------------------------------------------------------------- joining
#
# Several runs in one table: whether they may be joined, and how their rounds are kept apart. Pure.


def joinable(headers: Sequence[Header]) -> tuple[str, ...]:
    """Return the reasons why runs cannot share a table: what differs, as each run has it. Empty: they can."""
    return tuple(f"{what} differ: {values}" for what, values in differing(headers).items())


def differing(headers: Sequence[Header]) -> dict[str, str]:
    """Return what of their launches is not the same for all runs, and what each has: `{"hosts": "a | b"}`."""
    launches = [launch(header) for header in headers]
    if not all(map(_knows_variables, headers)):
        launches = [{what: of for what, of in one.items() if not what.startswith(VALUES)} for one in launches]
    known = [*_COMPARED, *sorted({what for one in launches for what in one} - _COMPARED.keys())]
    found = {what: list(dict.fromkeys(one.get(what, "none") for one in launches)) for what in known}
    return {what: " | ".join(values) for what, values in found.items() if len(values) > 1}


def launch(header: Header) -> dict[str, str]:
    """Return what a run was launched with, by what it is called: hosts, devices, code, versions, variables."""
    own = {what: of(header) for what, of in _COMPARED.items()}
    versions = {f"versions of {name}": version for name, version in _versions(header).items()}
    values = joined_variables(header.hosts)
    return own | versions | {f"{VALUES}{name}": value for name, value in values.items()}


def _knows_variables(header: Header) -> bool:
    """Older runs did not record them."""
    return all(host.variables is not None for host in header.hosts)


def _hosts(header: Header) -> str:
    return " ".join(sorted({host.hostname for host in header.hosts}))


def _devices(header: Header) -> str:
    models = {gpu.name for host in header.hosts for gpu in host.gpus} if header.device == "cuda" else set()
    models = models or {host.cpu_model for host in header.hosts}
    return ", ".join((_emulation(header) or header.device, *sorted(models)))


def _emulation(header: Header) -> str:
    """`emulated:p100, sizes / 10, times x 4`; nothing for real devices."""
    config = header.config
    if header.device != "emulated":
        return ""
    return f"{config.get('device')}, sizes / {config.get('shrink', 1):g}, times x {config.get('dilate', 1):g}"


VALUES = "values of "
HOSTS, VERSION, CODE = "hosts", "versions of scaling", "revisions of its code"
# What two launches may differ in and still be compared: a change of the code is what is looked for, and a CI's
# runners have new names each time.
EXPECTED = frozenset({HOSTS, VERSION, CODE})
_COMPARED: Mapping[str, Callable[[Header], str]] = {
    HOSTS: _hosts,
    "devices": _devices,
    VERSION: lambda header: header.version,
    CODE: lambda header: header.code,
    "MPI libraries": lambda header: header.mpi,
}


def _versions(header: Header) -> dict[str, str]:
    """Library -> version; several where the run's own hosts differ."""
    found: dict[str, set[str]] = {}
    for host in header.hosts:
        for name, version in {**host.versions, "Python": host.python}.items():
            found.setdefault(name, set()).add(version)
    return {name: "/".join(sorted(versions)) for name, versions in found.items()}


def join(runs: Sequence[Sequence[PointRecord]]) -> tuple[PointRecord, ...]:
    """Return the records of all runs, the rounds of each numbered after those of the run before.

    So an exchange is only ever measured against the controls of its own run and round, cells that several
    runs have pool their rounds, and a pair of strategies that never shared a round is not compared.
    """
    joined: list[PointRecord] = []
    first = 0
    for records in runs:
        joined += [_in_round(record, first + record.point.round) for record in records]
        first += 1 + max((record.point.round for record in records), default=-1)
    return tuple(joined)


def _in_round(record: PointRecord, number: int) -> PointRecord:
    return replace(record, point=replace(record.point, round=number))


# ---------------------------------------------------------------- analyse

# ---------------------------------------------------------------- over cpu
#
# GPUs against the CPU beside them: how many times as fast each trains, as studies of CPUs and GPUs have it.
#
# The CPU has all cores of a host, and computes in fp32; a GPU computes as its sweep does. Both have the batch of
# one GPU and the same framework. Ratios are formed inside rounds, with Student's interval of their logarithms.


Rates = Mapping[int, float]


def over_cpu(cells: Sequence[Cell], rows: Sequence[Row], controls: Controls) -> Iterator[OverCpu]:
    """Of each CPU that stands beside GPUs, the plain loop of one GPU, then the exchanges."""
    for alone in controls.baselines():
        if alone.whole.point.hardware.cores:
            cpu = baseline(alone)
            yield from _of_plain_loops(alone, cpu, controls)
            yield from _of_exchanges(alone, cpu, cells, rows, controls)


def _of_plain_loops(alone: Alone, cpu: Baseline, controls: Controls) -> Iterator[OverCpu]:
    for other in controls.baselines():
        point = other.whole.point
        if point.hardware.device == "cuda" and _is_same(point.strategy, point.workload, cpu):
            made = baseline(other)
            yield OverCpu(
                contender=Contender(strategy=made.strategy, interconnect="auto", options={}),
                alone=True,
                workload=made.workload,
                hardware=made.hardware,
                world_size=1,
                samples_per_s=made.samples_per_s,
                ratio=_cpu_ratio(_alone(other), _alone(alone)),
                cpu=cpu,
                failed=made.failed,
                footnotes=made.footnotes,
            )


def _of_exchanges(
    alone: Alone, cpu: Baseline, cells: Sequence[Cell], rows: Sequence[Row], controls: Controls
) -> Iterator[OverCpu]:
    for cell, row in zip(cells, rows, strict=True):
        point = cell.point
        if point.hardware.device == "cuda" and _is_same(controls.plain(point.strategy), point.reference, cpu):
            yield OverCpu(
                contender=Contender(**{name: getattr(row, name) for name in Contender.__struct_fields__}),
                alone=False,
                workload=row.workload,
                hardware=row.hardware,
                world_size=row.world_size,
                samples_per_s=row.samples_per_s,
                ratio=_cpu_ratio(_own(cell, point), _alone(alone)),
                cpu=cpu,
                failed=row.failed,
                footnotes=row.footnotes,
            )


def _is_same(plain: str, work: Workload, cpu: Baseline) -> bool:
    """Whether it is the same work in the same framework, however numbers are kept in memory."""
    return plain == cpu.strategy and _work(work) == _work(cpu.workload)


def _work(work: Workload) -> Workload:
    return replace(work.alone(work.batch_size), precision="fp32", memory_format="contiguous")


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
# What a larger batch gains, and what passes take: sweeps over the batch of a device.
#
# The minibatch efficiency of a batch is its rate over that of the fastest batch of the sweep; t(2b) is held
# against 2 t(b), as in Addfor's study of 2017, where it was more on one GPU (VGG on a GTX 1080: 899.86 ms at
# 128, 420.28 ms at 64). Batches are compared as exchanges are (contrasts.py), all sweeps of a table being one
# family.


Key = tuple[object, ...]
ORDER: Mapping[Pass, int] = {"forward": 0, "backward": 1, "step": 2}


class Entry(NamedTuple):
    """A batch with the logarithms of its step times, by round; without any where it is compared with none."""

    batch: Minibatch
    logs: Mapping[int, float]


def minibatches(cells: Sequence[Cell], rows: Iterable[Row], controls: Controls) -> tuple[Minibatch, ...]:
    """All batches of all sweeps, sweep by sweep; a single batch is one only beside passes of it."""
    of = {cell.name: cell for cell in cells}
    found: dict[Key, list[Entry]] = {}
    for entry in (*_exchanges(of.values(), rows), *_plain_loops(controls)):
        found.setdefault(_sweep(entry.batch), []).append(entry)
    parts = {_whole(sweep) for sweep in found.values() if not sweep[0].batch.workload.trains}
    swept = {
        key: sorted(sweep, key=_size) for key, sweep in found.items() if len(sweep) > 1 or _whole(sweep) in parts
    }
    layouts = {key: Layout([one.logs for one in sweep], list(map(_series, sweep))) for key, sweep in swept.items()}
    table = Table(list(layouts.values()))
    return tuple(one for key in sorted(swept, key=repr) for one in _compared(swept[key], layouts[key], table))


def _whole(sweep: Sequence[Entry]) -> Key:
    """What its passes are parts of."""
    one = sweep[0].batch
    return _sweep(replace(one, workload=replace(one.workload, pass_="step")))


def _size(entry: Entry) -> int:
    return entry.batch.workload.batch_size


def _sweep(one: Minibatch) -> Key:
    """What the batches of a sweep share."""
    who = one.contender
    options = tuple(sorted(who.options.items()))
    work = replace(one.workload, batch_size=0, pass_="step")
    which = (who.strategy, who.interconnect, options, who.servers, who.server_hosts, work, one.hardware)
    return (*which, one.placement, not one.alone, ORDER[one.workload.pass_], one.world_size)


def _series(entry: Entry) -> Key:
    """Who is the same at another world size: noise is a batch's."""
    *which, _size_of_world = _sweep(entry.batch)
    return (*which, entry.batch.workload.batch_size)


# ---------------------------------------------------------------- what was measured


def _exchanges(cells: Iterable[Cell], rows: Iterable[Row]) -> Iterator[Entry]:
    """Those under the weak rule; `rows` are the cells', in their order."""
    for cell, row in zip(cells, rows, strict=True):
        if row.workload.batch_rule == "weak":
            logs = {number: log(time.step_s) for number, time in cell.times.items()}
            yield Entry(
                Minibatch(
                    contender=Contender(**{name: getattr(row, name) for name in Contender.__struct_fields__}),
                    alone=False,
                    workload=row.workload,
                    hardware=row.hardware,
                    world_size=row.world_size,
                    step_s=_mean(logs),
                    samples_per_s=row.samples_per_s,
                    failed=row.failed,
                    footnotes=row.footnotes,
                    placement=row.placement,
                    flags=tuple(flag for flag in row.flags if flag in unranked_marks()),
                ),
                logs if competes(cell) else {},
            )


def _plain_loops(controls: Controls) -> Iterator[Entry]:
    """Those behind exchanges under the weak rule; others have baselines at several batches anyway."""
    for alone in controls.baselines():
        if alone.whole.point.workload.batch_rule != "weak":
            continue
        made, times = baseline(alone), alone.times(alone.seats(0), 0)
        logs = {number: log(time.harmonic_s) for number, time in times.items()}
        yield Entry(
            Minibatch(
                contender=Contender(strategy=made.strategy, interconnect="auto", options={}),
                alone=True,
                workload=made.workload.alone(made.workload.batch_size),
                hardware=made.hardware,
                world_size=1,
                step_s=_mean(logs),
                samples_per_s=made.samples_per_s,
                failed=made.failed,
                footnotes=made.footnotes,
            ),
            logs,
        )


def _mean(logs: Mapping[int, float]) -> Estimate | None:
    return geometric([exp(value) for value in logs.values()]) if logs else None


# ---------------------------------------------------------------- against each other


def _compared(sweep: Sequence[Entry], layout: Layout, table: Table) -> Iterator[Minibatch]:
    """Each batch against the fastest, and against the next smaller one that was measured."""
    rates = {place: one.batch.samples_per_s for place, one in enumerate(sweep) if one.logs}
    known = {place: rate.mean for place, rate in rates.items() if rate is not None}
    best = max(known, key=known.__getitem__, default=0)
    for place, entry in enumerate(sweep):
        if place not in known:
            yield entry.batch
            continue
        smaller = max((one for one in known if one < place), default=None)
        factor = _size(entry) / _size(sweep[best])
        yield replace(
            entry.batch,
            efficiency=_ratio(table, layout, place, best, factor),
            over_smaller=None if smaller is None else _ratio(table, layout, smaller, place),
            smaller_batch_size=None if smaller is None else _size(sweep[smaller]),
        )


def _ratio(table: Table, layout: Layout, one: int, other: int, factor: float = 1.0) -> Estimate | None:
    """The second's time over the first's, times a factor; 1 of a batch over itself."""
    if one == other:
        return Estimate(mean=1.0, low=None, high=None, n=0)
    found = table.estimate(layout, one, other)
    if found is None:
        return None
    ends = {"low": found.low, "high": found.high}
    shifted = {name: None if end is None else factor * (1 + end) for name, end in ends.items()}
    return replace(found, mean=factor * (1 + found.mean), **shifted)


# ---------------------------------------------------------------- analyse

__all__ = [
    "Analysis", "Baseline", "Comparison", "Contender", "Row", "Standing", "analyse", "baselines",
    "comparisons", "join", "joinable", "kept", "rows",
]  # fmt: skip


def analyse(records: Iterable[PointRecord]) -> Analysis:
    """Everything at once, over the last record of each key."""
    every = kept(records)
    latest = [record for record in every if record.point.kind != "train"]
    controls, cells = Controls(latest), exchanges(latest)
    for cell in cells:
        find_less_work(cell, controls)
    rivals = groups(cells)
    found = [contest for group in rivals for contest in contests(group)]
    table = Table([contest.layout for contest in found])
    losses = {name: loss for group in rivals for name, loss in equal_losses(group).items()}
    made = _rows(cells, controls, beside(cells, table, found, losses, controls.plain))
    return Analysis(
        rows=made,
        baselines=tuple(baseline(alone) for alone in controls.baselines()),
        comparisons=tuple(compare(table, found, controls.plain)),
        resolutions=tuple(resolutions(table, found, numbered(comparable(cell.point) for cell in cells))),
        minibatches=minibatches(cells, made, controls),
        over_cpu=tuple(over_cpu(cells, made, controls)),
        trainings=trainings(every),
    )


def rows(records: Iterable[PointRecord]) -> tuple[Row, ...]:
    """One row per measured exchange, curve by curve and inside each by world size."""
    return analyse(records).rows


def baselines(records: Iterable[PointRecord]) -> tuple[Baseline, ...]:
    """The plain loops on one device."""
    return analyse(records).baselines


def comparisons(records: Iterable[PointRecord]) -> tuple[Comparison, ...]:
    """At each world size, the fastest exchange of each framework against each of its others, then frameworks."""
    return analyse(records).comparisons


def kept(records: Iterable[PointRecord]) -> list[PointRecord]:
    """The last record of each key, by round and key: the order in which a file has them tells nothing."""
    latest = {record.point.key: record for record in records}
    return [latest[key] for key in sorted(latest, key=lambda key: (latest[key].point.round, key))]


def _rows(cells: Sequence[Cell], controls: Controls, said: Mapping[str, Beside]) -> tuple[Row, ...]:
    """All rows, with what each says in comparison with the others."""
    keys = curve_keys(cell.point for cell in cells)
    curves, groups = (
        numbered(keys[cell.name] for cell in cells),
        numbered(comparable(cell.point) for cell in cells),
    )
    pools = shared(cells, controls, claims)
    single = {keys[cell.name]: cell for cell in cells if cell.point.world_size == 1}
    by_curve: dict[int, list[Measured]] = defaultdict(list)
    for cell in cells:
        key = keys[cell.name]
        placed = among(
            measured(cell, controls, single.get(key), pools[pool_of(cell.point, controls)]),
            curve=curves[key],
            group=groups[comparable(cell.point)],
            beside=said[cell.name],
        )
        by_curve[curves[key]].append(placed)
    return tuple(row for curve in by_curve.values() for row in across_nodes(curve))


# ---------------------------------------------------------------- revisions
#
# Two revisions of this package in one launch (`--against REV`). The cells of both are rivals in one contest: they
# share the rounds, so differences are paired by round. Intervals hold for all differences of the report at once.

# The loss that counts, as scaling compare has it where nobody says another.
LOSS = 0.02


class Change(NamedTuple):
    """A cell of the launch's own revision, and its samples/s over those of the other one, - 1; None where no round
    has both."""

    point: Point
    revision: str
    gain: Estimate | None

    @property
    def verdict(self) -> str:
        """`slower`, `faster`, `same`, or `cannot tell`: as scaling compare says it."""
        if self.gain is None or self.gain.low is None or self.gain.high is None:
            return "cannot tell"
        most = 1 / (1 - LOSS) - 1
        if self.gain.high < 0 and self.gain.mean < -LOSS:
            return "slower"
        if self.gain.low > 0 and self.gain.mean > most:
            return "faster"
        return "same" if self.gain.low >= -LOSS and self.gain.high <= most else "cannot tell"


def changes(records: Iterable[PointRecord]) -> tuple[Change, ...]:
    """What each cell changed that was measured with both revisions; nothing of a launch with one alone."""
    latest = kept(records)
    if not any(other_code.revision(record.point.strategy) for record in latest):
        return ()
    measured = exchanges(latest)
    found = [contest for group in groups(measured) for contest in contests(group)]
    table = Table([contest.layout for contest in found])
    told = [change for contest in found for change in _of(contest, table)]
    compared = {(change.point.cell, change.revision) for change in told}
    others = (_uncompared(cell.point) for cell in measured if other_code.revision(cell.point.strategy))
    return (*told, *(one for one in others if (one.point.cell, one.revision) not in compared))


def _uncompared(point: Point) -> Change:
    """Of a cell that competes with none: it failed, its ranks share cores, or its bytes took another network."""
    own = replace(point, strategy=other_code.own(point.strategy))
    return Change(own, other_code.revision(point.strategy), None)


def _of(contest: Contest, table: Table) -> Iterator[Change]:
    place = {rival.point.cell: at for at, rival in enumerate(contest.rivals)}
    for at, rival in enumerate(contest.rivals):
        revision = other_code.revision(rival.point.strategy)
        own = replace(rival.point, strategy=other_code.own(rival.point.strategy))
        if revision and own.cell in place:
            yield Change(own, revision, difference(table, contest, at, place[own.cell]))
