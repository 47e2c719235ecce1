"""The rule of a verdict: a group sequential test of each quantity against its line, one look after each round.

After k looks a bound is wrong with probability ERROR / (k (k + 1)). These sum up to ERROR over any number of
looks, so all bounds hold together with probability 1 - ERROR (Bonferroni). Several quantities share ERROR.

An upper bound below the line is a FAIL. Lower bounds above all lines are a PASS. Both are Student's bounds of
logarithms, over rounds. The reason for this spending of alpha: a round is a start of all processes, so a verdict
has few. Student's t is exact then, if each look has its own level. The levels of O'Brien and Fleming (1979) leave
almost nothing to the first looks, which have the fewest degrees of freedom. A mixture test (mSPRT) needs a known
variance. `python -m tests.bench.certify` prints the error rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate, Side, of_estimate, quantile, welch
from scaling.records.run import FAIL, NO_VERDICT, PASS, CertificateResult, Criterion, Look

# Probability of a false FAIL at the line, and of a false PASS.
ERROR = 0.01


def error_of(look: int) -> float:
    """Return the error spent at the look of this number, from 1 on."""
    return ERROR / (look * (look + 1))


def fixed(value: float) -> Side:
    """Return a line that is known exactly, in logarithms."""
    return Side(log(value), 0.0, 1, 1)


def looked(criterion: Criterion, found: Estimate, line: Side, among: int) -> Criterion:
    """Return the criterion after one more look; `among` criteria share the error.

    `found` is the estimate so far, `line` the least logarithm that passes. A decided criterion does not change.
    """
    if criterion.result != NO_VERDICT:
        return criterion
    error = error_of(len(criterion.looks) + 1) / among
    side = of_estimate(found)
    beyond = welch(line, side)
    if beyond.se is None or side.variance is None:
        return criterion
    half = quantile(beyond.df, 1 - 2 * error) * beyond.se
    look = Look(
        rounds=found.n,
        mean=exp(side.mean),
        low=exp(side.mean - half),
        high=exp(side.mean + half),
        error=error,
    )
    return replace(criterion, looks=(*criterion.looks, look), result=_result(beyond.mean, half))


def _result(beyond: float, half: float) -> CertificateResult:
    if beyond + half < 0:
        return FAIL
    return PASS if beyond - half >= 0 else NO_VERDICT


def result(criteria: Sequence[Criterion]) -> CertificateResult:
    """Return FAIL if any criterion fails, PASS if all pass."""
    found = {one.result for one in criteria}
    if FAIL in found:
        return FAIL
    return PASS if found == {PASS} else NO_VERDICT
