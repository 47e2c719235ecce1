"""Inference by importance sampling with a fixed seed: priors and measurements give weighted draws and predictions.

Proposals adapt and count as one mixture (Cornuet et al., "Adaptive multiple importance sampling", 2012). The walk
(`covariance`) is not sampled: given the constants it is Student's t with a known conditional.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import lgamma, log
from typing import NamedTuple

import numpy as np

from scaling.tools.predict import model
from scaling.tools.predict.model import Floats, Parts
from scaling.tools.predict.priors import Priors, Walk
from scaling.tools.predict.setting import At, Exchange, Known, Setting, Share


def covariance(walk: Walk, anchor: At, rows: Sequence[At], columns: Sequence[At]) -> Floats:
    """Compute the covariance of the walk, which is 0 at `anchor`. Entries are variances of ln(efficiency).
    Doublings inside a node and of nodes are independent."""
    ours, theirs, start = (np.array([_place(walk, at) for at in ats]) for ats in (rows, columns, [anchor]))
    a, b = (ours - start)[:, None, :], (theirs - start)[None, :, :]
    together = np.where(a * b > 0, np.minimum(np.abs(a), np.abs(b)), 0.0)
    return np.asarray(together.sum(axis=2))


def _place(walk: Walk, at: At) -> tuple[float, float]:
    inside = walk.inside**2 * float(np.log2(at.devices_per_node))
    if at.nodes == 1:
        return inside, 0.0
    return inside, walk.leaving**2 + walk.beyond**2 * float(np.log2(at.nodes / 2))


DRAWS, SEED = 4000, 20260101
ROUNDS, MOST_ROUNDS = 4, 16
# effective draws; with fewer, more proposals are tried
ENOUGH = 250
# Student's t for shares, which differ from the model's by more than rounds show. `comm` is the model's T directly.
CONTROL_FREEDOM = 4.0
# effective draws per constant to which a proposal is fitted
EVEN = 4.0
PROPOSAL_FREEDOM = 8.0
# Largest efficiency relative to the best measured one: 7 of 727 published ones exceed it (SUPERLINEAR).
HIGHEST = 1.02


class Posterior(NamedTuple):
    """Weighted draws of constants (`z` is standard normal) and residuals of the observed efficiencies.

    * likeness: correlation of the model error with that of the measured setting, 1 for the same
    * widening: factor on the spread of the model error
    """

    setting: Setting
    names: Mapping[str, str]
    priors: Priors
    known: Known
    z: Floats
    weights: Floats
    residuals: Floats
    likeness: float = 1.0
    widening: float = 1.0

    @property
    def even(self) -> float:
        """Effective number of draws."""
        return float(1 / np.sum(self.weights**2))


class Predicted(NamedTuple):
    """Draws of ln(efficiency relative to the anchor) by target, and the step's parts without model error."""

    log_efficiency: Floats
    weights: Floats
    parts: Parts


def posterior(setting: Setting, known: Known, priors: Priors, draws: int = DRAWS, seed: int = SEED) -> Posterior:
    names = model.keys(setting)
    size = len(names) + (setting.step_spread > 0)
    told = bool(known.observed or known.exchanges or known.shares or known.constants)
    rounds = ROUNDS if told else 1
    rng = np.random.default_rng(seed)

    def likelihood(z: Floats) -> tuple[Floats, Floats]:
        return _log_likelihood(setting, known, priors, names, z)

    z, weights, residuals = _adapt(likelihood, size, rounds, draws // rounds, rng)
    return Posterior(setting, names, priors, known, z, weights, residuals)


def predict(found: Posterior, targets: Sequence[At], seed: int = SEED) -> Predicted:
    setting, known, walk = found.setting, found.known, found.priors.walk
    seen = [one.at for one in known.observed]
    relative, parts = _relative(setting, known.anchor, found.priors, found.names, found.z, targets)
    own = covariance(walk, known.anchor, targets, targets)
    freedom, scale = walk.freedom, np.ones(len(found.z))
    if seen:
        cross = covariance(walk, known.anchor, targets, seen)
        noise = _seen_covariance(walk, known)
        gain = np.linalg.solve(noise, cross.T).T
        relative = relative + found.likeness * found.residuals @ gain.T
        own = own - found.likeness**2 * gain @ cross.T
        distance = _distance(found.residuals, noise)
        freedom += len(seen)
        scale = (walk.freedom + distance) / freedom
    own = found.widening**2 * own
    highest = log(HIGHEST * max([1.0, *(one.value for one in known.observed)]))
    drawn = np.minimum(relative + _walked(own, freedom, scale, seed), highest)
    return Predicted(drawn, found.weights, parts)


def relative(found: Posterior, at: Sequence[At]) -> Floats:
    """Compute ln(efficiency relative to the anchor) without model error, draws x world sizes."""
    return _relative(found.setting, found.known.anchor, found.priors, found.names, found.z, at)[0]


def _walked(own: Floats, freedom: float, scale: Floats, seed: int) -> Floats:
    rng = np.random.default_rng(seed + 1)
    values, vectors = np.linalg.eigh(own)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = rng.standard_normal((len(scale), len(own))) @ root.T
    spread = np.sqrt(scale * freedom / rng.chisquare(freedom, len(scale)))
    return np.asarray(normal * spread[:, None])


def quantiles(values: Floats, weights: Floats, at: Sequence[float]) -> Floats:
    """Compute quantiles of weighted draws (draws x columns), as quantiles x columns."""
    order = np.argsort(values, axis=0)
    ranked = np.cumsum(weights[order], axis=0) - 0.5 * weights[order]
    ordered = np.take_along_axis(values, order, axis=0)
    columns = range(values.shape[1])
    return np.array([[np.interp(q, ranked[:, k], ordered[:, k]) for k in columns] for q in at])


# ---------------------------------------------------------------- likelihood


def _relative(
    setting: Setting, anchor: At, priors: Priors, names: Mapping[str, str], z: Floats, at: Sequence[At]
) -> tuple[Floats, Parts]:
    """ln(rate of a device here / at the anchor), draws x world sizes, and the parts of the steps."""
    values = model.values(names, priors.constants, z)
    step_s = setting.step_s * (np.exp(setting.step_spread * z[:, -1]) if setting.step_spread else np.ones(len(z)))
    alone_s = _alone_s(setting, values, anchor, step_s)
    parts = model.parts(setting, values, model.sizes(at), alone_s)
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


def _log_likelihood(
    setting: Setting, known: Known, priors: Priors, names: Mapping[str, str], z: Floats
) -> tuple[Floats, Floats]:
    seen = [one.at for one in known.observed]
    total, residuals = np.zeros(len(z)), np.zeros((len(z), len(seen)))
    if seen:
        relative, _ = _relative(setting, known.anchor, priors, names, z, seen)
        residuals = np.log([one.value for one in known.observed]) - relative
        total = _student(residuals, _seen_covariance(priors.walk, known), priors.walk.freedom)
    controls: list[Exchange | Share] = [*known.exchanges, *known.shares]
    for one in controls:
        own = (one.setting if isinstance(one, Exchange) else None) or setting
        _, parts = _relative(own, known.anchor, priors, names, z, [one.at])
        off = (_miss(one, parts) / one.noise) ** 2
        direct = isinstance(one, Exchange)
        total = total - (0.5 * off if direct else 0.5 * (CONTROL_FREEDOM + 1) * np.log1p(off / CONTROL_FREEDOM))
    values = model.values(names, priors.constants, z)
    carried = values | {"network": model.carried_bytes_per_s(setting, values)}
    constants = [(np.log(carried[one.role][:, 0] / one.value) / one.noise) ** 2 for one in known.constants]
    return total - 0.5 * np.sum(constants, axis=0), residuals


def _miss(one: Exchange | Share, parts: Parts) -> Floats:
    if isinstance(one, Exchange):
        return np.asarray(np.log(one.seconds / np.maximum(parts.exchange_s[:, 0], 1e-9)))
    part = parts.contention_s if one.part == "contention" else parts.straggling_s
    return np.asarray(one.fraction - (part / parts.alone_s)[:, 0])


def _seen_covariance(walk: Walk, known: Known) -> Floats:
    seen = [one.at for one in known.observed]
    noise = np.diag([one.noise**2 for one in known.observed]) + known.anchor_noise**2
    return covariance(walk, known.anchor, seen, seen) + noise


def _distance(residuals: Floats, noise: Floats) -> Floats:
    return np.asarray(np.sum(residuals * np.linalg.solve(noise, residuals.T).T, axis=1))


def _student(residuals: Floats, noise: Floats, freedom: float) -> Floats:
    size = len(noise)
    _, determinant = np.linalg.slogdet(noise)
    distance = _distance(residuals, noise)
    return np.asarray(-0.5 * (freedom + size) * np.log1p(distance / freedom) - 0.5 * determinant)


# ---------------------------------------------------------------- adaptive importance sampling


class _Proposal(NamedTuple):
    mean: Floats
    root: Floats  # lower triangular

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        spread = np.sqrt(PROPOSAL_FREEDOM / rng.chisquare(PROPOSAL_FREEDOM, (count, 1)))
        return np.asarray(self.mean + (rng.standard_normal((count, len(self.mean))) * spread) @ self.root.T)

    def log_density(self, z: Floats) -> Floats:
        away = (z - self.mean) @ np.linalg.inv(self.root).T  # small: cheaper than solving per draw
        size = len(self.mean)
        return np.asarray(
            -0.5 * (PROPOSAL_FREEDOM + size) * np.log1p(np.sum(away**2, axis=1) / PROPOSAL_FREEDOM)
            - np.sum(np.log(np.diag(self.root)))
            + _student_constant(size)
        )


def _student_constant(size: int) -> float:
    """how PROPOSAL_FREEDOM's Student's t differs from a normal density"""
    half = PROPOSAL_FREEDOM / 2
    return lgamma(half + size / 2) - lgamma(half) - size / 2 * log(half)


Likelihood = Callable[[Floats], tuple[Floats, Floats]]


def _adapt(
    likelihood: Likelihood, size: int, rounds: int, count: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    proposals: list[_Proposal | None] = [None]
    z = rng.standard_normal((count, size))
    target, residuals = likelihood(z)
    logs = _log_weights(z, target, proposals)
    while len(proposals) < rounds or (rounds > 1 and _too_few(logs) and len(proposals) < MOST_ROUNDS):
        proposal = _fitted(z, logs, size)
        more = proposal.draw(count, rng)
        extra, misses = likelihood(more)
        proposals.append(proposal)
        z, target = np.concatenate([z, more]), np.concatenate([target, extra])
        residuals = np.concatenate([residuals, misses])
        logs = _log_weights(z, target, proposals)
    weights = np.exp(logs - np.max(logs))
    return z, weights / weights.sum(), residuals


def _too_few(logs: Floats) -> bool:
    weights = np.exp(logs - np.max(logs))
    return float(weights.sum() ** 2 / np.sum(weights**2)) < ENOUGH


def _log_weights(z: Floats, target: Floats, proposals: Sequence[_Proposal | None]) -> Floats:
    prior = -0.5 * np.sum(z**2, axis=1)
    densities = [prior if one is None else one.log_density(z) for one in proposals]
    mixture = np.logaddexp.reduce(densities, axis=0) - np.log(len(proposals))
    return np.asarray(prior + target - mixture)


def _fitted(z: Floats, logs: Floats, size: int) -> _Proposal:
    logs = logs - np.max(logs)
    power = 1.0
    for _ in range(20):
        weights = np.exp(power * logs)
        weights /= weights.sum()
        if 1 / np.sum(weights**2) >= EVEN * size:
            break
        power *= 0.75
    mean = weights @ z
    away = z - mean
    spread = (away * weights[:, None]).T @ away + 0.02 * np.eye(size)
    return _Proposal(mean, np.linalg.cholesky(spread))
