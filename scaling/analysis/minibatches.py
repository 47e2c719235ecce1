"""What a larger batch gains, and what passes take: sweeps over the batch of a device. Pure.

The minibatch efficiency of a batch is its rate over that of the fastest batch of the sweep; t(2b) is held against
2 t(b), as in Addfor's study of 2017, where it was more on one GPU (VGG on a GTX 1080: 899.86 ms at 128, 420.28 ms
at 64). Batches are compared as exchanges are (contrasts.py), all sweeps of a table being one family.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, log
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.audit import UNRANKED
from scaling.analysis.cell import Cell
from scaling.analysis.cell_rows import baseline
from scaling.analysis.contrasts import Layout, Table
from scaling.analysis.controls import Controls
from scaling.analysis.rows import Contender, Minibatch, Row
from scaling.analysis.stats import Estimate, geometric
from scaling.records.point import Pass

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
                    flags=tuple(flag for flag in row.flags if flag in UNRANKED),
                ),
                logs if cell.competes else {},
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
