"""Verdicts of `scaling certify` on simulated rounds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from scaling.analysis.statistics.intervals import Estimate, Side, contrast, of_estimate, residual
from scaling.records.run import NO_VERDICT, CertificateResult, Criterion
from scaling.report import reference
from scaling.tools.certify import flags, leading

SEATS = ("first", "last")


class Trial(NamedTuple):
    """How a launch ended: its verdict and the number of its rounds."""

    result: CertificateResult
    rounds: int


def decided(efficiency: float, line: Side, sd: float, rounds: int, rng: random.Random) -> Trial:
    """Simulate rounds of a launch until a verdict or `rounds` are over. `sd` is of the logarithm of a cell's step
    time from start to start."""
    cells: dict[str, dict[int, float]] = {name: {} for name in ("exchange", "together", *SEATS)}
    criterion = Criterion(name="efficiency", unit="", line=exp(line.mean), looks=(), result=NO_VERDICT)
    for number in range(rounds):
        add_round(cells, number, efficiency, sd, rng)
        if number + 1 >= flags.FIRST_ROUNDS:
            criterion = leading.looked(criterion, estimated(cells), line, 1)
        if criterion.result != NO_VERDICT:
            return Trial(criterion.result, number + 1)
    return Trial(NO_VERDICT, rounds)


def add_round(
    cells: Mapping[str, dict[int, float]], number: int, efficiency: float, sd: float, rng: random.Random
) -> None:
    """Add the logarithms of one round's step times. A round hits all cells alike, ten times as much as a start."""
    common = rng.gauss(0, 10 * sd)
    for name, column in cells.items():
        level = -log(efficiency) if name == "exchange" else 0.0
        column[number] = level + common + rng.gauss(0, sd)


def estimated(cells: Mapping[str, Mapping[int, float]]) -> Estimate:
    """Return the efficiency as a row of the table has it."""
    ideal = {number: fmean(cells[name][number] for name in SEATS) for number in cells["exchange"]}
    logs = [ideal[number] - step for number, step in cells["exchange"].items()]
    return contrast(logs, residual(cells)).exp()


def referred(sd: float, launch_sd: float, rounds: int, line: float, rng: random.Random) -> Side:
    """Return the line that a launch of efficiency 1 gives as a reference."""
    cells: dict[str, dict[int, float]] = {name: {} for name in ("exchange", "together", *SEATS)}
    level = exp(rng.gauss(0, launch_sd))
    for number in range(rounds):
        add_round(cells, number, level, sd, rng)
    value = reference.value(estimated(cells))
    assert value is not None
    return of_estimate(value.estimate.times(line))
