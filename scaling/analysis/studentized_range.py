"""Quantiles of the studentized range, on which Tukey's test of all pairs rests. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import pi, sqrt

# Nodes of each of the two integrals: 2e-6 of the quantile, for up to 30 means and from 2 degrees of freedom on.
NODES = 64
# Beyond so many standard deviations too little is left of either density to matter.
REACH = 7.0


@lru_cache(maxsize=1024)
def quantile(confidence: float, count: int, df: int) -> float:
    """Return what the range of `count` equal means, over their standard error on `df` degrees of freedom, stays
    below with this confidence.

    scipy.stats.studentized_range says the same in 0.1 s, after an import of 1 s; this takes a few ms, on cores
    that are about to be measured.
    """
    # Imported here: every rank of a launch starts with the analysis, only rank 0 compares.
    from scipy.optimize import brentq  # type: ignore[import-untyped]
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    of_two = sqrt(2) * float(stdtrit(df, (1 + confidence) / 2))
    if count == 2:
        return of_two
    upper = sqrt(2) * float(stdtrit(df, 1 - (1 - confidence) / (count * (count - 1))))  # Bonferroni's
    below = _distribution(count, df)
    return float(brentq(lambda value: below(value) - confidence, of_two, 1.001 * upper, rtol=1e-10))


def _distribution(count: int, df: int) -> Callable[[float], float]:
    """P(range <= q s): over the density of s, a chi of `df` over its root, of `count` normal means within q s.

    Lund & Lund, "Algorithm AS 190", Applied Statistics 32 (1983): the integral of
    count phi(z) (Phi(z) - Phi(z - q s))^(count - 1) over z.
    """
    import numpy as np
    from scipy.special import gammaln, ndtr

    nodes, weights = np.polynomial.legendre.leggauss(NODES)  # type: ignore[no-untyped-call]
    z = REACH * nodes
    of_z = REACH * weights * count * np.exp(-z * z / 2) / sqrt(2 * pi)
    low, high = max(0.0, 1 - REACH / sqrt(2 * df)), 1 + REACH / sqrt(2 * df)
    s = (low + high) / 2 + (high - low) / 2 * nodes
    log_density = df / 2 * np.log(df / 2) + np.log(2) - gammaln(df / 2) + (df - 1) * np.log(s) - df * s * s / 2
    of_s = (high - low) / 2 * weights * np.exp(log_density)
    below_z = ndtr(z)
    return lambda q: float(of_s @ (below_z - ndtr(z - q * s[:, None])) ** (count - 1) @ of_z)
