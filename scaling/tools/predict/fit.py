"""Fits the equations to measurements, and predicts other world sizes and settings from the fit.

The constants are at the centre of their priors, moved by the measurements (Gauss-Newton steps to the mode). The
loss that the equations still miss is a random walk over log2 N: its last value is carried on. In another setting
it is carried as far as the equations say that little changes. A point is weighed by its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from typing import NamedTuple

import numpy as np

from scaling.tools.predict import model
from scaling.tools.predict.model import Floats, Parts
from scaling.tools.predict.priors import Priors, Walk
from scaling.tools.predict.setting import At, Known, Setting

STEPS = 4
# standard deviations: how far measurements move a constant, and the step of derivatives
MOST, STEP = 10.0, 0.3
LEAST_DEVIATION = 0.002
# Student's t of the misses: one that is far off widens all that is predicted
FREEDOM = 5.0
# largest efficiency relative to the best measured one: 7 of 727 published ones exceed it (SUPERLINEAR)
HIGHEST = 1.02
SHORT_STEP_S = 0.1
# of the equations: below it a setting has hardly anything to lose
LEAST_LOSS = 0.02
# of the logarithm: the one-sided 80 % end of a normal distribution, as a share of the two-sided one
ONE_SIDED = 0.84 / 1.28
# what-ifs of published series: their 80 % intervals hold 80 % on average with this much more
MOST_WIDENED, FAR = 1.5, log(1.4)
# share of the unexplained loss that another model has too
ANOTHER_MODEL = 0.25


class Fit(NamedTuple):
    """Constants as standard normal `z` with their `spread` (covariance), and the loss that they do not explain.

    * missed: by observed point, a fraction of the time of one device
    * scale: factor on standard deviations, above 1 if the measurements contradict the priors
    * origin: the fit of the measured setting, if this one is another
    """

    setting: Setting
    known: Known
    priors: Priors
    names: Mapping[str, str]
    z: Floats
    spread: Floats
    missed: Floats
    scale: float = 1.0
    origin: Fit | None = None


class Predicted(NamedTuple):
    """By target: efficiency relative to the anchor with its 80 % interval, the standard deviation of its
    logarithm, parts of the step, and the weight of the measurements, 0 to 1."""

    efficiency: Floats
    low: Floats
    high: Floats
    deviation: Floats
    parts: Parts
    weight: Floats


def fit(setting: Setting, known: Known, priors: Priors) -> Fit:
    names = model.keys(setting)
    z = np.zeros(len(names) + (setting.step_spread > 0))
    target, noise = told(known, priors.walk)
    first = 0.0
    for step in range(STEPS):
        now, slopes = _signals(setting, known, priors, names, z)
        off = np.linalg.solve(noise + slopes.T @ slopes, target - now + slopes.T @ z)
        first = first if step else float((target - now) @ off)
        z = np.clip((slopes @ off + z * (step > 1)) / (1 + (step > 1)), -MOST, MOST)
    now, slopes = _signals(setting, known, priors, names, z)
    spread = np.linalg.inv(np.eye(len(z)) + slopes @ np.linalg.solve(noise, slopes.T))
    seen = len(known.observed)
    missed = np.exp(-target[:seen]) - np.exp(-now[:seen])
    scale = sqrt((FREEDOM + first) / (FREEDOM + len(target)))
    return Fit(setting, known, priors, names, z, spread, missed, max(1.0, scale))


def moved(found: Fit, setting: Setting) -> Fit:
    """Transfer a fit to another setting: shared constants stay, others are at the centre of their priors."""
    names = model.keys(setting)
    old = {role: index for index, role in enumerate(found.names)}
    kept = [old[role] if found.names.get(role) == name else -1 for role, name in names.items()]
    spread, z = np.eye(len(kept)), np.zeros(len(kept))
    for row, one in enumerate(kept):
        if one >= 0:
            z[row] = found.z[one]
            spread[row] = [found.spread[one, other] if other >= 0 else 0.0 for other in kept]
    return found._replace(setting=setting, names=names, z=z, spread=spread, origin=found)


def predict(found: Fit, targets: Sequence[At]) -> Predicted:
    known, walk, origin = found.known, found.priors.walk, found.origin or found
    seen = [one.at for one in known.observed]
    logs, parts, slopes = equations(found, targets)
    noise = told(known._replace(exchanges=(), shares=(), constants=()), walk)[1]
    cross = covariance(walk, known.anchor, targets, seen)
    carried = np.array([_carried(found, at) for at in targets])
    gain = carried[:, None] * np.linalg.solve(noise, cross.T).T
    prior = np.diag(covariance(walk, known.anchor, targets, targets))
    # a constant moves the target, and what is missed of the points that it moves, too
    moves = slopes - _in_terms_of(found, equations(origin, seen)[2]) @ gain.T
    left = prior - carried * np.sum(gain * cross, axis=1) + np.sum(moves * (found.spread @ moves), axis=0)
    highest = HIGHEST * max([1.0, *(one.value for one in known.observed)])
    efficiency = np.minimum(1 / np.maximum(np.exp(-logs) + gain @ found.missed, 1 / highest), highest)
    deviation = found.scale * _widened(found) * np.sqrt(np.maximum(left, LEAST_DEVIATION**2))
    below, above = np.array([found.priors.quantiles[class_of(found, at)] for at in targets]).T
    low, high = efficiency * np.exp(-below * deviation), efficiency * np.exp(above * deviation)
    weight = 1 - left / np.maximum(prior + np.sum(slopes**2, axis=0), 1e-12)
    return Predicted(efficiency, low, np.minimum(high, highest), deviation, parts, weight)


def _widened(found: Fit) -> float:
    """Factor on deviations for another batch or model, by how far its step and its gradients moved."""
    here, there = (found.origin or found).setting, found.setting
    far = abs(log(there.step_s / here.step_s)) + abs(log(there.gradient_bytes / here.gradient_bytes))
    return 1 + MOST_WIDENED * min(1.0, far / FAR)


def _in_terms_of(found: Fit, slopes: Floats) -> Floats:
    """Derivatives of the measured setting by the constants that another setting shares with it."""
    if found.origin is None:
        return slopes
    old = {role: index for index, role in enumerate(found.origin.names)}
    shared = [(found.origin.names.get(role) == name, old.get(role, 0)) for role, name in found.names.items()]
    rows = [slopes[index] if same else np.zeros(slopes.shape[1]) for same, index in shared]
    return np.array(rows + [np.zeros(slopes.shape[1])] * (len(found.z) - len(rows)))


def class_of(found: Fit, at: At) -> str:
    """What is known of a target: errors of published series are counted by it.

    * cold, hard: nothing was measured; "hard" over PCIe or with short steps, of which less is published
    * one: one node was measured, and the target has several
    * two: all else
    """
    seen, setting = found.known.observed, found.setting
    if not seen:
        short = setting.step_s * at.accumulation < SHORT_STEP_S
        return "hard" if short or setting.bus in ("pcie", "unknown") else "cold"
    return "one" if at.nodes > 1 == max(one.at.nodes for one in seen) else "two"


def _carried(found: Fit, at: At) -> float:
    """Share of the unexplained loss that another setting has too, by how far the equations' own loss moved.

    With L, L' of both settings and the unexplained r, L' + r w(L') grows with L', because w moves by less than
    1/|r| for each unit of L'. So no worse setting is predicted better.
    """
    if found.origin is None or not found.known.observed:
        return 1.0
    last = found.known.observed[-1].at
    place = at if at.world_size < last.world_size else last
    here, there = (exp(-float(equations(one, [place])[0][0])) - 1 for one in (found.origin, found))
    far = max(here, LEAST_LOSS, float(np.max(np.abs(found.missed))))
    share = exp((here - there) / far) if there > here else 1 - (here - there) / far
    return (ANOTHER_MODEL if found.setting.tensors != found.origin.setting.tensors else 1.0) * max(share, 0.0)


def line_note(found: Fit) -> tuple[str, ...]:
    """Say so if hosts send less over TCP than the line carries."""
    setting = found.setting
    values = model.values(found.names, found.priors.constants, found.z[None])
    line = model.TCP_EFFICIENCY * setting.line_bytes_per_s
    if not model.has_cap(setting) or (cap := float(model.cap_bytes_per_s(setting, values)[0, 0])) >= line:
        return ()
    said = f"a node sends about {cap / 1e9:.2g} GB/s over TCP, and its line carries {line / 1e9:.2g}"
    return (f"the line no longer limits: {said}",)


# ---------------------------------------------------------------- equations as functions of z


def equations(found: Fit, at: Sequence[At]) -> tuple[Floats, Parts, Floats]:
    """Return ln(rate of a device here / at the anchor), the parts of the step, and derivatives by z."""
    z = np.vstack([found.z, found.z + STEP * np.eye(len(found.z)), found.z - STEP * np.eye(len(found.z))])
    logs, parts = _logs(found.setting, found.known.anchor, found.priors, found.names, z, at)
    count = len(found.z)
    slopes = (logs[1 : count + 1] - logs[count + 1 :]) / (2 * STEP)
    return logs[0], Parts(*(np.broadcast_to(part, logs.shape)[0] for part in parts)), slopes


def _logs(
    setting: Setting, anchor: At, priors: Priors, names: Mapping[str, str], z: Floats, at: Sequence[At]
) -> tuple[Floats, Parts]:
    values = model.values(names, priors.constants, z)
    step_s = setting.step_s * (np.exp(setting.step_spread * z[:, -1]) if setting.step_spread else np.ones(len(z)))
    parts = model.parts(setting, values, model.sizes(at), _alone_s(setting, values, anchor, step_s))
    each = np.array([float(one.accumulation) for one in at])
    return np.log(step_s[:, None] * each / parts.step_s), parts


def _alone_s(setting: Setting, values: model.Values, anchor: At, step_s: Floats) -> Floats:
    """The micro step of one device that reproduces the step at the anchor."""
    if anchor.world_size == 1:
        return step_s
    at, alone_s = model.sizes([anchor]), step_s * 0.9
    for _ in range(8):
        there_s = model.parts(setting, values, at, alone_s).step_s[:, 0] / anchor.accumulation
        alone_s = np.maximum(alone_s * np.clip(step_s / there_s, 0.5, 2.0), 0.02 * step_s)
    return alone_s


def _signals(
    setting: Setting, known: Known, priors: Priors, names: Mapping[str, str], z: Floats
) -> tuple[Floats, Floats]:
    """What the equations say of every measurement, and the derivatives by z."""
    draws = np.vstack([z, z + STEP * np.eye(len(z)), z - STEP * np.eye(len(z))])
    seen = _logs(setting, known.anchor, priors, names, draws, [one.at for one in known.observed])[0]
    columns = [seen]
    for one in known.exchanges:
        parts = _logs(one.setting or setting, known.anchor, priors, names, draws, [one.at])[1]
        columns.append(np.log(np.maximum(parts.exchange_s, 1e-9)))
    for share in known.shares:
        parts = _logs(setting, known.anchor, priors, names, draws, [share.at])[1]
        part = parts.contention_s if share.part == "contention" else parts.straggling_s
        columns.append(part / parts.alone_s)
    values = model.values(names, priors.constants, draws)
    values["network"] = model.carried_bytes_per_s(setting, values)
    columns += [np.log(values[constant.role]) for constant in known.constants]
    every = np.hstack([np.broadcast_to(column, (len(draws), column.shape[1])) for column in columns])
    count = len(z)
    return every[0], (every[1 : count + 1] - every[count + 1 :]) / (2 * STEP)


def told(known: Known, walk: Walk) -> tuple[Floats, Floats]:
    """The measurements in the order of `_signals`, and their covariance, the model's error included."""
    rows = [(log(one.value), one.noise) for one in known.observed]
    rows += [(log(one.seconds), one.noise) for one in known.exchanges]
    rows += [(one.fraction, one.noise) for one in known.shares]
    rows += [(log(one.value), one.noise) for one in known.constants]
    target, sd = np.array(rows, float).reshape(-1, 2).T
    noise, seen = np.diag(sd**2), [one.at for one in known.observed]
    noise[: len(seen), : len(seen)] += covariance(walk, known.anchor, seen, seen)
    return target, noise


def covariance(walk: Walk, anchor: At, rows: Sequence[At], columns: Sequence[At]) -> Floats:
    """Compute the covariance of the walk, which is 0 at `anchor`. Doublings inside a node and of nodes are
    independent."""
    ours, theirs, start = (
        np.array([_place(walk, at) for at in ats], float).reshape(-1, 2) for ats in (rows, columns, [anchor])
    )
    a, b = (ours - start)[:, None, :], (theirs - start)[None, :, :]
    return np.asarray(np.where(a * b > 0, np.minimum(np.abs(a), np.abs(b)), 0.0).sum(axis=2))


def _place(walk: Walk, at: At) -> tuple[float, float]:
    inside = walk.inside**2 * float(np.log2(at.devices_per_node))
    if at.nodes == 1:
        return inside, 0.0
    return inside, walk.leaving**2 + walk.beyond**2 * float(np.log2(at.nodes / 2))
