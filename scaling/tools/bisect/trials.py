"""What records of exchanges on groups of nodes say to the search. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from statistics import median, stdev

from scaling.analysis.step_time import step_time
from scaling.records.run import PointRecord
from scaling.tools.bisect.belief import Trial

# Below this nobody believes that two starts are alike.
LEAST_NOISE = 0.01


def trial(record: PointRecord, nodes: Sequence[str]) -> Trial | None:
    """One `comm` on some of the `nodes`, by their numbers; None where it has no time."""
    time = step_time(record)
    if time is None:
        return None
    group = frozenset(nodes.index(host) for host in record.hosts)
    return Trial(group, log(time.step_s / volume(record, len(group))))


def volume(record: PointRecord, nodes: int, ranks: int | None = None) -> float:
    """How many times the gradients' bytes each rank moves: 2 (N - 1) / N in a ring of N ranks (Patarasuk & Yuan,
    2009); to servers on M nodes and back, 2 (M - 1) / M leave the node. N is `ranks`, without them the record's.
    """
    number = nodes if record.pattern == "servers" else ranks or record.point.world_size
    return 2 * (number - 1) / number


def noise(records: Iterable[PointRecord]) -> float:
    """The standard deviation of logarithms from window to window: the median over points, and no less than 1 %."""
    found = [
        stdev(logs)
        for record in records
        if record.ranks and len(logs := [log(w.seconds / w.steps) for w in record.ranks[0].windows]) > 1
    ]
    return max(LEAST_NOISE, median(found) if found else 0.0)
