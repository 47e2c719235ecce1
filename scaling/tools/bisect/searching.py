"""The search for slow nodes: suspects, the choice of groups, and the belief about each node."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from math import ceil, comb, exp, log, log2
from statistics import median, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.measured import traffic
from scaling.analysis.measured.step_time import step_time
from scaling.analysis.measured.traffic import Path
from scaling.records.point import Record
from scaling.records.run import PointRecord

# ---------------------------------------------------------------- suspects


# probability that a healthy node is last in so many windows
CHANCE = 0.01
# prior probability that a suspect is slow
SUSPECTED = 0.3
# A path below this part of the fastest is suspicious. A verdict needs more evidence (traffic.py).
DOUBTFUL_PART = 0.7


class Suspect(Record, frozen=True, kw_only=True):
    """A suspected node. `slower` is a fraction of the median node's time, 0 for other evidence."""

    node: str
    why: str
    slower: float = 0.0


def suspects(together: PointRecord, exchange: PointRecord, noise: float) -> tuple[Suspect, ...]:
    """Find the suspects, slow compute first."""
    first: dict[str, Suspect] = {}
    for one in (*_computing(together, noise), *_sending(traffic.paths([exchange]))):
        first.setdefault(one.node, one)
    return tuple(first.values())


def _computing(record: PointRecord, noise: float) -> Iterator[Suspect]:
    by_node: dict[str, list[list[float]]] = {}
    for rank in record.ranks:
        by_node.setdefault(rank.host, []).append([window.seconds / window.steps for window in rank.windows])
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


def tail(count: int, windows: int, share: float) -> float:
    """Compute the probability that `count` or more of `windows` fall to a node, each with probability `share`."""
    return sum(comb(windows, k) * share**k * (1 - share) ** (windows - k) for k in range(count, windows + 1))


def _sending(paths: Sequence[Path]) -> Iterator[Suspect]:
    fastest = max((path.bits_per_s for path in paths), default=0.0)
    slow = [path for path in paths if path.bits_per_s < DOUBTFUL_PART * fastest]
    ends = Counter(end for path in slow for end in (path.node, path.peer))
    for node, count in ends.most_common():
        if count == max(ends.values()):
            mine = (path for path in slow if node in (path.node, path.peer))
            worst = min(mine, key=lambda path: path.bits_per_s)
            carried = f"{worst} carried {traffic.path_rate(worst.bits_per_s)}"
            yield Suspect(node=node, why=f"{carried}, busy for {worst.busy_share:.0%} of the time")


# ---------------------------------------------------------------- choice of groups
# A wave is a set of disjoint groups that are measured at the same time. The wave with the most information per
# cost is chosen. Groups of suspects are filled up with the nodes that are most probably healthy.


# Probabilities at which the search ends: of a set of slow nodes, of a slow node, of a healthy node.
SURE, SLOW, HEALTHY = 0.95, 0.99, 0.02
# MORE extra points if a node is slow and the probability that it is the only one is below OTHERS
MORE, OTHERS = 4, 0.2
SMALLEST = 2
MOST_GROUPS = 4
DEALS = 6
# groups of the first wave: with two, a slow node in each would hide both
FIRST = 3
# A wave costs time in addition to its groups: as much as two groups.
WAVE_COST = 2.0
DOUBTED = 0.01
# least information of a wave, in bits
LEAST_BITS = 0.02

Wave = tuple[frozenset[int], ...]


class Found(NamedTuple):
    """State of a search. `probability`: exactly the nodes in `slow` are slow. `doubted`: undecided nodes."""

    slow: frozenset[int]
    doubted: frozenset[int]
    probability: float


class Search:
    """A search among nodes with probabilities `priors` of being slow. `noise` is the standard deviation of the
    logarithm of a trial's time. `points` is the budget."""

    def __init__(self, priors: Sequence[float], noise: float, seed: int = 1) -> None:
        self.priors = tuple(priors)
        self.noise = noise
        self.trials: list[Trial] = []
        self.points = points_for(len(priors))
        self._random = random.Random(seed)

    @property
    def found(self) -> Found:
        return self.belief.found

    @property
    def belief(self) -> Belief:
        return belief(self.priors, self.trials, self.noise)

    def next_wave(self) -> Wave:
        """Choose the groups to measure at the same time; () at the end."""
        now, size = self.belief, len(self.priors)
        found = now.found
        more = MORE if found.slow and found.probability < OTHERS else 0
        left = self.points + more - len(self.trials)
        if not found.doubted and found.probability >= SURE:
            return ()
        least = FIRST if not self.trials and size >= FIRST * SMALLEST else 1
        waves = [wave for wave in _waves(now.marginal, self._random) if least <= len(wave) <= left]
        told = [_bits(now, self.trials, wave) for wave in waves]
        if max(told, default=0.0) < LEAST_BITS:
            # three nodes: pairs cannot be measured at the same time, so one after the other
            told = [_bits(now, self.trials, wave, known=True) * (len(wave[0]) < size) for wave in waves]
        if max(told, default=0.0) < LEAST_BITS:
            return ()
        return max(zip(waves, told, strict=True), key=lambda one: one[1] / (WAVE_COST + len(one[0])))[0]

    def control(self, healthy: Sequence[int], count: int) -> frozenset[int]:
        return frozenset(self._random.sample(list(healthy), count))

    def hear(self, trials: Sequence[Trial]) -> None:
        self.trials += trials


def points_for(nodes: int) -> int:
    """Return the budget of points: 6 for 4 nodes, 10 for 16, 14 for 64."""
    return 2 + 2 * ceil(log2(nodes))


def _waves(marginal: Floats, rng: random.Random) -> Iterator[Wave]:
    """Suspects dealt into groups of one size, with and without a healthy group, or that group alone."""
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
    return sorted({count // parts, count // (parts + 1), -(-count // (parts + 1))} - {0}) if count else []


def _filled(groups: Sequence[Sequence[int]], healthy: Sequence[int]) -> Wave:
    size = max(SMALLEST, *map(len, groups))
    wave: list[frozenset[int]] = []
    for group in groups:
        lacking = size - len(group)
        wave.append(frozenset([*group, *healthy[:lacking]]))
        healthy = healthy[lacking:]
    return tuple(wave) if all(len(group) == size for group in wave) else ()


def _bits(now: Belief, trials: Sequence[Trial], wave: Wave, *, known: bool = False) -> float:
    """Information of a wave about which nodes are slow, in bits. Groups are compared within their size only: "all
    slow" equals "none slow" unless the healthy time is `known`."""
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


# ---------------------------------------------------------------- belief
# Bayesian group testing (Dorfman, 1943). A synchronous exchange takes as long as its slowest node, so a group is
# slow if any of its nodes is. The slowdown of each node and the healthy time of each group size are integrated
# out.


Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PRIOR = 0.03
# differences below this multiple of the noise are not searched
SEARCHED = 2.0
# Smallest slowdown in the model, as a multiple of the noise. Closer ones would make healthy nodes look slow for a
# while.
LEAST = 3.0
# slower nodes than 20 times are not distinguished
MOST = log(20.0)
LEVELS, SEEN = 10, 8
# Standard deviations of the logarithm of a healthy group's time: overall, and between group sizes.
LEVEL_SD, SIZE_SD = 10.0, 0.1
# pairs of slow nodes are considered among this many most probable nodes
PAIRED = 64
CHUNK = 200


class Trial(NamedTuple):
    """An exchange of some nodes. `log_s`: logarithm of seconds per byte that each node must move."""

    nodes: frozenset[int]
    log_s: float


class Belief(NamedTuple):
    """Probability of each set of at most two slow nodes. `members[h, n]`: node n is in set h."""

    members: Flags
    weights: Floats

    @property
    def marginal(self) -> Floats:
        return self.weights @ self.members

    @property
    def found(self) -> Found:
        chances = list(enumerate(self.marginal))
        slow = frozenset(node for node, chance in chances if chance >= SLOW)
        doubted = frozenset(node for node, chance in chances if HEALTHY < chance < SLOW)
        alike = self.members == np.isin(np.arange(len(chances)), list(slow))
        return Found(slow, doubted, float(self.weights[alike.all(axis=1)].sum()))


def searched(noise: float) -> float:
    """Return the smallest slowdown searched, as a fraction. `noise` is a standard deviation of logarithms."""
    return exp(SEARCHED * noise) - 1


def belief(priors: Sequence[float], trials: Sequence[Trial], noise: float) -> Belief:
    """Update `priors` with trials; `noise` is the standard deviation of the logarithm of one trial's time."""
    none = _weighed([()], priors, trials, noise)
    singles = _weighed([(node,) for node in range(len(priors))], priors, trials, noise)
    order = np.argsort(-singles[1], kind="stable")[:PAIRED]
    pairs = _weighed(list(combinations(sorted(order.tolist()), 2)), priors, trials, noise)
    members, parts = zip(none, singles, pairs, strict=True)
    logs = np.concatenate(parts)
    weights = np.exp(logs - logs.max())
    return Belief(np.concatenate(members), weights / weights.sum())


def _weighed(
    sets: Sequence[Sequence[int]], priors: Sequence[float], trials: Sequence[Trial], noise: float
) -> tuple[Flags, Floats]:
    members = np.zeros((len(sets), len(priors)), dtype=np.bool_)
    for row, nodes in enumerate(sets):
        members[row, list(nodes)] = True
    prior = np.asarray(priors)
    logs = np.where(members, np.log(prior), np.log1p(-prior)).sum(axis=1)
    if not trials or not len(sets):
        return members, logs
    sizes = np.asarray([len(trial.nodes) for trial in trials])
    same = (sizes[:, None] == sizes[None, :]).astype(np.float64)
    precision = np.linalg.inv(np.diag(np.full(len(trials), noise**2)) + SIZE_SD**2 * same + LEVEL_SD**2)
    found = np.asarray([trial.log_s for trial in trials])
    within = np.asarray([[float(node in trial.nodes) for trial in trials] for node in range(len(priors))])
    levels = _levels(trials, noise)
    held = within[np.asarray(sets, dtype=np.intp)]
    told = [
        _log_likelihood(held[row : row + CHUNK], found, levels, precision) for row in range(0, len(sets), CHUNK)
    ]
    return members, logs + np.concatenate(told)


def _levels(trials: Sequence[Trial], noise: float) -> Floats:
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
    """`held[h, i, t]` is 1 if the i-th slow node of set h took part in trial t. Levels are equally probable."""
    lost = np.zeros((len(held), 1, len(found)))
    for index in range(held.shape[1]):
        more = levels[None, None, :, None] * held[:, index, None, None, :]
        lost = np.maximum(lost[:, :, None, :], more).reshape(len(held), -1, len(found))
    rest = found - lost
    distance = ((rest @ precision) * rest).sum(axis=2)
    likelihood: Floats = np.logaddexp.reduce(-distance / 2, axis=1) - log(distance.shape[1])
    return likelihood


# lower bound: two starts are never closer
LEAST_NOISE = 0.01


def trial(record: PointRecord, nodes: Sequence[str]) -> Trial | None:
    """Turn a record of a wave into a trial, with nodes by index; None without a time. Steps of a script are whole:
    the search finds how long healthy groups of each size take."""
    time = step_time(record)
    if time is None:
        return None
    group = frozenset(nodes.index(host) for host in record.hosts)
    moved = volume(record, len(group)) if record.point.kind == "comm" else 1.0
    return Trial(group, log(time.step_s / moved))


def volume(record: PointRecord, nodes: int) -> float:
    """Return how many times the gradients' bytes each rank moves. In a ring of N ranks that is 2 (N - 1) / N
    (Patarasuk & Yuan, 2009). With servers on M nodes, 2 (M - 1) / M leave the node."""
    number = nodes if record.pattern == "servers" else record.point.world_size
    return 2 * (number - 1) / number


def noise(records: Iterable[PointRecord]) -> float:
    """Estimate the standard deviation of the logarithm between windows: the median over points, at least 1 %."""
    found = [
        stdev(logs)
        for record in records
        if record.ranks and len(logs := [log(w.seconds / w.steps) for w in record.ranks[0].windows]) > 1
    ]
    return max(LEAST_NOISE, median(found) if found else 0.0)
