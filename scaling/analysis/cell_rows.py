"""A cell, with the controls of its rounds -> its row; and what rows say of each other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis import audit, cpu_use, footnotes
from scaling.analysis.breakdown import intervals, split
from scaling.analysis.cell import Cell
from scaling.analysis.controls import Control, Controls, rounds
from scaling.analysis.rows import Baseline, Row, Standing
from scaling.analysis.stats import Estimate, interval
from scaling.analysis.step_time import StepTime


class Measured(NamedTuple):
    """A row, and the efficiency of each round where one is claimed."""

    row: Row
    efficiencies: Mapping[int, float]


def measured(cell: Cell, controls: Controls, single: Mapping[int, StepTime]) -> Measured:
    """Make the row of a cell; `single` are the step times by round of its strategy with a single rank."""
    by_round = rounds(cell, controls)
    claimed = by_round if cell.claims_efficiency else ()
    efficiency = interval([one.efficiency for one in claimed]) if claimed else None
    flags = _flags(cell, efficiency)
    row = replace(
        _own_row(cell),
        speedup=interval([one.efficiency * cell.point.world_size for one in by_round]) if by_round else None,
        efficiency=efficiency,
        strategy_efficiency=_strategy_efficiency(cell, single) if cell.claims_efficiency else None,
        breakdown=split(claimed) if claimed else None,
        breakdown_intervals=intervals(claimed) if claimed else {},
        flags=(*flags, *_marks(cell)),
        footnotes=tuple(footnotes.of_row(cell, controls, by_round, flags, efficiency)),
    )
    return Measured(row, {one.number: one.efficiency for one in claimed})


def among(
    one: Measured, *, curve: int, group: int, standing: Standing | None, loss: tuple[float | None, int] | None
) -> Measured:
    """The row with what it says in comparison with others: their numbers, where it stands among them, its training
    `loss` after so many samples as all have reached."""
    loss_at, count = loss or (None, None)
    row = replace(one.row, curve=curve, group=group, standing=standing, loss_at=loss_at, loss_at_samples=count)
    return one._replace(row=row)


def _own_row(cell: Cell) -> Row:
    """What its own records say: what was to be measured, on what it ran, how fast it was."""
    point = cell.point
    first_loss, last_loss = cell.first_and_last_loss
    return Row(
        workload=point.workload,
        hardware=point.hardware,
        strategy=point.strategy,
        interconnect=point.interconnect,
        options=point.options,
        placement=point.placement,
        global_batch_size=point.global_batch_size,
        world_size=point.world_size,
        nodes=cell.nodes,
        rounds=len(cell.times),
        rounds_tried=len(cell.records),
        samples_per_s=interval(cell.rates) if cell.times else None,
        synchronous=cell.synchronous,
        first_loss=first_loss,
        last_loss=last_loss,
        staleness=cell.staleness,
        servers=point.servers,
        server_hosts=point.server_hosts,
        server_use=cell.server_use,
        server_cpu_percent=cpu_use.of_servers(cell.server_use),
        machine_cpu_percent=cell.machine_cpu_percent,
        receipt=cell.receipt,
        paths=cell.paths,
        failed=cell.failure,
    )


def _flags(cell: Cell, efficiency: Estimate | None) -> tuple[audit.Flag, ...]:
    """The stamps of a row, worst first."""
    found = set(cell.flags)
    if cell.failure is not None:
        found.add("FAILED")
    if audit.superlinear(efficiency):
        found.add("SUPERLINEAR")
    return audit.in_order(found)


def _marks(cell: Cell) -> Iterator[str]:
    """What is no warning: that ranks do not wait for each other, what the network's counters prove."""
    if not cell.synchronous:
        yield "ASYNC"
    if cell.receipt is not None:
        yield cell.receipt.verdict


def _strategy_efficiency(cell: Cell, single: Mapping[int, StepTime]) -> Estimate | None:
    """Against the strategy's own single rank, over the rounds that have both."""
    share = cell.point.workload.share(cell.point.world_size)
    both = [single[n].step_s / (share * time.step_s) for n, time in cell.times.items() if n in single]
    return interval(both) if both else None


def across_nodes(curve: Sequence[Measured]) -> Iterator[Row]:
    """The rows of one curve, by world size; the efficiency of those on several nodes is split by that of the
    largest world size on one node."""
    inside = None
    for each in curve:
        if each.row.nodes == 1 and each.efficiencies:
            inside = each
    return (_by_nodes(each, inside) for each in curve)


def _by_nodes(across: Measured, inside: Measured | None) -> Row:
    """The two factors, over the rounds that have both: what is missing in one must not look like the other."""
    row = across.row
    if row.nodes < 2 or inside is None or inside.row.world_size * row.nodes != row.world_size:
        return row  # without as many ranks as each of its nodes has, nothing is known of the inside of a node
    shared = across.efficiencies.keys() & inside.efficiencies.keys()
    if not shared:
        return row
    intra = fmean(inside.efficiencies[number] for number in shared)
    return replace(row, intra_node=intra, inter_node=fmean(across.efficiencies[n] for n in shared) / intra)


def baseline(solo: Control) -> Baseline:
    """Make what is said of a plain loop on one device."""
    point, cell = solo.point, Cell(solo.records)
    return Baseline(
        workload=point.workload,
        hardware=point.hardware,
        strategy=point.strategy,
        samples_per_s=interval(cell.rates) if cell.times else None,
        footnotes=tuple(footnotes.of_baseline(cell)),
    )
