"""Which groups of nodes to measure next, so that the slow nodes are found by few measurements. Pure.

A wave is some groups that share no node and are measured at once. Of many waves that is taken whose outcome tells
most for what it costs; groups of nodes under suspicion are filled up with nodes that are most probably healthy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from scaling.tools.bisect.belief import Belief, Flags, Floats, Trial, belief

# When it is over: so probable is a set of slow nodes, or that there is none; each node is slow or healthy.
SURE, SLOW, HEALTHY = 0.95, 0.99, 0.02
# So many points more where a slow node is found, and it is hardly probable that it is the only one.
MORE, OTHERS = 4, 0.2
# A node alone exchanges nothing with others.
SMALLEST = 2
MOST_GROUPS = 4
DEALS = 6
# So many groups at first, where there are nodes for them: of two groups a slow node in each would make none slow.
FIRST = 3
# A wave costs time, whatever it measures, and each of its groups as well: one wave as much as two groups.
WAVE_COST = 2.0
# Nodes that are less under suspicion than that serve to fill groups.
DOUBTED = 0.01
# Bits that the best of waves must tell at least.
LEAST_BITS = 0.02

Wave = tuple[frozenset[int], ...]


class Found(NamedTuple):
    """How a search stands: the nodes that are slow, those of which it cannot be told, and how probable it is that
    the former are all there are."""

    slow: frozenset[int]
    doubted: frozenset[int]
    probability: float

    @property
    def is_sure(self) -> bool:
        """Whether nothing more need be measured."""
        return not self.doubted and self.probability >= SURE


class Search:
    """A search among nodes that were slow with probabilities `priors` before; told `trials`, it says what is next.

    `noise` is the standard deviation of the logarithm of a trial's time; it may be set anew as more is known of
    it. `points` are spent at most, and MORE where several nodes are slow.
    """

    def __init__(self, priors: Sequence[float], noise: float, seed: int = 1) -> None:
        self.priors = tuple(priors)
        self.noise = noise
        self.trials: list[Trial] = []
        self.points = points_for(len(priors))
        self._random = random.Random(seed)

    @property
    def found(self) -> Found:
        """What is most probable now."""
        return found_by(self.belief)

    @property
    def belief(self) -> Belief:
        """What is known now."""
        return belief(self.priors, self.trials, self.noise)

    def next_wave(self) -> Wave:
        """The groups to measure at once; none when the search is over, or nothing more can be told."""
        now = self.belief
        found = found_by(now)
        more = MORE if found.slow and found.probability < OTHERS else 0
        left = self.points + more - len(self.trials)
        if found.is_sure:
            return ()
        least = FIRST if not self.trials and len(self.priors) >= FIRST * SMALLEST else 1
        waves = [wave for wave in _waves(now.marginal, self._random) if least <= len(wave) <= left]
        told = [_bits(now, self.trials, wave) for wave in waves]
        if max(told, default=0.0) < LEAST_BITS:
            # As of three nodes, whose pairs cannot be measured at once: one after the other.
            told = [
                _bits(now, self.trials, wave, known=True) * (len(wave[0]) < len(self.priors)) for wave in waves
            ]
        if max(told, default=0.0) < LEAST_BITS:
            return ()
        return max(zip(waves, told, strict=True), key=lambda one: one[1] / (WAVE_COST + len(one[0])))[0]

    def control(self, healthy: Sequence[int], count: int) -> frozenset[int]:
        """So many of the healthy nodes, by chance: those without which the proof is made as well."""
        return frozenset(self._random.sample(list(healthy), count))

    def hear(self, trials: Sequence[Trial]) -> None:
        """Take what a wave showed."""
        self.trials += trials


def found_by(now: Belief) -> Found:
    """What is told by a belief."""
    chances = list(enumerate(now.marginal))
    slow = frozenset(node for node, chance in chances if chance >= SLOW)
    doubted = frozenset(node for node, chance in chances if HEALTHY < chance < SLOW)
    return Found(slow, doubted, now.chance(slow))


def points_for(nodes: int) -> int:
    """How many points are spent at most: 6 for 4 nodes, 10 for 16, 14 for 64."""
    return 2 + 2 * ceil(log2(nodes))


def _waves(marginal: Floats, rng: random.Random) -> Iterator[Wave]:
    """Waves worth a look: nodes under suspicion dealt into groups of one size, filled up with healthy ones, with
    and without a group of healthy ones beside them, and that by itself."""
    order = sorted(range(len(marginal)), key=lambda node: -marginal[node])
    doubted = [node for node in order if marginal[node] > DOUBTED]
    healthy = [node for node in reversed(order) if marginal[node] <= DOUBTED]
    for parts in range(1, MOST_GROUPS + 1):
        for each in _sizes(len(doubted), parts):
            for _ in range(DEALS):
                dealt = rng.sample(doubted, len(doubted))
                groups = [dealt[first : first + each] for first in range(0, parts * each, each)]
                fill = [*rng.sample(healthy, len(healthy)), *dealt[parts * each :][::-1]]
                yield from (_filled(groups, fill), _filled([*groups, []], fill), _filled([[]], fill))


def _sizes(count: int, parts: int) -> list[int]:
    """How many of those under suspicion stand in each group: all are dealt, or one more part stays out."""
    return sorted({count // parts, count // (parts + 1), -(-count // (parts + 1))} - {0}) if count else []


def _filled(groups: Sequence[Sequence[int]], healthy: Sequence[int]) -> Wave:
    """All of one size; () where there are too few nodes to fill them up with."""
    size = max(SMALLEST, *map(len, groups))
    wave: list[frozenset[int]] = []
    for group in groups:
        lacking = size - len(group)
        wave.append(frozenset([*group, *healthy[:lacking]]))
        healthy = healthy[lacking:]
    return tuple(wave) if all(len(group) == size for group in wave) else ()


def _bits(now: Belief, trials: Sequence[Trial], wave: Wave, *, known: bool = False) -> float:
    """What a wave would tell of which nodes are slow, bits, were there no noise.

    Groups are compared with groups of their size: that all of a size are slow is not told from none being so,
    unless it is `known` how long healthy ones take.
    """
    groups = [*(trial.nodes for trial in trials), *wave]
    within = np.zeros((now.members.shape[1], len(groups)))
    for column, group in enumerate(groups):
        within[list(group), column] = 1.0
    slow: Flags = now.members @ within > 0
    sizes = np.asarray([len(group) for group in groups])
    for size in () if known else set(sizes.tolist()):
        of_size = sizes == size
        slow[np.ix_(slow[:, of_size].all(axis=1), of_size)] = False
    _, kinds = np.unique(np.packbits(slow, axis=1), axis=0, return_inverse=True)
    shares = np.bincount(kinds.reshape(-1), weights=now.weights)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())
