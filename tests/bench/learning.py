"""Learns priors.toml from published series, `python -m tests.bench.learning`.

Expectation maximisation over random effects: one cluster is one draw. Series of one publisher share one weight:
forty tables of one cluster are not forty clusters.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from scaling.tools.predict.model import FREEDOM, Fit, Floats, equations, fit
from scaling.tools.predict.setting import FILE, At, Prior, Priors
from tests.bench.prediction_errors import UP, quantiles
from tests.bench.published import Series

# ---------------------------------------------------------------- beliefs
# Weak beliefs from sources other than published series: value, factor of one standard deviation, unit, source.
# They count as STRENGTH series.


STRENGTH = 1.0


class Belief(NamedTuple):
    """A belief. Of `hide`, value and factor are the mean and the standard deviation of the logit."""

    value: float
    factor: float
    unit: str
    source: str


_GUESS = "a guess: the order of magnitude"
_TUNING = "NCCL's src/graph/tuning.cc: 9.6 us a step between nodes, x 1.9 in its plateau"
_WRAPPER = "DDP alone costs 2.7 % of a step of 55 ms on an H200 (tests/recorded/h200-default.jsonl)"
_IPERF = "bytedance/byteps#29: iperf 13.7 to 21.1 Gb/s"
_CAP, _SHARE = "B/s a card of 25 Gb/s", "share of an all-reduce alone"
BELIEFS: dict[str, Belief] = {
    "network.tcp": Belief(2.2e9, 1.4, _CAP, _IPERF),
    "network.ipoib": Belief(1e9, 1.5, _CAP, _GUESS),
    "network.cpu": Belief(
        1.2e9, 1.6, "B/s a card", "one flow of TCP: 13.7 Gb/s (bytedance/byteps#29), then reduced"
    ),
    "network.rdma": Belief(0.75, 1.4, "share of the line", "PCIe 3.0 x16 carries 0.8 to 0.95 of 100 Gb/s"),
    "network.unknown": Belief(2.5e9, 2.5, "B/s a node", _GUESS),
    "bus.pcie": Belief(0.4, 1.5, _SHARE, "a switch is shared: NVIDIA/nccl#1639 has 28 of 63 GB/s among 8 devices"),
    "bus.nvlink": Belief(0.45, 1.8, _SHARE, "messages of a step are smaller than nccl-tests' largest"),
    "bus.nvswitch": Belief(0.45, 1.8, _SHARE, "messages of a step are smaller than nccl-tests' largest"),
    "bus.loopback": Belief(1.0, 3.0, _SHARE, "TCP to the host itself: 0.3 to 3 GB/s, less if cores are busy"),
    "bus.unknown": Belief(1.0, 3.0, _SHARE, "from PCIe 3.0 to NVSwitch"),
    "fade": Belief(0.03, 2.0, "power of nodes / 2", _GUESS),
    "alpha.tcp": Belief(35e-6, 1.7, "s a message and step", "ping-pong over TCP: 20 to 50 us"),
    "alpha.rdma": Belief(14e-6, 1.5, "s a message and step", _TUNING),
    "hide.backward": Belief(1.2, 1.0, "logit", _GUESS),
    "hide.mwms": Belief(-1.1, 1.0, "logit", "published as of little overlap"),
    "hide.serial": Belief(-8.0, 1e-6, "logit", "nothing is hidden, by definition"),
    "window": Belief(0.66, 1.12, "share of a step", "backward has two thirds of the operations"),
    "tax": Belief(0.005, 3.0, "share of a step", _GUESS),
    "tax.sharded": Belief(0.04, 2.5, "share of a step", _GUESS),
    "tax_s": Belief(0.0015, 2.5, "s a step", _WRAPPER),
    "growth": Belief(0.003, 2.2, "share of a step, times log2(nodes) ** 1.5", _GUESS),
    "network.emulated": Belief(0.949, 1.03, "share of the line", "TCP/IP framing of a link shaped to its line"),
    "fade.emulated": Belief(0.003, 3.0, "power of nodes / 2", "links are shaped one by one, and meet in a bridge"),
    "alpha.emulated": Belief(3e-6, 3.0, "s a message and step", "30 to 100 us between namespaces, over dilation"),
    "hide.emulated": Belief(4.0, 1.0, "logit", "a sleeping device loses nothing to an exchange"),
    "tax.emulated": Belief(5e-4, 3.0, "share of a step", "a sleeping device shares nothing with others"),
    "tax_s.emulated": Belief(5e-4, 3.0, "s a step", "a sleeping device shares nothing with others"),
    "growth.emulated": Belief(0.001, 2.0, "share of a step", "sleeps end late, by up to 0.5 % of a step"),
}
# of a normal distribution, before any are counted
QUANTILES = dict.fromkeys(UP, (1.28, 1.28))
WALK = {"inside": 0.025, "leaving": 0.05, "beyond": 0.035}


def beliefs_before() -> Priors:
    return Priors(
        walk=WALK, quantiles=QUANTILES, constants={name: prior_of(belief) for name, belief in BELIEFS.items()}
    )


def prior_of(belief: Belief) -> Prior:
    if belief.unit == "logit":
        return Prior(mean=belief.value, sd=belief.factor)
    return Prior(mean=log(belief.value), sd=log(belief.factor))


# ---------------------------------------------------------------- fitting

ROUNDS = 6
# number of series that the belief about the walk counts as
WALK_SHARE = 3.0
# Of logarithms of contention: medians of left-out publishers are better with a little less than the mean.
LESS_TAX = 0.1
# of a published point; its anchor has as much
NOISE = 0.005


class _Told(NamedTuple):
    weight: float
    publisher: str
    moments: Mapping[str, tuple[float, float]]
    steps: Sequence[tuple[str, float, float]]  # kind of step, doublings, squared miss


def learn(series: Sequence[Series], rounds: int = ROUNDS) -> Priors:
    """Learn from series of trust A and B: in turn each series' mode and spread, and the priors of all."""
    taught = [one for one in series if one.trust in ("A", "B")]
    weights = _weights(taught)
    priors = beliefs_before()
    for _ in range(rounds):
        priors = _maximised([_told(one, weights[one.name], priors) for one in taught])
    return replace(priors, constants={name: _eased(name, one) for name, one in priors.constants.items()})


def _eased(name: str, prior: Prior) -> Prior:
    return replace(prior, mean=prior.mean - LESS_TAX) if prior.series and name.startswith("tax") else prior


def _weights(series: Sequence[Series]) -> dict[str, float]:
    counts = Counter(one.publisher for one in series)
    return {one.name: (0.5 if one.trust == "B" else 1.0) / counts[one.publisher] for one in series}


def _told(one: Series, weight: float, priors: Priors) -> _Told:
    found = fit(one.setting, one.observed, priors)
    return _Told(weight, one.publisher, _moments(found), list(_steps(found)))


def _moments(found: Fit) -> dict[str, tuple[float, float]]:
    """On the scale on which each constant is normal."""
    told = {}
    for name, index in found.places.items():
        if _matters(found, name):
            prior = found.priors.constants[name]
            mean = prior.mean + prior.sd * float(found.z[index])
            told[name] = (mean, mean**2 + prior.sd**2 * float(found.spread[index, index]))
    return told


def _matters(found: Fit, name: str) -> bool:
    crosses = any(at.nodes > 1 for at in found.seen)
    if name.startswith(("network.", "alpha", "fade", "growth")):
        return crosses
    return not name.startswith("bus.") or any(at.devices_per_node > 1 for at in found.seen)


def _steps(found: Fit) -> Iterator[tuple[str, float, float]]:
    """Model errors between consecutive points: kind, doublings, mean square. Outliers have Student's t weights."""
    places: list[At] = [found.setting.anchor, *found.seen]
    misses, spread = log_misses(found)
    for index, (one, other) in enumerate(pairwise(places)):
        kind, doublings = _kind(one, other)
        if kind:
            expected = found.priors.walk[kind] ** 2 * doublings + 2 * NOISE**2
            squares = (misses[index + 1] - misses[index]) ** 2
            squares += spread[index + 1, index + 1] + spread[index, index] - 2 * spread[index, index + 1]
            yield kind, doublings, float((FREEDOM + 1) / (FREEDOM + squares / expected) * squares)


def log_misses(found: Fit) -> tuple[Floats, Floats]:
    """Return ln(measured / equations) at the anchor and each point, and what the constants' spread adds to it."""
    logs, _, slopes = equations(found, found.seen, found.setting)
    misses = np.log([one.efficiency for one in found.observed]) - logs
    with_anchor = np.hstack([np.zeros((len(found.z), 1)), slopes])
    return np.concatenate([[0.0], misses]), with_anchor.T @ found.spread @ with_anchor


def _kind(one: At, other: At) -> tuple[str, float]:
    nodes = float(np.log2(other.nodes / one.nodes))
    inside = float(np.log2(other.devices_per_node / one.devices_per_node))
    if one.nodes == 1 and other.nodes in (2, 3, 4):
        return "leaving", 1.0
    if one.nodes > 1 and nodes > 0 and abs(inside) < 0.1:
        return "beyond", nodes
    return ("inside", inside) if other.nodes == 1 and inside > 0 else ("", 0.0)


def _maximised(told: Sequence[_Told]) -> Priors:
    before = beliefs_before()
    by_name: dict[str, list[tuple[float, float, float, str]]] = defaultdict(list)
    for one in told:
        for name, (mean, square) in one.moments.items():
            by_name[name].append((one.weight, mean, square, one.publisher))
    constants = {name: _updated(prior, by_name.get(name, [])) for name, prior in before.constants.items()}
    return replace(before, walk=_walk(told, before.walk), constants=constants)


def _updated(prior: Prior, told: Sequence[tuple[float, float, float, str]]) -> Prior:
    if not told:
        return prior
    total = STRENGTH + sum(weight for weight, _, _, _ in told)
    mean = (STRENGTH * prior.mean + sum(w * m for w, m, _, _ in told)) / total
    around = sum(w * (square - 2 * mean * m + mean**2) for w, m, square, _ in told)
    own = STRENGTH * (prior.sd**2 + (prior.mean - mean) ** 2)
    publishers = len({publisher for _, _, _, publisher in told})
    return replace(prior, mean=mean, sd=sqrt((own + around) / total), series=len(told), publishers=publishers)


def _walk(told: Sequence[_Told], before: Mapping[str, float]) -> dict[str, float]:
    found = {}
    for kind, believed in before.items():
        steps = [(one.weight, n, square) for one in told for which, n, square in one.steps if which == kind]
        weight = WALK_SHARE + sum(w for w, _, _ in steps)
        told_by = sum(w * square / n for w, n, square in steps)
        found[kind] = sqrt((WALK_SHARE * believed**2 + told_by) / weight)
    return found


# ---------------------------------------------------------------- file

_HEAD = """\
# What scaling predict believes of clusters before any is measured. Written by
#     python -m tests.bench.learning
# Expectation maximisation over random effects, one cluster being one draw; each publisher counts once, at trust B
# half; `before` counts as one. `mean` and `sd` are of the logarithm; of `hide.*` of the logit.
"""


def priors_toml(priors: Priors) -> str:
    lines = [
        _HEAD,
        "# standard deviations of ln(efficiency): per doubling in a node, on leaving it, per doubling of nodes",
        "[walk]",
        *(f"{kind} = {one:.4f}" for kind, one in priors.walk.items()),
        "",
        "# by what is known, factors on the standard deviation below and above, for 80 % of left-out points",
        "[quantiles]",
        *(f"{kind} = [{below:.3f}, {above:.3f}]" for kind, (below, above) in priors.quantiles.items()),
        "",
        "[constants]",
        *(f'"{name}" = {{{_entry(prior, BELIEFS[name])}}}' for name, prior in priors.constants.items()),
    ]
    return "\n".join(lines) + "\n"


def _entry(prior: Prior, belief: Belief) -> str:
    sign = "±" if belief.unit == "logit" else "x/÷"
    before = json.dumps(f"{belief.value:g} {sign} {belief.factor:g}: {belief.source}", ensure_ascii=False)
    counts = f"series = {prior.series}, publishers = {prior.publishers}"
    return f'mean = {prior.mean:.4f}, sd = {prior.sd:.4f}, {counts}, unit = "{belief.unit}", before = {before}'


def main() -> int:
    """Learn from all series; intervals are from predictions of each publisher's by all others."""
    from tests.bench.predict import FILES, left_out, series_of

    series = series_of(FILES)
    told = quantiles(left_out(series), {one.name: one.publisher for one in series})
    FILE.write_text(priors_toml(replace(learn(series), quantiles=told)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
