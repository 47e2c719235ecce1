"""Which path between nodes an exchange waited for, and whether one of them is slower than the others. Pure.

In a ring every rank waits for the slowest path, so that all steps are equally long and no rank looks like the
straggler. But while the slow path has something to send all the time, the others are soon done and wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from scaling.records.events import Finished
from scaling.records.network import GBIT
from scaling.records.point import Record
from scaling.records.run import HelperRecord, PointRecord, RankRecord

# Of the path with most bytes: what carries less is not part of the exchange.
LEAST_PART = 0.2
# Chosen: a link at a tenth carries 0.07 of the others (tests/system/lab/test_sweeps.py).
# A path is slow that carries less than this part of its fastest rival's and is busy for this part of the time.
SLOW_PART = 0.4
LEAST_BUSY = 0.25


class Path(Record, frozen=True, kw_only=True):
    """From one node to another, over the measured windows: the bytes that arrived there, and for how long there
    were some to send. Rates and shares are those of the cluster that is emulated, if one is."""

    node: str
    peer: str
    bits_per_s: float
    busy_share: float

    def __str__(self) -> str:
        return f"{self.node} to {self.peer}"


def paths(records: Iterable[PointRecord]) -> tuple[Path, ...]:
    """Those that carried the exchange, over all rounds, busiest first."""
    sent: defaultdict[tuple[str, str], float] = defaultdict(float)
    busy_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    watched_s, slowed = 0.0, 1.0
    for record in records:
        found = list(_flows(record))
        if not found or not isinstance(record.outcome, Finished):
            continue
        watched_s += max(_watched_s(rank, record.epoch) for rank in record.ranks)
        slowed = record.point.hardware.link_divisor
        for path, count, seconds in found:
            sent[path] += count
            busy_s[path] += seconds
    least = LEAST_PART * max(sent.values(), default=0.0)
    carried = [
        Path(
            node=node,
            peer=peer,
            bits_per_s=8 * count / busy_s[node, peer] * slowed,
            busy_share=min(1.0, busy_s[node, peer] / watched_s),
        )
        for (node, peer), count in sent.items()
        if count >= least and busy_s[node, peer] > 0 and watched_s > 0
    ]
    return tuple(sorted(carried, key=lambda path: (-path.busy_share, path.node, path.peer)))


def _watched_s(rank: RankRecord, epoch: int | None) -> float:
    """How long connections were read: its windows, those that were measured again, and a step's time for the one
    before them that is not counted; where points take turns there is one before each window."""
    windows = (*rank.windows, *rank.disturbed)
    seconds, steps = sum(window.seconds for window in windows), sum(window.steps for window in windows)
    return seconds * (1 + rank.uncounted_steps(epoch) / steps) if steps else 0.0


def slow(found: Sequence[Path]) -> str:
    """`slow link: node2 ...` where some paths are much slower than their like and hold up the exchange; else "".

    A node is named that is an end of all slow paths, of two at least; else the paths are.
    """
    held = [
        path
        for path in found
        if path.bits_per_s < SLOW_PART * _fastest_rival(path, found) and path.busy_share >= LEAST_BUSY
    ]
    if not held:
        return ""
    common = set.intersection(*({path.node, path.peer} for path in held)) if len(held) > 1 else set()
    which = common.pop() if len(common) == 1 else " and ".join(map(str, held))
    worst = min(held, key=lambda path: path.bits_per_s)
    busy = f"{rate(worst.bits_per_s)} and was busy for {worst.busy_share:.0%} of the time"
    like = rate(_fastest_rival(worst, found))
    return f"slow link: {which}; {worst} carried {busy}, the fastest like it carried {like}"


def _fastest_rival(path: Path, found: Sequence[Path]) -> float:
    """bits/s of the fastest path with one of its ends, or, in a ring, of all: what servers send goes to many at
    once, what they get may come one after the other."""
    like = [other for other in found if other.node == path.node or other.peer == path.peer]
    return max(other.bits_per_s for other in (like if len(like) > 1 else found))


def rate(bits_per_s: float) -> str:
    """`9.4 Gb/s`, `38 Mb/s`."""
    if bits_per_s >= GBIT:
        return f"{bits_per_s / GBIT:.3g} Gb/s"
    return f"{bits_per_s / 1e6:.3g} Mb/s"


def _flows(record: PointRecord) -> Iterator[tuple[tuple[str, str], float, float]]:
    """(node, peer), bytes and busy seconds of each path between two of its nodes."""
    children = [*chain[RankRecord | HelperRecord](record.ranks, record.helpers)]
    nodes = {flow.address: one.host for one in children for flow in one.telemetry.flows}
    for one in children:
        for flow in one.telemetry.flows:
            if flow.peer in nodes:
                yield (one.host, nodes[flow.peer]), flow.sent_bytes, flow.busy_s
