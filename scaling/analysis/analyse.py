"""Records -> what a table says: rows, baselines, comparisons. Pure.

    step time     synchronous: longest rank's time from the common start to its last synchronisation / its
                  steps; asynchronous: N x batch per device / images/s
    images/s(N)   synchronous: N x batch per device / step time; asynchronous: sum of the ranks' own rates,
                  batch x steps / the rank's own time
    efficiency    t(1) / t(N) under the weak rule, t(1) / (N t(N)) under the strong; t(1) is the plain loop of
                  the same framework on one device, at the batch per device (weak) or the global batch (strong)
    speedup       N x efficiency

Each is formed inside a round, its interval over rounds. Where a key was measured twice, the last counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis import audit, bottleneck, footnotes, traffic_receipt, training_loss
from scaling.analysis.breakdown import Round, intervals, split
from scaling.analysis.comparisons import comparisons as compare
from scaling.analysis.comparisons import equal_losses, standings
from scaling.analysis.controls import Controls, missing_controls, rounds
from scaling.analysis.curves import Exchange, comparable, curve_keys, exchanges, times
from scaling.analysis.joining import join, joinable
from scaling.analysis.rows import Analysis, Baseline, Comparison, Contender, Row, ServerUse, Standing
from scaling.analysis.stats import Estimate, interval
from scaling.analysis.step_time import StepTime
from scaling.records.events import Failed, Finished
from scaling.records.point import SERVER
from scaling.records.run import HelperRecord, PointRecord

__all__ = [
    "Analysis", "Baseline", "Comparison", "Contender", "Row", "Standing", "analyse", "baselines",
    "comparisons", "join", "joinable", "kept", "rows",
]  # fmt: skip


def rows(records: Iterable[PointRecord]) -> tuple[Row, ...]:
    """One row per measured exchange, sorted by model, precision, interconnect, strategy and world size."""
    return analyse(records).rows


def baselines(records: Iterable[PointRecord]) -> tuple[Baseline, ...]:
    """The plain loops on one device."""
    return analyse(records).baselines


def comparisons(records: Iterable[PointRecord]) -> tuple[Comparison, ...]:
    """At each world size, the best of the exchange methods and networks against each of the others."""
    return analyse(records).comparisons


def kept(records: Iterable[PointRecord]) -> list[PointRecord]:
    """The last record of each key, by round and key: the order in which a file has them tells nothing."""
    latest = {record.point.key: record for record in records}
    return sorted(latest.values(), key=lambda record: (record.point.round, record.point.key))


def analyse(records: Iterable[PointRecord]) -> Analysis:
    """Everything at once, over the last record of each key."""
    latest = kept(records)
    controls, cells = Controls(latest), exchanges(latest)
    keys = curve_keys([cell.point for cell in cells])
    curves = {key: number for number, key in enumerate(dict.fromkeys(keys[cell.point.cell] for cell in cells))}
    groups = {key: number for number, key in enumerate(dict.fromkeys(comparable(cell.point) for cell in cells))}
    own = {keys[cell.point.cell]: cell.times for cell in cells if cell.point.world_size == 1}
    ranked, losses = standings(cells), equal_losses(cells)
    measured = []
    for cell in cells:
        name = cell.point.cell
        found = _measured(cell, controls, own.get(keys[name], {}))
        loss_at, count = losses.get(name, (None, None))
        whole = replace(
            found.row,
            curve=curves[keys[name]],
            group=groups[comparable(cell.point)],
            standing=ranked.get(name),
            loss_at=loss_at,
            loss_at_samples=count,
        )
        measured.append(found._replace(row=whole))
    return Analysis(
        rows=_across_nodes(measured),
        baselines=tuple(_baseline(list(solos.values())) for _, solos in sorted(controls.solos.items())),
        comparisons=tuple(compare(cells)),
    )


# ---------------------------------------------------------------- rows


class _Measured(NamedTuple):
    """A row and its claimed efficiency by round."""

    row: Row
    efficiency: Mapping[int, float]


def _measured(cell: Exchange, controls: Controls, own: Mapping[int, StepTime]) -> _Measured:
    by_round = rounds(cell.point, cell.times, controls, synchronous=cell.synchronous)
    claimed = not audit.oversubscribed(cell.records)
    row = _row(cell, controls, by_round, own, claimed=claimed)
    return _Measured(row, {one.number: one.efficiency for one in by_round} if claimed else {})


def _row(
    cell: Exchange, controls: Controls, by_round: Sequence[Round], own: Mapping[int, StepTime], *, claimed: bool
) -> Row:
    records, point = cell.records, cell.point
    efficiencies = [one.efficiency for one in by_round]
    efficiency = interval(efficiencies) if efficiencies and claimed else None
    failed = None if cell.times else _failure(records)
    stamps = audit.flags(records, failed, efficiency)
    receipt, paths = traffic_receipt.of_row(records), bottleneck.paths(records)
    first_loss, last_loss = training_loss.first_and_last_loss(records)
    return replace(
        _bare_row(cell),
        samples_per_s=interval(cell.rates) if cell.times else None,
        speedup=interval([value * point.world_size for value in efficiencies]) if efficiencies else None,
        efficiency=efficiency,
        strategy_efficiency=_strategy_efficiency(cell, own) if claimed else None,
        breakdown=split(by_round) if efficiency else None,
        breakdown_intervals=intervals(by_round) if efficiency else {},
        first_loss=first_loss,
        last_loss=last_loss,
        staleness=training_loss.staleness(records),
        flags=(*stamps, *(() if cell.synchronous else ("ASYNC",)), *((receipt.verdict,) if receipt else ())),
        receipt=receipt,
        paths=paths,
        failed=failed,
        footnotes=(
            *_footnotes(cell, controls, by_round, stamps, efficiency, receipt),
            *filter(None, [bottleneck.slow(paths)]),
        ),
    )


def _footnotes(
    cell: Exchange,
    controls: Controls,
    by_round: Sequence[Round],
    stamps: Sequence[str],
    efficiency: Estimate | None,
    receipt: traffic_receipt.Receipt | None,
) -> Iterator[str]:
    """What a reader must know, worst first."""
    point, measured = cell.point, len(cell.times)
    yield from footnotes.findings(cell.records, stamps, controls.solo_records(point), efficiency)
    yield from footnotes.of_network(receipt)
    if efficiency:
        yield from missing_controls(point, by_round, controls)
    yield from footnotes.no_baseline(point, controls, measured - len(by_round), measured)
    if efficiency:
        yield from footnotes.of_controls(controls.behind(point))
    yield from footnotes.warnings(cell.records)


def _bare_row(cell: Exchange) -> Row:
    """What was to be measured, and on what it ran."""
    point, servers = cell.point, _server_use(cell.records)
    known = [one.cpu_percent for one in servers if one.cpu_percent is not None]
    return Row(
        workload=point.workload,
        hardware=point.hardware,
        strategy=point.strategy,
        interconnect=point.interconnect,
        options=point.options,
        placement=point.placement,
        global_batch_size=point.global_batch_size,
        world_size=point.world_size,
        nodes=max(1, *(record.nodes for record in cell.records)),
        rounds=len(cell.times),
        rounds_tried=len(cell.records),
        synchronous=cell.synchronous,
        servers=point.servers,
        server_hosts=point.server_hosts,
        server_use=servers,
        server_cpu_percent=fmean(known) if known else None,
        machine_cpu_percent=_machine_cpu(cell.records),
    )


def _machine_cpu(records: Iterable[PointRecord]) -> float | None:
    """Of the busiest machine while it emulated, mean over rounds; None for real devices."""
    by_round = [
        [used for rank in record.ranks if (used := rank.telemetry.machine_cpu_percent) is not None]
        for record in records
    ]
    known = [max(found) for found in by_round if found]
    return fmean(known) if known else None


def _failure(records: Sequence[PointRecord]) -> Failed:
    """Why no round has a result."""
    for record in records:
        if isinstance(record.outcome, Failed):
            return record.outcome
    return Failed(cause="no-result", message="ended without measured windows")


def _strategy_efficiency(cell: Exchange, own: Mapping[int, StepTime]) -> Estimate | None:
    share = 1 if cell.point.workload.batch_rule == "weak" else cell.point.world_size
    both = [own[n].step_s / (share * time.step_s) for n, time in cell.times.items() if n in own]
    return interval(both) if both else None


def _server_use(records: Iterable[PointRecord]) -> tuple[ServerUse, ...]:
    """The parameter servers of the rounds that ended well, by number."""
    found: dict[tuple[int, str, str], list[HelperRecord]] = defaultdict(list)
    for record in records:
        for helper in record.helpers if isinstance(record.outcome, Finished) else ():
            number = helper.name.removeprefix(SERVER)
            if helper.name.startswith(SERVER) and number.isdecimal():
                found[int(number), helper.name, helper.host].append(helper)
    return tuple(
        ServerUse(name=name, host=host, cpu_percent=_mean_cpu(helpers))
        for (_, name, host), helpers in sorted(found.items(), key=lambda item: item[0])
    )


def _mean_cpu(helpers: Iterable[HelperRecord]) -> float | None:
    known = [used for helper in helpers if (used := helper.telemetry.cpu_percent) is not None]
    return fmean(known) if known else None


# ---------------------------------------------------------------- across nodes


def _across_nodes(found: Sequence[_Measured]) -> tuple[Row, ...]:
    """Split the efficiency of rows on several nodes by that of the largest world size on one node."""
    inside: dict[int, _Measured] = {}
    for one in found:
        if one.row.nodes == 1 and one.efficiency:
            inside[one.row.curve] = one
    return tuple(_by_nodes(one, inside.get(one.row.curve)) for one in found)


def _by_nodes(one: _Measured, inside: _Measured | None) -> Row:
    """The two factors, over the rounds that have both: what is missing in one must not look like the other."""
    row = one.row
    if row.nodes < 2 or inside is None or inside.row.world_size * row.nodes != row.world_size:
        return row  # without as many ranks as each of its nodes has, nothing is known of the inside of a node
    shared = one.efficiency.keys() & inside.efficiency.keys()
    if not shared:
        return row
    intra = fmean(inside.efficiency[number] for number in shared)
    return replace(row, intra_node=intra, inter_node=fmean(one.efficiency[n] for n in shared) / intra)


# ---------------------------------------------------------------- baselines


def _baseline(records: Sequence[PointRecord]) -> Baseline:
    point, by_round = records[0].point, times(records)
    stamps = audit.flags(records, None, None)
    return Baseline(
        workload=point.workload,
        hardware=point.hardware,
        strategy=point.strategy,
        samples_per_s=interval([point.workload.batch_size / time.step_s for time in by_round.values()])
        if by_round
        else None,
        footnotes=(*footnotes.findings(records, stamps, {}, None), *footnotes.warnings(records)),
    )
