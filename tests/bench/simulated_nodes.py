"""Clusters with slow nodes, whose exchanges take what a seed says: for the search of `scaling bisect`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import log
from typing import NamedTuple

from scaling.tools.bisect.searching import PRIOR, Found, Search, Trial

# How far apart healthy groups of different sizes are: no search knows.
SIZE_SD = 0.05


class Searched(NamedTuple):
    """How a search ended, beside the truth."""

    found: Found
    slow: frozenset[int]
    points: int
    waves: int

    @property
    def is_right(self) -> bool:
        return self.found.slow == self.slow


def searched(nodes: int, slow: int, part: float, noise: float, rng: random.Random) -> Searched:
    """A search on a cluster of which some nodes, drawn by `rng`, are slower by a `part` of 1."""
    lost = {node: -log(1 - part) for node in rng.sample(range(nodes), slow)}
    search = Search([PRIOR] * nodes, noise, seed=rng.randrange(1 << 30))
    levels: dict[int, float] = {}
    waves = 0
    while wave := search.next_wave():
        waves += 1
        search.hear([measured(group, lost, levels, noise, rng) for group in wave])
    return Searched(search.found, frozenset(lost), len(search.trials), waves)


def measured(
    group: frozenset[int], lost: Mapping[int, float], levels: dict[int, float], noise: float, rng: random.Random
) -> Trial:
    """What an exchange of a group takes: as long as its slowest node."""
    level = levels.setdefault(len(group), rng.gauss(0.0, SIZE_SD))
    return Trial(group, level + max(lost.get(node, 0.0) for node in group) + rng.gauss(0.0, noise))


def right(found: Sequence[Searched]) -> float:
    """Which part of the searches found exactly the slow nodes."""
    return sum(one.is_right for one in found) / len(found)
