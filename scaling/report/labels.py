"""What rows are called: as much as tells them apart, the rest is said once for the whole report. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from scaling import text
from scaling.analysis.rows import Baseline, Row
from scaling.records.point import Record
from scaling.report import words

Ways = tuple[str, ...]


class Context(Record, frozen=True, kw_only=True):
    """What labels leave out because all share it, which of the `ways` they name because they differ, and
    whether they tell the parameter servers."""

    shared: frozenset[words.Option]
    varying: tuple[int, ...]
    tells_servers: bool


def context(rows: Sequence[Row]) -> Context:
    """Of all rows of a report."""
    options = [frozenset(row.options.items()) for row in rows]
    return Context(
        shared=frozenset.intersection(*options) if options else frozenset(),
        varying=_varying(rows),
        tells_servers=_servers_differ(rows),
    )


def conditions(measured: Row | Baseline) -> Ways:
    """What a row or a baseline was measured with."""
    work = measured.workload
    compiled = "compiled" if work.compile else "eager"
    return (work.model, work.data, measured.hardware.label, work.precision, work.memory_format, compiled)


def ways(row: Row) -> Ways:
    """What may differ between the groups of rows that are compared, as titles name it."""
    weak = row.workload.batch_rule == "weak"
    batch = f"{row.workload.batch_size} per device" if weak else f"{row.global_batch_size} in all"
    return (*conditions(row), row.placement, batch)


def _varying(rows: Iterable[Row]) -> tuple[int, ...]:
    """Which of the ways of measuring are not the same in the whole table, and so stand in titles."""
    values = zip(*(ways(row) for row in rows), strict=True)
    return tuple(index for index, found in enumerate(values) if len(set(found)) > 1)


def varying(row: Row, known: Context) -> tuple[str, ...]:
    """What differs between the groups of a report."""
    found = ways(row)
    return tuple(found[index] for index in known.varying)


def _servers_differ(rows: Iterable[Row]) -> bool:
    """Whether some have nodes of their own, or rows of one world size have different numbers of them."""
    counts: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row.servers:
            counts[row.world_size].add(row.servers)
            if row.server_hosts == "dedicated":
                return True
    return any(len(found) > 1 for found in counts.values())


def contender(row: Row, known: Context) -> str:
    """`torch:ps-sync over ib0 (wire=fp16), 2 servers dedicated`."""
    return curve([row], known)


def curve(rows: Sequence[Row], known: Context) -> str:
    """The same for the rows of a scaling curve, whose servers may grow with the nodes: `1-4 servers`."""
    name = words.who(rows[0], known.shared)
    if not known.tells_servers or not rows[0].servers:
        return name
    dedicated = " dedicated" if rows[0].server_hosts == "dedicated" else ""
    return f"{name}, {text.spread([row.servers for row in rows], 'server')}{dedicated}"


def title(rows: Sequence[Row], known: Context) -> str:
    """A curve's name and what is not the same in the whole report."""
    return ", ".join((curve(rows, known), *varying(rows[0], known)))


def servers(rows: Sequence[Row]) -> str:
    """`one per node, on the training nodes`, where no label tells it; else nothing."""
    having = [row for row in rows if row.servers]
    if not having or _servers_differ(having):
        return ""
    grows = len({row.servers for row in having}) > 1 and all(row.servers == row.nodes for row in having)
    number = "one per node" if grows else text.spread([row.servers for row in having], "server")
    return f"{number}, on the training nodes"
