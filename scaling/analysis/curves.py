"""Which exchanges belong together: on one scaling curve, and side by side at one world size. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from scaling.analysis.cell import Cell, cells
from scaling.analysis.controls import Key
from scaling.records.point import Point
from scaling.records.run import PointRecord


def comparable(point: Point) -> Key:
    """What two exchanges of one world size share if their rates may be compared, and all of one scaling curve."""
    return (point.reference, point.hardware, point.placement)


def series(point: Point) -> Key:
    """What the world sizes of one scaling curve share, the number of parameter servers apart."""
    return (*comparable(point), point.interconnect, point.strategy, point.sorted_options, point.server_hosts)


def curve_keys(points: Iterable[Point]) -> dict[str, Key]:
    """By cell, what the world sizes of one scaling curve share.

    The number of parameter servers may grow along a curve (one per node). It tells curves apart only where
    some world size was measured with several: then each number is a curve of its own. Servers on nodes of
    their own are always another curve than servers on the training nodes.
    """
    return keys_of_series({point.cell: (series(point), point) for point in points})


def keys_of_series(by_cell: Mapping[str, tuple[Key, Point]]) -> dict[str, Key]:
    """By cell, the key of its curve, given that of its series."""
    counts: dict[tuple[Key, int], set[int]] = defaultdict(set)
    for key, point in by_cell.values():
        counts[key, point.world_size].add(point.servers)
    several = {key for (key, _), servers in counts.items() if len(servers) > 1}
    return {cell: (*key, point.servers if key in several else 0) for cell, (key, point) in by_cell.items()}


def numbered(keys: Iterable[Key]) -> dict[Key, int]:
    """Each key's place among the different ones."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def exchanges(records: Iterable[PointRecord]) -> list[Cell]:
    """The measured exchanges, sorted: curve by curve, and inside each by world size; none of those on some nodes
    alone."""
    found = cells(record for record in records if record.point.kind == "exchange" and not record.point.hosts)
    keys = curve_keys([cell.point for cell in found])
    return sorted(found, key=lambda cell: (keys[cell.name], cell.point.world_size))
