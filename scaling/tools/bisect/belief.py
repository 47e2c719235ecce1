"""Which nodes may be slow, given how long exchanges of groups of nodes took: Bayesian group testing. Pure.

A synchronous exchange takes as long as its slowest node, so a group is slow if any of its nodes is (group
testing: Dorfman, 1943). What is unknown beside the slow nodes is summed over: by how much each is slower, and how
long a group of healthy nodes takes, which may be different for every size of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# How probable it is that a node is slow, before anything is known of it.
PRIOR = 0.03
# Differences below so many times the noise are not searched.
SEARCHED = 2.0
# The smallest that is supposed: nearer to the noise, healthy nodes would look like it for a while. A node that is
# slower by SEARCHED times the noise is still told better by this than by none.
LEAST = 3.0
# The slowest node that is told from a slower one: 20 times.
MOST = log(20.0)
LEVELS, SEEN = 10, 8
# The logarithm of a healthy group's time: unknown, and so far apart from size to size of the groups.
LEVEL_SD, SIZE_SD = 10.0, 0.1
# Two slow nodes at once are supposed among no more than so many, those that are most so by themselves.
PAIRED = 64
CHUNK = 200


class Trial(NamedTuple):
    """How long an exchange of some nodes took: the logarithm of its seconds per byte that each node must move."""

    nodes: frozenset[int]
    log_s: float


class Belief(NamedTuple):
    """How probable each set of at most two slow nodes is; `members[h, n]` is whether node n is in set h."""

    members: Flags
    weights: Floats

    @property
    def marginal(self) -> Floats:
        """How probable it is of each node that it is slow."""
        return self.weights @ self.members

    def chance(self, slow: Collection[int]) -> float:
        """How probable it is that exactly these nodes are slow."""
        alike = self.members == np.isin(np.arange(self.members.shape[1]), list(slow))
        return float(self.weights[alike.all(axis=1)].sum())


def searched(noise: float) -> float:
    """By which fraction a node must be slower to be searched; `noise` is a standard deviation of logarithms."""
    return exp(SEARCHED * noise) - 1


def belief(priors: Sequence[float], trials: Sequence[Trial], noise: float) -> Belief:
    """What trials say of nodes that were slow with these probabilities before; `noise` is the standard deviation
    of the logarithm of one trial's time."""
    none = _weighed([()], priors, trials, noise)
    singles = _weighed([(node,) for node in range(len(priors))], priors, trials, noise)
    order = np.argsort(-singles[1], kind="stable")[:PAIRED]
    pairs = _weighed(list(combinations(sorted(order.tolist()), 2)), priors, trials, noise)
    logs = np.concatenate([one[1] for one in (none, singles, pairs)])
    weights = np.exp(logs - logs.max())
    return Belief(np.concatenate([one[0] for one in (none, singles, pairs)]), weights / weights.sum())


def _weighed(
    sets: Sequence[Sequence[int]], priors: Sequence[float], trials: Sequence[Trial], noise: float
) -> tuple[Flags, Floats]:
    """Members of each set, and the logarithm of its probability but for a constant."""
    members = np.zeros((len(sets), len(priors)), dtype=np.bool_)
    for row, nodes in enumerate(sets):
        members[row, list(nodes)] = True
    prior = np.asarray(priors)
    logs = np.where(members, np.log(prior), np.log1p(-prior)).sum(axis=1)
    if not trials or not len(sets):
        return members, logs
    precision = np.linalg.inv(_covariance(trials, noise))
    found = np.asarray([trial.log_s for trial in trials])
    within = np.asarray([[float(node in trial.nodes) for trial in trials] for node in range(len(priors))])
    levels = _levels(trials, noise)
    held = within[np.asarray(sets, dtype=np.intp)]
    told = [
        _log_likelihood(held[row : row + CHUNK], found, levels, precision) for row in range(0, len(sets), CHUNK)
    ]
    return members, logs + np.concatenate(told)


def _covariance(trials: Sequence[Trial], noise: float) -> Floats:
    sizes = np.asarray([len(trial.nodes) for trial in trials])
    same: Floats = (sizes[:, None] == sizes[None, :]).astype(np.float64)
    own: Floats = np.diag(np.full(len(trials), noise**2))
    return own + SIZE_SD**2 * same + LEVEL_SD**2


def _levels(trials: Sequence[Trial], noise: float) -> Floats:
    """Logarithms of by how much a node may be slower: from the least to the most, and those that trials show."""
    least = LEAST * noise
    fixed: Floats = np.geomspace(least, max(MOST, 2 * least), LEVELS)
    fastest: dict[int, float] = {}
    for trial in trials:
        size = len(trial.nodes)
        fastest[size] = min(trial.log_s, fastest.get(size, trial.log_s))
    shown = sorted(trial.log_s - fastest[len(trial.nodes)] for trial in trials)
    apart = [one for one, next_one in zip(shown, [*shown[1:], 1e9], strict=True) if next_one - one > noise]
    seen = np.asarray([one for one in apart if one > least][-SEEN:])
    return np.concatenate([fixed, seen])


def _log_likelihood(held: Floats, found: Floats, levels: Floats, precision: Floats) -> Floats:
    """Of what was `found` if nodes are slow, each by any of the levels alike; `held[h, i, t]` is 1 where the i-th
    slow node of set h took part in trial t."""
    lost = np.zeros((len(held), 1, len(found)))
    for index in range(held.shape[1]):
        more = levels[None, None, :, None] * held[:, index, None, None, :]
        lost = np.maximum(lost[:, :, None, :], more).reshape(len(held), -1, len(found))
    rest = found - lost
    distance = ((rest @ precision) * rest).sum(axis=2)
    likelihood: Floats = np.logaddexp.reduce(-distance / 2, axis=1) - log(distance.shape[1])
    return likelihood
