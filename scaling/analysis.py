"""Records -> what a table says: rows, baselines, comparisons. Pure.

    step time     longest rank's time from the common start to its last synchronisation / its steps
    images/s(N)   N x batch per device / step time
    efficiency    t(1) / t(N) under the weak rule, t(1) / (N t(N)) under the strong; t(1) is the plain loop
                  on one device, at the batch per device (weak) or the global batch (strong)
    speedup       N x efficiency

Each is formed inside a round, its interval over rounds. Where a key was measured twice, the last counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from msgspec.structs import replace

from scaling import audit
from scaling.findings import Analysis, Baseline, Cell, Comparison, Contender, Row
from scaling.joining import join, joinable
from scaling.losses import (
    Controls,
    Key,
    Loss,
    StepTime,
    conditions,
    missing_controls,
    options,
    reference_batch,
    rounds,
    split,
    step_time,
)
from scaling.records import Failed, Finished, Point, PointRecord, RankRecord
from scaling.stats import Estimate, interval, paired

__all__ = [
    "Analysis", "Baseline", "Comparison", "Contender", "Loss", "Row", "analyse", "baselines", "comparisons",
    "join", "joinable", "rows",
]  # fmt: skip


class _Exchange(NamedTuple):
    """One cell: its records by round and the step times of those that ended well."""

    records: list[PointRecord]
    times: dict[int, StepTime]

    @property
    def point(self) -> Point:
        return self.records[0].point


def rows(records: Iterable[PointRecord]) -> tuple[Row, ...]:
    """One row per measured exchange, sorted by model, precision, interconnect, strategy and world size."""
    return analyse(records).rows


def baselines(records: Iterable[PointRecord]) -> tuple[Baseline, ...]:
    """The plain loops on one device."""
    return analyse(records).baselines


def comparisons(records: Iterable[PointRecord]) -> tuple[Comparison, ...]:
    """At each world size, the best of the exchange methods and networks against each of the others."""
    return analyse(records).comparisons


def analyse(records: Iterable[PointRecord]) -> Analysis:
    """Everything at once, over the last record of each key."""
    latest = {record.point.key: record for record in records}.values()
    controls = Controls(latest)
    exchanges = sorted(_exchanges(latest), key=lambda exchange: _order(exchange.point))
    own = {_series(e.point): e.times for e in exchanges if e.point.world_size == 1}
    measured = [_row(e, controls, own.get(_series(e.point), {})) for e in exchanges]
    return Analysis(
        rows=_across_nodes(measured, [_series(e.point) for e in exchanges]),
        baselines=tuple(_baseline(list(solos.values())) for _, solos in sorted(controls.solos.items())),
        comparisons=tuple(_compare_all(exchanges)),
    )


def _exchanges(records: Iterable[PointRecord]) -> list[_Exchange]:
    by_cell: dict[Key, list[PointRecord]] = defaultdict(list)
    for record in records:
        if record.point.kind == "exchange":
            by_cell[(*_series(record.point), record.point.world_size)].append(record)
    return [_Exchange(found, _times(found)) for found in by_cell.values()]


def _times(records: Iterable[PointRecord]) -> dict[int, StepTime]:
    times = ((record.point.round, step_time(record)) for record in records)
    return {number: time for number, time in times if time is not None}


def _contest(point: Point) -> Key:
    """What must be equal for two exchanges of one world size to be compared."""
    return (*conditions(point), point.placement, point.batch_rule, reference_batch(point))


def _series(point: Point) -> Key:
    """What the world sizes of one scaling curve share."""
    return (*_contest(point), point.interconnect, point.strategy, options(point))


def _order(point: Point) -> Key:
    return (*_series(point), point.world_size)


def _row(exchange: _Exchange, controls: Controls, own: Mapping[int, StepTime]) -> Row:
    records, times, point = exchange.records, exchange.times, exchange.point
    measured = rounds(point, times, controls)
    efficiencies = [one.ideal_s / one.exchange_s for one in measured]
    claimed = not audit.oversubscribed(records)
    efficiency = interval(efficiencies) if efficiencies and claimed else None
    failed = None if times else _failure(records)
    stamps = audit.flags(records, failed, efficiency)
    first_loss, last_loss = _training_loss(records)
    return replace(
        _bare_row(exchange),
        images_per_s=interval(_rates(exchange)) if times else None,
        speedup=interval([value * point.world_size for value in efficiencies]) if efficiencies else None,
        efficiency=efficiency,
        strategy_efficiency=_strategy_efficiency(exchange, own) if claimed else None,
        loss=split(measured) if efficiency else None,
        first_loss=first_loss,
        last_loss=last_loss,
        flags=stamps,
        failed=failed,
        footnotes=(
            *audit.findings(records, stamps, controls.solo_records(point), efficiency),
            *(missing_controls(point, measured, controls) if efficiency else ()),
            *audit.no_baseline(point, controls, len(times) - len(measured), len(times)),
            *(audit.of_controls(controls.behind(point)) if efficiency else ()),
            *audit.warnings(records),
        ),
    )


def _cell(point: Point) -> dict[str, Any]:
    return {field: getattr(point, field) for field in Cell.__struct_fields__}


def _bare_row(exchange: _Exchange) -> Row:
    point = exchange.point
    return Row(
        **_cell(point),
        strategy=point.strategy,
        interconnect=point.interconnect,
        options=point.options,
        placement=point.placement,
        batch_rule=point.batch_rule,
        batch_size=point.batch_size,
        global_batch_size=point.global_batch_size,
        world_size=point.world_size,
        nodes=max(1, *(record.nodes for record in exchange.records)),
        rounds=len(exchange.times),
        rounds_tried=len(exchange.records),
    )


def _rates(exchange: _Exchange) -> list[float]:
    """images/s of each round."""
    return [exchange.point.global_batch_size / time.max_s for time in exchange.times.values()]


def _failure(records: Sequence[PointRecord]) -> Failed:
    """Why no round has a result."""
    for record in records:
        if isinstance(record.outcome, Failed):
            return record.outcome
    return Failed(cause="no-result", message="ended without measured windows")


def _strategy_efficiency(exchange: _Exchange, own: Mapping[int, StepTime]) -> Estimate | None:
    share = 1 if exchange.point.batch_rule == "weak" else exchange.point.world_size
    both = [own[n].max_s / (share * time.max_s) for n, time in exchange.times.items() if n in own]
    return interval(both) if both else None


def _training_loss(records: Sequence[PointRecord]) -> tuple[float | None, float | None]:
    """Mean over ranks and rounds of the first and of the last window that has a loss."""
    ranks = [rank for record in records if isinstance(record.outcome, Finished) for rank in record.ranks]
    ends = [found for rank in ranks if (found := _ends(rank)) is not None]
    if not ends:
        return None, None
    return fmean(first for first, _ in ends), fmean(last for _, last in ends)


def _ends(rank: RankRecord) -> tuple[float, float] | None:
    windows = (*rank.warmup, *rank.windows)
    first = next((window.loss for window in windows if window.loss is not None), None)
    last = next((window.loss for window in reversed(windows) if window.loss is not None), None)
    return None if first is None or last is None else (first, last)


def _across_nodes(found: Sequence[Row], series: Sequence[Key]) -> tuple[Row, ...]:
    """Split the efficiency of rows on several nodes by that of the largest world size on one node."""
    inside: dict[Key, Row] = {}
    for row, key in zip(found, series, strict=True):
        if row.nodes == 1 and row.efficiency is not None:
            inside[key] = row
    return tuple(_by_nodes(row, inside.get(key)) for row, key in zip(found, series, strict=True))


def _by_nodes(row: Row, inside: Row | None) -> Row:
    if inside is not None and inside.world_size * row.nodes != row.world_size:
        return row  # not as many ranks as each of the row's nodes has: says nothing about the inside of a node
    if row.nodes < 2 or row.efficiency is None or inside is None or inside.efficiency is None:
        return row
    intra = inside.efficiency.mean
    return replace(row, intra_node=intra, inter_node=row.efficiency.mean / intra)


def _baseline(records: Sequence[PointRecord]) -> Baseline:
    point, times = records[0].point, _times(records)
    stamps = audit.flags(records, None, None)
    return Baseline(
        **_cell(point),
        strategy=point.strategy,
        batch_size=point.batch_size,
        images_per_s=interval([point.batch_size / time.max_s for time in times.values()]) if times else None,
        footnotes=(*audit.findings(records, stamps, {}, None), *audit.warnings(records)),
    )


def _compare_all(exchanges: Sequence[_Exchange]) -> Iterator[Comparison]:
    contests: dict[Key, list[_Exchange]] = defaultdict(list)
    for exchange in exchanges:
        if exchange.times:
            contests[(*_contest(exchange.point), exchange.point.world_size)].append(exchange)
    for _, contest in sorted(contests.items(), key=lambda item: item[0]):
        best = max(contest, key=lambda exchange: fmean(_rates(exchange)))
        yield from (_compare(best, other) for other in contest if other is not best)


def _compare(best: _Exchange, other: _Exchange) -> Comparison:
    shared = sorted(best.times.keys() & other.times.keys())
    faster = [1 / best.times[number].max_s for number in shared]
    slower = [1 / other.times[number].max_s for number in shared]
    return Comparison(
        **_cell(best.point),
        world_size=best.point.world_size,
        best=_contender(best.point),
        other=_contender(other.point),
        advantage=paired(slower, faster) if len(shared) >= 2 else None,
    )


def _contender(point: Point) -> Contender:
    return Contender(strategy=point.strategy, interconnect=point.interconnect, options=point.options)
