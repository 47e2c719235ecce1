"""Verdicts of `scaling certify` on simulated rounds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import exp, log, sqrt
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import interval, judged, of_estimate
from scaling.records.run import NO_VERDICT, CertificateResult, Criterion

SEATS = 2
STALLED = log(1.3)


class Noise(NamedTuple):
    """Noise of rounds, as standard deviations of logarithms: `exchange` and `plain` from start to start.

    `ar`: correlation of a round with the one before it. `drift`: change of the exchange over `rounds`.
    `stalls`: part of the rounds in which the exchange takes 30 % longer; the mean stays the same.
    """

    exchange: float = 0.01
    plain: float = 0.01
    ar: float = 0.0
    drift: float = 0.0
    stalls: float = 0.0


class Trial(NamedTuple):
    """How a launch ended: its verdict, the number of its rounds, and why it was not decided."""

    result: CertificateResult
    rounds: int
    doubt: str = ""


def decided(efficiency: float, criterion: Criterion, noise: Noise, rounds: int, rng: random.Random) -> Trial:
    """Simulate rounds of a launch until a verdict, or until `rounds` are over."""
    found = judged(criterion, [*efficiencies(efficiency, noise, rounds, rng)], [0.0] * rounds, 1)
    return Trial(found.result, found.looks[-1].rounds, found.doubt)


def efficiencies(efficiency: float, noise: Noise, rounds: int, rng: random.Random) -> Iterator[float]:
    """Yield the logarithm of each round's efficiency: seats alone less exchange, each column with its own noise.

    A round hits all columns equally, ten times as much as a start, and cancels.
    """
    columns = [rng.gauss(0, 1) for _ in range(SEATS + 1)]
    for number in range(rounds):
        common = rng.gauss(0, 0.1)
        exchange = -log(efficiency) + common + noise.exchange * columns[0]
        seats = [common + noise.plain * column for column in columns[1:]]
        stalled = STALLED * ((rng.random() < noise.stalls) - noise.stalls)
        drift = noise.drift * (number / (rounds - 1) - 0.5)
        yield fmean(seats) - exchange - stalled + drift
        columns = [noise.ar * one + sqrt(1 - noise.ar**2) * rng.gauss(0, 1) for one in columns]


def line(value: float) -> Criterion:
    """Return a criterion whose line is known exactly."""
    return Criterion(name="efficiency", unit="", line=value, looks=(), result=NO_VERDICT)


def referred(noise: Noise, launch_sd: float, rounds: int, share: float, rng: random.Random) -> Criterion:
    """Return the criterion that a launch of efficiency 1 gives as a reference."""
    level = exp(rng.gauss(0, launch_sd))
    side = of_estimate(interval([*efficiencies(level, noise, rounds, rng)]).exp())
    own = {"line_variance": side.variance or 0.0, "line_df": side.df}
    return replace(line(share * exp(side.mean)), **own)
