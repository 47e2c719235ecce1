"""Whom the evidence points at before any group is measured: nodes that compute slowly, and slow paths. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import comb
from statistics import median

from scaling.analysis import bottleneck
from scaling.analysis.bottleneck import Path
from scaling.records.point import Record
from scaling.records.run import PointRecord
from scaling.tools.bisect.belief import searched

# A healthy node is last in so many windows with this probability.
CHANCE = 0.01
# How probable it is that a node is slow at which evidence points.
SUSPECTED = 0.3
# A path that carries less than this part of the fastest is worth a look; a verdict needs more (bottleneck.py).
DOUBTFUL_PART = 0.7


class Suspect(Record, frozen=True, kw_only=True):
    """A node and what points at it. `slower` is the fraction by which it computes more slowly than the median
    node, 0 where that is not what points at it."""

    node: str
    why: str
    slower: float = 0.0


def suspects(together: PointRecord | None, exchange: PointRecord | None, noise: float) -> tuple[Suspect, ...]:
    """All of them, who computes slowly first; records that are None or failed tell nothing."""
    computing = list(_computing(together, noise)) if together else []
    found = computing + (list(_sending(bottleneck.paths([exchange]))) if exchange else [])
    return tuple({one.node: one for one in reversed(found)}[node] for node in dict.fromkeys(s.node for s in found))


def _computing(record: PointRecord, noise: float) -> Iterator[Suspect]:
    """Nodes of `together` that are last in more windows than chance allows, and slower by what is searched."""
    by_node = _seconds(record)
    windows = min((len(times) for ranks in by_node.values() for times in ranks), default=0)
    last = Counter(
        max(by_node, key=lambda node: max(times[index] for times in by_node[node])) for index in range(windows)
    )
    mean_s = {node: max(sum(times) for times in ranks) for node, ranks in by_node.items()}
    ranks_in_all = sum(map(len, by_node.values()))
    for node, count in last.most_common():
        slower = mean_s[node] / median(mean_s.values()) - 1
        if tail(count, windows, len(by_node[node]) / ranks_in_all) < CHANCE and slower > searched(noise):
            why = (
                f"computes {100 * slower:.0f} % longer than the median node, last in {count} of {windows} windows"
            )
            yield Suspect(node=node, why=why, slower=slower)


def _seconds(record: PointRecord) -> dict[str, list[list[float]]]:
    """By node, of each of its ranks the seconds of a step, window by window."""
    found: dict[str, list[list[float]]] = {}
    for rank in record.ranks:
        found.setdefault(rank.host, []).append([window.seconds / window.steps for window in rank.windows])
    return found


def tail(count: int, windows: int, share: float) -> float:
    """How probable `count` or more of so many windows are if each falls to a node with the probability `share`."""
    each = (comb(windows, k) * share**k * (1 - share) ** (windows - k) for k in range(count, windows + 1))
    return sum(each)


def _sending(paths: Sequence[Path]) -> Iterator[Suspect]:
    """Nodes at the ends of slow paths, those at the ends of most of them."""
    fastest = max((path.bits_per_s for path in paths), default=0.0)
    slow = [path for path in paths if path.bits_per_s < DOUBTFUL_PART * fastest]
    ends = Counter(end for path in slow for end in (path.node, path.peer))
    for node, count in ends.most_common():
        if count == max(ends.values()):
            worst = min(
                (path for path in slow if node in (path.node, path.peer)), key=lambda path: path.bits_per_s
            )
            carried = f"{worst} carried {bottleneck.rate(worst.bits_per_s)}"
            yield Suspect(node=node, why=f"{carried}, busy for {worst.busy_share:.0%} of the time")
