"""Published series -> priors: expectation maximisation over random effects, one cluster being one draw. Pure.

Each series is weighed down by how many share its source: forty tables of one cluster are not forty clusters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from scaling.tools.predict import beliefs, infer
from scaling.tools.predict.infer import Posterior
from scaling.tools.predict.known import Known
from scaling.tools.predict.priors import Prior, Priors, Walk
from scaling.tools.predict.published import Series
from scaling.tools.predict.setting import At

ROUNDS, DRAWS = 6, 1200
# How many series the walk that is believed in counts as.
WALK_SHARE = 3.0


class _Told(NamedTuple):
    weight: float
    source: str
    moments: Mapping[str, tuple[float, float]]
    steps: Sequence[tuple[str, float, float]]  # kind of step, doublings, squared residual


def learn(series: Sequence[Series], rounds: int = ROUNDS, draws: int = DRAWS) -> Priors:
    """Learn from series of trust A and B."""
    taught = [one for one in series if one.trust in ("A", "B")]
    weights = _weights(taught)
    priors = beliefs.before()
    for turn in range(rounds):
        told = [_told(one, weights[one.name], priors, draws, turn) for one in taught]
        priors = _maximised(told)
    return priors


def _weights(series: Sequence[Series]) -> dict[str, float]:
    counts = Counter(one.source for one in series)
    return {one.name: (0.5 if one.trust == "B" else 1.0) / sqrt(counts[one.source]) for one in series}


def _told(one: Series, weight: float, priors: Priors, draws: int, turn: int) -> _Told:
    known = Known(one.anchor, one.observed, anchor_noise=0.005)
    found = infer.posterior(one.setting, known, priors, draws, infer.SEED + turn)
    return _Told(weight, one.source, _moments(found), _steps(found))


def _moments(found: Posterior) -> dict[str, tuple[float, float]]:
    """Mean and mean square of each constant, on the scale on which it is normal."""
    told = {}
    for index, name in enumerate(found.names.values()):
        if name in beliefs.FIXED or not _matters(found, name):
            continue
        prior = found.priors.constants[name]
        values = prior.mean + prior.sd * found.z[:, index]
        mean = float(found.weights @ values)
        told[name] = (mean, float(found.weights @ values**2))
    return told


def _matters(found: Posterior, name: str) -> bool:
    """Whether this series can say anything of the constant."""
    seen = [one.at for one in found.known.observed]
    crosses = any(at.nodes > 1 for at in seen)
    if name.startswith(("network.", "fade.", "alpha.", "growth", "tax_nodes")):
        return crosses
    return not name.startswith("bus.") or any(at.devices_per_node > 1 for at in seen)


def _steps(found: Posterior) -> list[tuple[str, float, float]]:
    """What the model missed from one point to the next: kind, doublings, and the mean square of the difference,
    outliers weighed as Student's t weighs them."""
    walk, known = found.priors.walk, found.known
    weights = found.weights
    places: list[At] = [known.anchor, *(one.at for one in known.observed)]
    residuals = np.column_stack([np.zeros(len(weights)), found.residuals])
    told = []
    for index, (one, other) in enumerate(pairwise(places)):
        kind, doublings = _kind(one, other)
        if kind:
            expected = _expected(walk, kind) * doublings + 2 * 0.005**2
            squares = (residuals[:, index + 1] - residuals[:, index]) ** 2
            trimmed = (walk.freedom + 1) / (walk.freedom + squares / expected) * squares
            told.append((kind, doublings, float(weights @ trimmed)))
    return told


def _expected(walk: Walk, kind: str) -> float:
    return float(getattr(walk, kind)) ** 2


def _kind(one: At, other: At) -> tuple[str, float]:
    nodes = float(np.log2(other.nodes / one.nodes))
    inside = float(np.log2(other.devices_per_node / one.devices_per_node))
    if one.nodes == 1 and other.nodes in (2, 3, 4):
        return "leaving", 1.0
    if one.nodes > 1 and nodes > 0 and abs(inside) < 0.1:
        return "beyond", nodes
    return ("inside", inside) if other.nodes == 1 and inside > 0 else ("", 0.0)


def _maximised(told: Sequence[_Told]) -> Priors:
    before = beliefs.before()
    by_name: dict[str, list[tuple[float, float, float, str]]] = defaultdict(list)
    for one in told:
        for name, (mean, square) in one.moments.items():
            by_name[name].append((one.weight, mean, square, one.source))
    constants = {name: _updated(prior, by_name.get(name, [])) for name, prior in before.constants.items()}
    return Priors(walk=_walk(told, before.walk), constants=constants)


def _updated(prior: Prior, told: Sequence[tuple[float, float, float, str]]) -> Prior:
    """The mean and spread over series, the belief counting as STRENGTH of them."""
    if not told:
        return prior
    strength = beliefs.STRENGTH
    total = strength + sum(weight for weight, _, _, _ in told)
    mean = (strength * prior.mean + sum(w * m for w, m, _, _ in told)) / total
    around = sum(w * (square - 2 * mean * m + mean**2) for w, m, square, _ in told)
    own = strength * (prior.sd**2 + (prior.mean - mean) ** 2)
    sources = tuple(sorted({source for _, _, _, source in told}))
    return replace(prior, mean=mean, sd=sqrt((own + around) / total), series=len(told), sources=sources)


def _walk(told: Sequence[_Told], before: Walk) -> Walk:
    found = {}
    for kind in ("inside", "leaving", "beyond"):
        steps = [(one.weight, n, square) for one in told for which, n, square in one.steps if which == kind]
        prior = _expected(before, kind)
        weight = WALK_SHARE + sum(w for w, _, _ in steps)
        found[kind] = sqrt((WALK_SHARE * prior + sum(w * square / n for w, n, square in steps)) / weight)
    return replace(before, **found)
