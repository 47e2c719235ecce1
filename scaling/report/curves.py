"""The scaling curves: a table per strategy and network. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling import text
from scaling.analysis.bottleneck import Path, rate
from scaling.analysis.rows import Row, ServerUse
from scaling.analysis.traffic_receipt import Receipt
from scaling.report import labels, words
from scaling.report.labels import Context
from scaling.report.parts import (
    DEVICE_BATCH,
    EFFICIENCY,
    NODES,
    RATE,
    SPEEDUP,
    Column,
    Detail,
    Line,
    N,
    Notes,
    Section,
    breakdown_columns,
)

MOST_SERVERS = 4


def groups(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each scaling curve, by world size."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.curve, []).append(row)
    return list(found.values())


def curve(
    group: Sequence[Row], known: Context, planned: int, notes: Notes, stale: frozenset[tuple[int, int]]
) -> Section:
    """The table of one curve. `planned` are the rounds that each row should have; `stale` the groups
    and world sizes in which an asynchronous row takes part."""
    is_strong = group[0].workload.batch_rule == "strong"
    has_nodes = any(row.nodes > 1 for row in group)
    return Section(
        title=labels.title(group, known),
        columns=_columns(has_nodes=has_nodes, is_strong=is_strong),
        lines=tuple(
            _line(row, before, notes.marks(notes_of(row, planned)), has_nodes=has_nodes)
            for row, before in zip(group, (None, *group[:-1]), strict=True)
        ),
        details=tuple(Detail(label=label, values=values) for label, values in _details(group, stale) if values),
    )


def _columns(*, has_nodes: bool, is_strong: bool) -> tuple[Column, ...]:
    nodes = (NODES,) if has_nodes else ()
    batch = (DEVICE_BATCH,) if is_strong else ()
    return (N, *nodes, *batch, RATE, SPEEDUP, EFFICIENCY, *breakdown_columns(is_strong=is_strong))


def notes_of(row: Row, planned: int) -> tuple[str, ...]:
    """Its footnotes; a row that a broken-off run left with fewer rounds says so."""
    fewer = (f"{row.rounds_tried} of {planned} rounds measured",) if row.rounds_tried < planned else ()
    return (*fewer, *row.footnotes)


def _line(row: Row, before: Row | None, marks: tuple[int, ...], *, has_nodes: bool) -> Line:
    cells = [str(row.world_size)]
    if has_nodes:
        cells.append(str(row.nodes))
    if row.workload.batch_rule == "strong":
        cells.append(str(row.workload.batch_size))
    cells, says = _measured_cells(row, cells)
    return Line(
        cells=tuple(cells),
        says=says,
        flags=shown_flags(row, says),
        marks=marks,
        above="several nodes" if row.nodes > 1 and before is not None and before.nodes == 1 else "",
        efficiency=row.efficiency.mean if row.efficiency else None,
    )


def shown_flags(row: Row, says: str) -> tuple[str, ...]:
    """All but what is said in the cells' place."""
    return tuple(flag for flag in row.flags if flag not in ("FAILED", says))


def _measured_cells(row: Row, cells: list[str]) -> tuple[list[str], str]:
    """All cells, or those there are and what is said in place of the others."""
    if row.failed is not None:
        return cells, f"failed: {row.failed.cause}"
    cells = [*cells, words.rate(row.samples_per_s), words.speedup(row.speedup)]
    efficiency, says = efficiency_cells(row)
    return [*cells, *efficiency], says


def efficiency_cells(row: Row) -> tuple[list[str], str]:
    """Efficiency and the loss by cause, or what is said in their place."""
    if row.efficiency is None or row.breakdown is None:
        return [], "OVERSUBSCRIBED" if "OVERSUBSCRIBED" in row.flags else "no baseline"
    lost = row.breakdown
    parts = [lost.contention, lost.straggling, lost.exposed]
    if row.workload.batch_rule == "strong":
        parts.append(lost.small_batch)
    return [words.percent(row.efficiency), *map(words.fraction, (*parts, lost.unexplained))], ""


# ---------------------------------------------------------------- below a table


def _details(group: Sequence[Row], stale: frozenset[tuple[int, int]]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """What has no column: the second baseline, the two factors of efficiency across nodes, the training, what
    an asynchronous mode saw, the servers."""
    own = [row for row in group if row.world_size > 1 and row.strategy_efficiency]
    across = [row for row in group if row.intra_node is not None]
    trained = [row for row in group if row.first_loss is not None]
    equal = [row for row in trained if (row.group, row.world_size) in stale]
    lagging = [row for row in group if row.staleness is not None]
    served = [row for row in group if row.server_use]
    yield "against its own N=1", tuple(_at(row, words.percent(row.strategy_efficiency)) for row in own)
    yield "intra-node x inter-node", tuple(_at(row, _two_factors(row)) for row in across)
    yield "training loss", tuple(_at(row, f"{row.first_loss:.3f} to {row.last_loss:.3f}") for row in trained)
    yield "loss at equal samples", tuple(_at(row, _equal(row)) for row in equal if row.loss_at is not None)
    yield "staleness, steps", tuple(_at(row, f"{row.staleness:.2f}") for row in lagging)
    yield "bytes between nodes", tuple(_at(row, _carried(row.receipt)) for row in group if row.receipt)
    yield "busiest path", tuple(_at(row, _path(row.paths[0])) for row in group if row.paths)
    emulated = [row for row in group if row.machine_cpu_percent is not None]
    yield "CPU while emulating", tuple(_at(row, f"{row.machine_cpu_percent:.0f} %") for row in emulated)
    yield "servers", tuple(_at(row, _servers(row.server_use)) for row in served)


def _at(row: Row, value: str) -> str:
    return f"N={row.world_size} {value}"


def _equal(row: Row) -> str:
    return f"{words.loss_at(row)} ({words.images(row.loss_at_samples)})"


def _two_factors(row: Row) -> str:
    return f"{words.fraction(row.intra_node, ' %')} x {words.fraction(row.inter_node, ' %')}"


def _carried(receipt: Receipt) -> str:
    """`99.9 % on ib0 (0.1 % eth0), 1.04 x expected`."""
    total = sum(receipt.sent_bytes.values())
    others = (
        f"{sent / total:.1%} {card}" for card, sent in receipt.sent_bytes.items() if card not in receipt.wanted
    )
    beside = f" ({', '.join(others).replace('%', ' %')})" if total and len(receipt.sent_bytes) > 1 else ""
    ratio = f", {receipt.over_expected:.2f} x expected" if receipt.over_expected is not None else ""
    on = ", ".join(receipt.wanted) or "no card"
    return f"{100 * receipt.share:.1f} % on {on}{beside}{ratio}"


def _path(path: Path) -> str:
    """`node1 to node2 62 % busy at 9.4 Gb/s`."""
    return f"{path} {100 * path.busy_share:.0f} % busy at {rate(path.bits_per_s)}"


def _servers(used: Sequence[ServerUse]) -> str:
    """`server-0 on node1, 37 % of a core`; many of them in one."""
    if len(used) <= MOST_SERVERS:
        return "; ".join(f"{one.name} on {one.host}{_of_a_core([one])}" for one in used)
    hosts = list(dict.fromkeys(one.host for one in used))
    return f"{text.counted(len(used), 'server')} on {text.several(hosts)}{_of_a_core(used)}"


def _of_a_core(used: Iterable[ServerUse]) -> str:
    known = sorted(one.cpu_percent for one in used if one.cpu_percent is not None)
    if not known:
        return ""
    low, high = words.number(known[0], 0), words.number(known[-1], 0)
    return f", {high} % of a core" if low == high else f", {low} to {high} % of a core"
