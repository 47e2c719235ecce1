"""The check command and its text output. Rank 0 leads, judges and prints; the other ranks serve."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING

from scaling.command import asked_or_code, complain, deliver, show
from scaling.errors import Interrupted, LaunchError, ScalingError
from scaling.hosts import info, networks
from scaling.records.network import GBIT, Network
from scaling.records.task import DeviceRates, Timed
from scaling.text import as_json, counted, one_line, printable, signal_name
from scaling.tools.check import NAME
from scaling.tools.check.facts import AllReduce, Facts, Findings, Look, Matrix, Verdict, both
from scaling.tools.check.lead import Lead, age_s, begin, leading
from scaling.tools.check.prober import Prober
from scaling.tools.check.verdicts import judge
from scaling.tools.check.verdicts.devices import QUANTITIES, by_kind
from scaling.tools.check.verdicts.links import gbit, where
from scaling.transport.base import Cluster
from scaling.transport.launch import Signals, abort, as_rank

if TYPE_CHECKING:
    from scaling.tools.check import flags

# ---------------------------------------------------------------- text output

WIDE = 24  # nodes or devices; of more there is a summary
LEGEND = "    x could not be measured, . not tried"
RATES = (
    "device rates, all at once: matrix product in TFLOP/s, memory in GB/s, training step in samples/s",
    "  copy counts bytes read and written; the median repeat of a GPU, the fastest of CPUs",
)
Row = tuple[str, Sequence[str]]


def table(head: Sequence[str], rows: Sequence[Row], widths: Sequence[int]) -> list[str]:
    """Return the head and a line for each row: its name and its cells, right-aligned."""
    left = max(len(name) for name, _ in rows)
    return [
        f"{name:<{left}}{''.join(f'{cell:>{width}}' for cell, width in zip(cells, widths, strict=False))}"
        for name, cells in (("", head), *rows)
    ]


def device_table(rates: Sequence[DeviceRates], most: int) -> list[str]:
    """Render one line a device; of more than `most` devices the least, median and most of each kind."""
    measured = [one for one in rates if not one.left_out]
    columns = [quantity for quantity in QUANTITIES if any(quantity.of(one) is not None for one in measured)]
    if not columns:
        return []
    rows: list[tuple[str, list[float | None]]] = []
    for like in by_kind(measured):
        if len(measured) <= most:
            rows += [(f"  {one.place}", [quantity.of(one) for quantity in columns]) for one in like]
            continue
        known = [[rate for one in like if (rate := quantity.of(one)) is not None] for quantity in columns]
        for word, pick in (("least", min), ("median", median), ("most", max)):
            rows.append((f"  {len(like)} x {like[0].name}, {word}", [pick(of) if of else None for of in known]))
    cells = [
        (name, ["-" if rate is None else one.digits(rate) for one, rate in zip(columns, row, strict=True)])
        for name, row in rows
    ]
    head = [one.column for one in columns]
    width = 2 + max(map(len, chain(head, *(row for _, row in cells))))
    return [*RATES, *table(head, cells, [width] * len(columns)), ""]


def render(found: Findings) -> str:
    matrices = chain.from_iterable(_network(found.facts, network) for network in found.facts.networks)
    verdicts = map(summary_line, found.verdicts)
    devices = device_table(found.facts.device_rates, WIDE)
    shown = [*devices, *matrices, *_all_reduces(found.facts), *verdicts, "", _sum(found)]
    return "\n".join(map(printable, shown))


def summary_line(verdict: Verdict) -> str:
    """Render one verdict: `warning  mtu            ib: 9000 on node1; 1500 on node2; mend: ...`."""
    mend = f"; mend: {verdict.mend}" if verdict.mend else ""
    return f"{verdict.level:<8} {verdict.topic:<14} {' '.join(verdict.text.split())}{mend}"


def handover(verdicts: Iterable[Verdict]) -> str:
    """Render errors and warnings as a Markdown table, a line for each device, link or other part."""
    lines = ["| level | node | part | seen | expected | what to do |", "| --- | --- | --- | --- | --- | --- |"]
    for verdict in verdicts:
        if verdict.level != "ok":
            for look in verdict.looks or (Look("", verdict.topic, verdict.text, ""),):
                cells = (verdict.level, *look, verdict.mend)
                lines.append(f"| {' | '.join(one_line(cell).replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(map(printable, lines)) + "\n"


def _sum(found: Findings) -> str:
    counts = Counter(one.level for one in found.verdicts)
    words = [counted(counts[level], level) for level in ("error", "warning") if counts[level]]
    return f"{' and '.join(words) or 'nothing to mend'}; the preflight took {found.wall_s:.1f} s"


def _network(facts: Facts, network: Network) -> list[str]:
    if not any(link.network == network.word for link in facts.links):
        return []
    rate = f", {network.rate_bits_per_s / GBIT:g} Gb/s {network.why}" if network.rate_bits_per_s else ""
    latencies, bandwidths = facts.latencies(network.word), facts.bandwidths(network.word)
    return [
        f"{network.word}: {where(network)}{rate}",
        "  latency in us, half the median round trip of small messages over TCP",
        *_matrix(facts, network.word, latencies, lambda seconds: f"{1e6 * seconds:.0f}"),
        "  bandwidth in Gb/s, one TCP flow from the row's node to the column's",
        *_matrix(facts, network.word, bandwidths, gbit),
        "",
    ]


def _matrix(facts: Facts, network: str, matrix: Matrix, written: Callable[[float], str]) -> list[str]:
    nodes = [node for node in facts.nodes if any(node in (link.client, link.server) for link in facts.links)]
    if len(nodes) > WIDE:
        return _summary(nodes, matrix, written)
    cells = {pair: written(value) for pair, value in matrix.items()}
    tried = (pair for link in facts.links if link.network == network for pair in both(link))
    cells |= {pair: "x" for pair in tried if pair not in cells}
    rows = [["-" if row == column else cells.get((row, column), ".") for column in nodes] for row in nodes]
    width = max(5, *(len(cell) for row in rows for cell in row)) + 1
    named = [(f"{number:>4} {node}", row) for number, (node, row) in enumerate(zip(nodes, rows, strict=True), 1)]
    gaps = any(cell in "x." for row in rows for cell in row)
    head = [str(number) for number in range(1, len(nodes) + 1)]
    return [*table(head, named, [width] * len(nodes)), *([LEGEND] if gaps else [])]


def _summary(nodes: Sequence[str], matrix: Matrix, written: Callable[[float], str]) -> list[str]:
    rows: list[Row] = []
    for node in nodes:
        row = sorted(value for (one, _), value in matrix.items() if one == node)
        three = (row[0], row[len(row) // 2], row[-1]) if row else ()
        rows.append((f"    {node}", [written(value) for value in three]))
    return table(("least", "median", "most"), rows, (9, 9, 9))


def _all_reduces(facts: Facts) -> list[str]:
    rows = [row for one in facts.all_reduces for row in _rows(one)]
    if not rows:
        return []
    libraries = ", ".join(dict.fromkeys(one.library for one in facts.all_reduces if one.library))
    head = ("MB", "best", "median", "times")
    return [
        f"all-reduce by {libraries}: busbw in GB/s, 2 (N-1)/N x bytes / time of the slowest of N ranks",
        *table(head, [(f"  {name}", _numbers(timed)) for name, timed in rows], (7, 9, 9, 7)),
        "",
    ]


def _rows(one: AllReduce) -> list[tuple[str, Timed]]:
    if one.everyone is None:
        return []
    over = f"{one.network}: " if one.network else ""
    inside = sorted(one.inside.items(), key=lambda item: item[1].best_busbw_bytes_per_s)
    shown = list(one.inside.items()) if len(inside) <= WIDE else [inside[0], inside[-1]]
    return [
        (f"{over}all {counted(one.everyone.ranks, 'rank')}", one.everyone),
        *((f"{over}the {timed.ranks} of {node} alone", timed) for node, timed in shown),
    ]


def _numbers(timed: Timed) -> tuple[str, ...]:
    best, usual = gbit(timed.best_busbw_bytes_per_s), gbit(timed.median_busbw_bytes_per_s)
    return f"{timed.bytes / 1e6:g}", best, usual, str(len(timed.times_s))


# ---------------------------------------------------------------- main

WALL_S = 11.0  # from the start to the end of the links, without device rates; links alone then take below 15 s


def main(argv: Sequence[str] | None = None) -> int:
    return as_rank(_rank, _read, lambda _: info.devices(""), NAME, argv)


def _read(argv: Sequence[str]) -> flags.Asked | int:
    from scaling.tools.check import flags  # only rank 0 needs Typer

    return asked_or_code(flags.parse, argv, NAME)


def _rank(cluster: Cluster, signals: Signals, _: Sequence[str], asked: flags.Asked | int | None) -> int:
    prober = begin(cluster, signals)
    if asked is None:
        prober.serve()
        return prober.exit_code
    try:
        return _lead(cluster, prober, asked)
    except LaunchError as error:
        complain(error, NAME)
        abort(cluster, error.exit_code)  # MPI's finalize would wait for silent ranks
        return error.exit_code


def _lead(cluster: Cluster, prober: Prober, asked: flags.Asked | int) -> int:
    try:
        with leading(cluster, prober) as lead:
            return asked if isinstance(asked, int) else _check(lead, asked)
    except LaunchError:
        raise
    except ScalingError as error:
        complain(error, NAME)
        return error.exit_code
    except Interrupted as stop:
        complain("ended before its verdicts", NAME, signal_name(stop.number))
        return stop.exit_code


def _check(lead: Lead, asked: flags.Asked) -> int:
    known = networks.read_fabric(asked.fabric or None)
    if not asked.json:
        lead.say = lambda text: show(f"check: {one_line(text)}\n")
    facts = lead.found(lead.enrolled(), asked.networks, known)
    left_s = WALL_S - age_s()
    if asked.device_rates:
        facts = lead.rated(facts)
    facts = lead.linked(facts, time.monotonic() + left_s)
    if asked.all_reduce:
        facts = lead.all_reduced(facts)
    found = Findings(facts=facts, verdicts=judge(facts), wall_s=age_s())
    if asked.handover:
        deliver(handover(found.verdicts), asked.handover)
    show(as_json(found) if asked.json else f"\n{render(found)}\n")
    return 1 if found.errors else 0


if __name__ == "__main__":
    sys.exit(main())
