"""Which exchanges belong together: cells over rounds, curves over world sizes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scaling.analysis.controls import Key
from scaling.analysis.step_time import StepTime, step_time
from scaling.records.point import Point
from scaling.records.run import PointRecord


class Exchange(NamedTuple):
    """One cell: its records by round and the step times of those that ended well."""

    records: list[PointRecord]
    times: dict[int, StepTime]

    @property
    def point(self) -> Point:
        """Of one of its rounds."""
        return self.records[0].point

    @property
    def synchronous(self) -> bool:
        """Whether its ranks wait for each other."""
        return all(record.synchronous for record in self.records)

    @property
    def rates(self) -> list[float]:
        """images/s of each round."""
        return [self.point.global_batch_size / time.step_s for time in self.times.values()]


def exchanges(records: Iterable[PointRecord]) -> list[Exchange]:
    """The cells, sorted: curve by curve, and inside each by world size."""
    by_cell: dict[str, list[PointRecord]] = defaultdict(list)
    for record in records:
        if record.point.kind == "exchange":
            by_cell[record.point.cell].append(record)
    found = [Exchange(cell, times(cell)) for cell in by_cell.values()]
    keys = curve_keys([exchange.point for exchange in found])
    return sorted(found, key=lambda exchange: (keys[exchange.point.cell], exchange.point.world_size))


def times(records: Iterable[PointRecord]) -> dict[int, StepTime]:
    """Step time by round, of the records that have one."""
    found = ((record.point.round, step_time(record)) for record in records)
    return {number: time for number, time in found if time is not None}


def curve_keys(points: Sequence[Point]) -> dict[str, Key]:
    """By cell, what the world sizes of one scaling curve share.

    The number of parameter servers may grow along a curve (one per node). It tells curves apart only where
    some world size was measured with several: then each number is a curve of its own. Servers on nodes of
    their own are always another curve than servers on the training nodes.
    """
    counts: dict[tuple[Key, int], set[int]] = defaultdict(set)
    for point in points:
        counts[_series(point), point.world_size].add(point.servers)
    several = {series for (series, _), found in counts.items() if len(found) > 1}
    return {point.cell: (*_series(point), point.servers if _series(point) in several else 0) for point in points}


def _series(point: Point) -> Key:
    return (*comparable(point), point.interconnect, point.strategy, point.sorted_options, point.server_hosts)


def comparable(point: Point) -> Key:
    """What two exchanges of one world size share if their rates may be compared, and all of one scaling curve."""
    return (point.reference, point.hardware, point.placement)
