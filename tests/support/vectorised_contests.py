"""`analysis.contrasts` for thousands of complete tables at once; a unit test holds the two equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # type: ignore[import-untyped]

from scaling.analysis.contrasts import CONFIDENCE, ENOUGH, SLACK, range_quantile
from tests.support.noise import Logs


def told_apart(logs: Logs) -> NDArray[np.bool_]:
    """By table, world size and rival, whether it is told from the fastest of its contest."""
    _, sizes, rounds, rivals = logs.shape
    first = logs.mean(2).argmin(2)
    differences = logs - np.take_along_axis(logs, first[:, :, None, None], axis=3)
    own = stdtrit(rounds - 1, (1 + CONFIDENCE) / 2) * np.sqrt(differences.var(axis=2, ddof=1) / rounds)
    rest = logs - logs.mean(2, keepdims=True) - logs.mean(3, keepdims=True) + logs.mean((2, 3), keepdims=True)
    freedom = (rivals - 1) * (rounds - 1)
    variance = (rest**2).sum((2, 3)) / freedom
    share = _shares(rest, variance)
    of_first = np.take_along_axis(np.broadcast_to(share[:, None], own.shape), first[:, :, None], axis=2)
    noisier = np.maximum(1, (share[:, None] + of_first) / 2)
    df = np.full(len(logs), float(freedom))
    if freedom < ENOUGH:
        df = sizes * freedom * _kept(variance, freedom)
        variance = np.maximum(variance, variance.mean(1, keepdims=True))
    if rivals > 2:
        df = np.maximum(2, df * _kept(share, sizes * freedom / rivals))
    df, of_df = np.unique((df + SLACK).astype(int), return_inverse=True)
    q = np.array([range_quantile(CONFIDENCE ** (1 / sizes), rivals, int(one)) for one in df])[of_df]
    tukey = q[:, None, None] * np.sqrt(variance[:, :, None] * noisier / rounds)
    told: NDArray[np.bool_] = np.abs(differences.mean(2)) > np.maximum(own, tukey)
    np.put_along_axis(told, first[:, :, None], np.bool_(False), axis=2)
    return told


def _kept(variances: Logs, df: float) -> Logs:
    """Satterthwaite's part of the degrees of freedom that is left of a mean of variances on `df` each."""
    squares = (variances**2).sum(1) * df / (df + 2)
    kept: Logs = np.minimum(1, variances.sum(1) ** 2 / squares / variances.shape[1])
    return kept


def _shares(rest: Logs, variance: Logs) -> Logs:
    """Shukla's variance of each rival over that of its contest, mean over contests."""
    _, _, rounds, rivals = rest.shape
    if rivals < 3:
        return np.ones((len(rest), rivals))
    squares = (rest**2).sum(2)
    factor = (rounds - 1) * (rivals - 1) * (rivals - 2)
    own = (rivals * (rivals - 1) * squares - squares.sum(2, keepdims=True)) / factor
    shares: Logs = np.maximum(0, own / variance[:, :, None]).mean(1)
    return shares


def told_slower(logs: Logs, by: float) -> float:
    """The share of tables that tell the last rival of the first world size, which is `by` (a logarithm) slower
    than all others, from the fastest of these."""
    shifted = logs.copy()
    shifted[:, 0, :, -1] += by
    return float(told_apart(shifted)[:, 0, -1].mean())


def told_best(logs: Logs, by: float) -> float:
    """The share that tells the first rival, which is `by` faster than all others, from each of them."""
    shifted = logs.copy()
    shifted[:, 0, :, 1:] += by
    return float(told_apart(shifted)[:, 0, 1:].all(1).mean())


def told_pair(logs: Logs, by: float) -> float:
    """The share that tells two rivals apart which differ by `by`, while all others are far behind."""
    shifted = logs.copy()
    shifted[:, 0, :, 1:] += 1 + by
    shifted[:, 0, :, -1] -= 1
    return float(told_apart(shifted)[:, 0, (0, -1)].any(1).mean())
