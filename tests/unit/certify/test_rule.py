"""The rule of a verdict: bounds, spent errors, decisions, and what simulated machines get."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from math import log

import pytest
from msgspec.structs import replace

from scaling.analysis.statistics.intervals import ERROR, FIRST_ROUNDS, judged, rounds_that_show, unseen
from scaling.records.run import FAIL, NO_VERDICT, PASS, CertificateResult, Criterion
from scaling.report.verdict import result_of
from tests.bench.verdicts import Noise, decided, line, referred

LINE = line(0.95)
QUIET = (0.001, -0.001, 0.0005, 0.001, -0.0005, -0.001)


def looked(mean: float, criterion: Criterion = LINE, rounds: int = 6, among: int = 1) -> Criterion:
    """Judge quiet rounds of this mean."""
    values = [log(mean) + QUIET[number % len(QUIET)] for number in range(rounds)]
    return judged(criterion, values, [0.0] * rounds, among)


def test_the_errors_of_all_looks_sum_up_to_the_error() -> None:
    spent = [look.error for look in looked(0.95, rounds=60).looks]
    assert spent[0] == ERROR / 2 and sum(spent) < ERROR
    assert all(one > other for one, other in pairwise(spent))


@pytest.mark.parametrize(("mean", "result"), [(0.90, FAIL), (0.95, NO_VERDICT), (0.97, NO_VERDICT)])
def test_six_rounds_can_fail_and_cannot_pass_near_the_line(mean: float, result: CertificateResult) -> None:
    found = looked(mean)
    assert found.result == result
    (look,) = found.looks
    assert look.rounds == FIRST_ROUNDS and look.low < look.mean < look.high


def test_a_pass_takes_the_rounds_that_would_show_rare_stalls() -> None:
    """3 points above the line: stalls of 30 % in one of ten rounds would cost as much."""
    found = looked(0.98, rounds=60)
    assert found.result == PASS
    margin = log(0.98 / 0.95)
    assert found.looks[-1].rounds - rounds_that_show(margin) in range(4)
    assert unseen(rounds_that_show(margin)) <= margin < unseen(rounds_that_show(margin) - 1)
    assert looked(0.98, rounds=20).doubt.startswith("20 rounds can miss rare stalls")


def test_fewer_than_six_rounds_are_no_look() -> None:
    found = looked(0.5, rounds=5)
    assert (found.result, found.looks) == (NO_VERDICT, ()) and "too few" in found.doubt


def test_criteria_share_the_error_and_a_line_of_its_own_error_widens_the_bounds() -> None:
    one, shared = looked(0.95), looked(0.95, among=2)
    assert shared.looks[0].error == one.looks[0].error / 2
    uncertain = looked(0.95, replace(LINE, line_variance=0.02**2, line_df=3.0))
    assert uncertain.looks[0].low < shared.looks[0].low < one.looks[0].low
    assert looked(0.92, replace(LINE, line_variance=0.02**2, line_df=3.0)).result == NO_VERDICT


@pytest.mark.parametrize("rounds", range(6, 30))
def test_the_verdict_of_the_first_rounds_is_the_verdict_of_the_run(rounds: int) -> None:
    """Each round is judged once: what follows a verdict does not change it."""
    dice = random.Random(rounds)
    values = [log(0.9) + dice.gauss(0, 0.01) for _ in range(30)]
    whole = judged(LINE, values, [0.0] * 30, 1)
    part = judged(LINE, values[:rounds], [0.0] * rounds, 1)
    assert part.looks == whole.looks[: len(part.looks)]
    assert (part.result == whole.result) == (len(whole.looks) <= rounds - 5)


def test_windows_widen_bounds_of_rounds_that_agree_by_chance() -> None:
    found = judged(LINE, [log(0.9)] * 6, [0.1**2] * 6, 1)
    assert found.result == NO_VERDICT and found.looks[0].high > 0.95


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda number: -0.002 * number, "fell by"),
        (lambda number: -0.35 * (number == 7), "round 8 was"),
        (lambda number: 0.06 * (number // 6 % 2), "resembles the one before"),
    ],
)
def test_rounds_that_are_not_alike_do_not_pass_and_say_why(change: object, said: str) -> None:
    assert callable(change)
    dice = random.Random(1)
    values = [log(0.99) + change(number) + dice.gauss(0, 0.001) for number in range(60)]
    found = judged(LINE, values, [0.0] * 60, 1)
    assert found.result == NO_VERDICT and said in found.doubt


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
    assert result_of([replace(LINE, result=one) for one in results]) == whole


def test_simulated_machines_get_the_right_verdict() -> None:
    """`python -m tests.bench.certify` has the shares of more machines."""
    dice = random.Random(7)
    stalls, correlated = Noise(0.003, 0.001, stalls=0.1), Noise(0.01, 0.003, ar=0.8)
    for noise in (Noise(0.01, 0.01), Noise(0.01, 0.001), Noise(0.01, 0.003, ar=0.3), stalls, correlated):
        at_line = Counter(decided(0.95, LINE, noise, 30, dice).result for _ in range(100))
        assert at_line[PASS] <= 3 and (noise is correlated or at_line[FAIL] <= 3)
    below = Counter(decided(0.92, LINE, Noise(0.01, 0.01), 20, dice).result for _ in range(50))
    assert below[FAIL] >= 45
    above = Counter(decided(0.98, LINE, Noise(0.01, 0.01), 60, dice).result for _ in range(50))
    assert above[PASS] >= 45


def test_a_machine_passes_its_own_reference() -> None:
    dice = random.Random(8)
    noise = Noise(0.003, 0.003)
    found = [decided(1.0, referred(noise, 0.005, 6, 0.9, dice), noise, 40, dice).result for _ in range(40)]
    assert Counter(found)[PASS] >= 38
