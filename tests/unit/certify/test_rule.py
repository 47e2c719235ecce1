"""The rule of a verdict: bounds, spent errors, decisions."""

from __future__ import annotations

import random
from collections import Counter
from math import log

import pytest

from scaling.analysis.statistics.intervals import Estimate, Side
from scaling.records.run import FAIL, NO_VERDICT, PASS, CertificateResult, Criterion
from scaling.tools.certify import leading
from tests.support.verdicts import decided

LINE = leading.fixed(0.95)


def criterion(result: CertificateResult = NO_VERDICT) -> Criterion:
    return Criterion(name="efficiency", unit="", line=0.95, looks=(), result=result)


def estimate(low: float, high: float, df: int = 8) -> Estimate:
    """A 95 % interval of a geometric mean over three rounds."""
    return Estimate(mean=(low * high) ** 0.5, low=low, high=high, n=3, df=df)


def test_the_errors_of_all_looks_sum_up_to_the_error() -> None:
    spent = [leading.error_of(look) for look in range(1, 10_000)]
    assert sum(spent) < leading.ERROR
    assert sum(spent) == pytest.approx(leading.ERROR, rel=1e-3)
    assert spent == sorted(spent, reverse=True)


@pytest.mark.parametrize(
    ("low", "high", "result"),
    [(0.99, 1.0, PASS), (0.90, 0.91, FAIL), (0.94, 0.96, NO_VERDICT), (0.951, 0.957, NO_VERDICT)],
)
def test_a_look_decides_if_its_whole_interval_is_on_one_side(
    low: float, high: float, result: CertificateResult
) -> None:
    found = leading.looked(criterion(), estimate(low, high), LINE, 1)
    assert found.result == result
    (look,) = found.looks
    assert look.low < low < look.mean < high < look.high


def test_a_look_is_wider_with_less_error() -> None:
    one = leading.looked(criterion(), estimate(0.94, 0.96), LINE, 1)
    shared = leading.looked(criterion(), estimate(0.94, 0.96), LINE, 2)
    later = leading.looked(one, estimate(0.94, 0.96), LINE, 1)
    assert shared.looks[0].low < one.looks[0].low
    assert later.looks[1].high > later.looks[0].high
    assert shared.looks[0].error == leading.ERROR / 4


def test_a_line_of_its_own_error_widens_the_bounds() -> None:
    uncertain = Side(log(0.95), 0.01**2, 3, 4)
    assert leading.looked(criterion(), estimate(0.97, 0.98), LINE, 1).result == PASS
    assert leading.looked(criterion(), estimate(0.97, 0.98), uncertain, 1).result == NO_VERDICT


def test_one_round_is_no_look() -> None:
    one_round = Estimate(mean=0.99, low=None, high=None, n=1)
    assert leading.looked(criterion(), one_round, LINE, 1) == criterion()


@pytest.mark.parametrize("result", [PASS, FAIL])
def test_a_decided_criterion_is_not_looked_at_again(result: CertificateResult) -> None:
    assert leading.looked(criterion(result), estimate(0.5, 0.6), LINE, 1) == criterion(result)


@pytest.mark.parametrize(
    ("results", "whole"),
    [
        ([PASS], PASS),
        ([PASS, PASS], PASS),
        ([PASS, NO_VERDICT], NO_VERDICT),
        ([NO_VERDICT, FAIL], FAIL),
        ([], NO_VERDICT),
    ],
)
def test_any_failure_fails_and_all_must_pass(results: list[CertificateResult], whole: CertificateResult) -> None:
    assert leading.result_of([criterion(one) for one in results]) == whole


def test_simulated_machines_get_the_right_verdict() -> None:
    """`python -m tests.bench.certify` has the shares of more machines."""
    rng = random.Random(7)
    at_line = Counter(decided(0.95, LINE, 0.005, 10, rng).result for _ in range(200))
    above = Counter(decided(0.99, LINE, 0.005, 10, rng).result for _ in range(200))
    below = Counter(decided(0.90, LINE, 0.005, 10, rng).result for _ in range(200))
    assert at_line[FAIL] <= 4
    assert above[FAIL] == 0
    assert above[PASS] >= 190
    assert below[PASS] == 0
    assert below[FAIL] >= 190
