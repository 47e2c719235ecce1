"""Records -> what a table says: rows, baselines, comparisons. Pure.

    step time     synchronous: longest rank's time from the common start to its last synchronisation / its
                  steps, side by side of each window; asynchronous: N x batch per device / samples/s
    samples/s(N)  synchronous: N x batch per device / step time; asynchronous: sum of the ranks' own rates,
                  batch x steps / the rank's own time
    efficiency    t(1) / t(N) under the weak rule, t(1) / (N t(N)) under the strong, t(1) / (k t(N)) under the
                  node rule with k devices of each node; t(1) is the plain loop of the same framework on one
                  device, at the batch per device (weak), the global batch (strong) or that of a node (node);
                  where every seat was measured alone, the harmonic mean over the row's own: N / t(1) is then the
                  sum of what its devices do alone
    speedup       N x efficiency

Points on some nodes of the launch alone (`Point.hosts`, of scaling.bisect) stand in no table.

Each is formed inside a round, in logarithms, its interval over rounds, with the variance of all cells that share
the work (pooling.py). Where a key was measured twice, the last counts. The weak rule is Gustafson's ("Reevaluating
Amdahl's law", 1988), the strong one Amdahl's (1967); the node rule is the strong one inside a node and the weak
one from node to node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from scaling.analysis.accuracy import trainings
from scaling.analysis.cell import Cell
from scaling.analysis.cell_rows import Measured, across_nodes, among, baseline, measured
from scaling.analysis.comparisons import Beside, beside, equal_losses, resolutions
from scaling.analysis.comparisons import comparisons as compare
from scaling.analysis.contests import contests, groups
from scaling.analysis.contrasts import Table
from scaling.analysis.controls import Controls
from scaling.analysis.curves import comparable, curve_keys, exchanges, numbered
from scaling.analysis.joining import join, joinable
from scaling.analysis.less_work import judge
from scaling.analysis.minibatches import minibatches
from scaling.analysis.over_cpu import over_cpu
from scaling.analysis.pools import pool_of, shared
from scaling.analysis.rows import Baseline, Comparison, Contender, Row, Standing
from scaling.analysis.training_rows import Analysis
from scaling.records.run import PointRecord

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
        judge(cell, controls)
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
    pools = shared(cells, controls)
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
