"""Which pairs of nodes measure at the same time, and for how long. Pure.

A node takes part in one pair at a time, or its link would be shared; pairs without a common node measure in
parallel. Networks take turns round by round, so that what there is no time for is missing evenly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from scaling.records.point import Record
from scaling.tools.check.facts import Pair

LATENCY_S = (0.02, 0.1)  # least and most to spend on a pair's latency
BANDWIDTH_S = (0.08, 0.3)  # ... on one direction of its bandwidth
OVERHEAD_S = 0.06  # orders, connections and answers of a round


class Round(Record, frozen=True, kw_only=True):
    """Pairs that measure over one network at the same time, none of them with a node in common."""

    network: str
    pairs: tuple[Pair, ...]


class Plan(Record, frozen=True, kw_only=True):
    """The rounds to take, those that there is no time for, and what each pair may spend."""

    rounds: tuple[Round, ...]
    left_out: tuple[Round, ...]
    latency_s: float
    bandwidth_s: float

    @property
    def round_s(self) -> float:
        """How long a round is expected to take."""
        return OVERHEAD_S + self.latency_s + 2 * self.bandwidth_s

    @property
    def wall_s(self) -> float:
        """How long all rounds are expected to take."""
        return self.round_s * len(self.rounds)


def rounds(nodes: Sequence[str]) -> tuple[tuple[Pair, ...], ...]:
    """Every pair of nodes exactly once, in as few rounds of disjoint pairs as possible: a round-robin tournament
    by the circle method. Any two consecutive rounds connect all nodes."""
    circle: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    half = len(circle) // 2
    found = []
    for turn in range(len(circle) - 1):
        order = [circle[0], *circle[1 + turn :], *circle[1 : 1 + turn]]
        facing = zip(order[:half], reversed(order[half:]), strict=True)
        found.append(tuple((one, other) for one, other in facing if one is not None and other is not None))
    return tuple(found)


def disjoint(pairs: Iterable[Pair]) -> tuple[tuple[Pair, ...], ...]:
    """Some pairs in rounds without a common node, first come first served."""
    found: list[list[Pair]] = []
    for pair in pairs:
        free = (one for one in found if all(set(pair).isdisjoint(other) for other in one))
        fitting = next(free, None)
        if fitting is None:
            found.append([pair])
        else:
            fitting.append(pair)
    return tuple(tuple(one) for one in found)


def plan(networks: Mapping[str, Sequence[str]], budget_s: float) -> Plan:
    """Share `budget_s` among all pairs of each network's nodes. A round is never shorter than the least that
    tells something; the rounds that do not fit then are left out."""
    columns = [
        [Round(network=name, pairs=pairs) for pairs in rounds(nodes) if pairs] for name, nodes in networks.items()
    ]
    every = [one for row in zip_longest(*columns) for one in row if one is not None]
    least_s = OVERHEAD_S + LATENCY_S[0] + 2 * BANDWIDTH_S[0]
    fitting = min(len(every), int(budget_s / least_s))
    spare_s = budget_s / max(1, fitting) - OVERHEAD_S
    latency_s = _within(0.1 * spare_s, LATENCY_S)
    return Plan(
        rounds=tuple(every[:fitting]),
        left_out=tuple(every[fitting:]),
        latency_s=latency_s,
        bandwidth_s=_within((spare_s - latency_s) / 2, BANDWIDTH_S),
    )


def _within(value: float, limits: tuple[float, float]) -> float:
    least, most = limits
    return max(least, min(most, value))
