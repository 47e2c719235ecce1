"""What leaving the slow nodes out will bring, before it is measured: PREDICTED, with its 80 % interval. Pure.

A step takes what the slowest rank takes beside the others (`together`), and of the exchange what does not hide
behind the compute. How much hides is what is not known: draws of what published clusters taught of it
(scaling/tools/predict/priors.toml) count by how well they tell what was exposed with the slow nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log2, sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np

from scaling.analysis.step_time import lock_step, step_time
from scaling.records.point import Record
from scaling.records.run import PointRecord
from scaling.tools.bisect.belief import Floats, Trial
from scaling.tools.bisect.trials import volume
from scaling.tools.predict import infer, priors
from scaling.tools.predict.forecast import HIGH, LOW
from scaling.tools.predict.installation import way
from scaling.tools.predict.latent import hidden, transformed
from scaling.tools.predict.models import known_model

DRAWS = 8000
# How much hides is drawn this many times as widely as it is believed, and weighed back: it may be far off.
WIDELY = 3.0
# What the equations miss of a step, and the freedom of Student's t that forgives more.
LACKING, FREEDOM = 0.02, 4.0


class Promise(Record, frozen=True, kw_only=True):
    """The efficiency of the others as a fraction of 1: the median, and the ends of its 80 % interval."""

    efficiency: float
    low: float
    high: float


class _Seconds(NamedTuple):
    """What was measured: one device alone, the others' compute, all nodes' step and what of it is exposed, and the
    exchange alone with slow nodes and with as many healthy ones as are left, None where nobody measured both."""

    alone: float
    compute: float
    step: float
    exposed: float
    ill: float | None
    healthy: float | None


def promise(
    exchange: PointRecord,
    together: PointRecord,
    alone: PointRecord,
    trials: Sequence[Trial],
    slow: frozenset[int],
    nodes: Sequence[str],
    noise: float,
) -> Promise | None:
    """What the others will do if they exchange like the healthy groups of the search; `noise` is the standard
    deviation of the logarithm of a point's time. None where something that it rests on was not measured."""
    told = _seconds(exchange, together, alone, trials, slow, nodes)
    if told is None:
        return None
    rng = np.random.default_rng(infer.SEED)
    exposed_s, weights = _exposed(exchange, told, noise, rng)
    found = told.alone / (told.compute + exposed_s)
    walk_sd = priors.read().walk.beyond * sqrt(log2(len(nodes) / (len(nodes) - len(slow))))
    # Two points are compared, each started once.
    found = found * np.exp(rng.standard_normal(DRAWS) * sqrt(2 * noise**2 + walk_sd**2))
    low, middle, high = infer.quantiles(found[:, None], weights, [LOW, 0.5, HIGH])[:, 0]
    return Promise(efficiency=float(middle), low=float(low), high=float(high))


def _seconds(
    exchange: PointRecord,
    together: PointRecord,
    alone: PointRecord,
    trials: Sequence[Trial],
    slow: frozenset[int],
    nodes: Sequence[str],
) -> _Seconds | None:
    times = step_time(exchange), lock_step(together), step_time(alone)
    if times[0] is None or times[1] is None or times[2] is None:
        return None
    seats, out = times[1].seats, {nodes[index] for index in slow}
    left = [rank for rank in together.ranks if rank.host not in out and rank.launch_rank in seats]
    healthy = [one.log_s for one in trials if not one.nodes & slow]
    ill = [one.log_s for one in trials if one.nodes & slow]
    both = bool(healthy and ill)
    return _Seconds(
        alone=times[2].step_s,
        compute=max(seats[rank.launch_rank].step_s for rank in left),
        step=times[0].step_s,
        exposed=max(0.0, times[0].step_s - max(seat.step_s for seat in seats.values())),
        ill=exp(fmean(ill)) * volume(exchange, len(nodes)) if both else None,
        healthy=exp(fmean(healthy)) * volume(exchange, len(nodes) - len(slow), len(left)) if both else None,
    )


def _exposed(
    exchange: PointRecord, told: _Seconds, noise: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Draws of the seconds of the exchange that will not hide, and what each counts."""
    off_s = sqrt(2 * noise**2 + LACKING**2) * told.step
    if told.ill is None or told.healthy is None:
        drawn = told.exposed + off_s * rng.standard_normal(DRAWS)
        return np.maximum(drawn, 0.0), np.full(DRAWS, 1 / DRAWS)
    point = exchange.point
    known, believed = known_model(point.workload.model), priors.read().constants
    name = hidden(way(point)[1], emulated=bool(point.hardware.profile))
    hide, window = believed[name], believed["window"]
    z = WIDELY * rng.standard_normal(DRAWS)
    share = transformed(name, hide.mean + hide.sd * z)
    window_s = told.alone * np.exp(window.mean + window.sd * rng.standard_normal(DRAWS))
    tail = known.tail if known else 0.0

    def left_s(whole_s: Floats) -> Floats:
        hardly = np.maximum(whole_s - window_s, tail * whole_s)
        return np.asarray((1 - share) * whole_s + share * hardly)

    one, other = (seconds * np.exp(noise * rng.standard_normal(DRAWS)) for seconds in (told.ill, told.healthy))
    missed = (left_s(one) - told.exposed) / off_s
    logs = -0.5 * (FREEDOM + 1) * np.log1p(missed**2 / FREEDOM) - 0.5 * z**2 * (1 - 1 / WIDELY**2)
    weights = np.exp(logs - logs.max())
    return left_s(other), weights / weights.sum()
