"""Layouts of paired rounds and tables of contests, against simulations and known answers."""

from __future__ import annotations

from math import expm1, log, sqrt
from statistics import median

import numpy as np
import pytest

from scaling.analysis.statistics.contrasts import Layout, Table
from scaling.analysis.statistics.intervals import Estimate, is_distinguishable
from tests.bench.simulated_contests import NOISES, drawn, told_apart, told_pair

# Logarithms of three rivals in three rounds.
A, B, C = (0.0, 0.0, 0.0), (0.02, 0.03, 0.04), (0.10, 0.10, 0.13)


def layout(*logs: tuple[float | None, ...]) -> Layout:
    by_round = [{number: value for number, value in enumerate(one) if value is not None} for one in logs]
    return Layout(by_round, [""] * len(logs))


def estimate(found: Estimate | None) -> Estimate:
    assert found is not None
    return found


# ---------------------------------------------------------------- a layout


def test_a_difference_has_a_sign_and_the_rounds_that_both_have() -> None:
    found = layout((0.0, 0.1, None, 0.2), (0.1, 0.3, 0.9, None))
    there, back = found.difference(0, 1), found.difference(1, 0)
    assert there is not None and back is not None
    assert there.mean == pytest.approx(0.15) and there.rounds == 2
    assert there.variance == pytest.approx(0.005)
    assert back == there._replace(mean=-there.mean)


def test_missing_rounds_cost_their_own_pairs_alone() -> None:
    whole, less = layout(A, B, C), layout(A, B, (0.10, 0.10, None))
    assert whole.difference(0, 1) == less.difference(0, 1)
    assert (whole.count, layout(A, B, (0.10, None, None)).count, layout(A, (None, None, None)).count) == (3, 2, 0)
    assert layout(A, (None, None, None)).difference(0, 1) is None


# ---------------------------------------------------------------- a table


def test_two_rivals_alone_have_students_interval() -> None:
    # mean 0.03, s = 0.01, t(0.975, 2) = 4.302653: half 0.0248414 of the logarithm
    one = layout(A, B)
    found = estimate(Table([one]).estimate(one, 0, 1))
    assert found.n == 3
    assert found.mean == pytest.approx(expm1(0.03))
    assert found.low == pytest.approx(expm1(0.03 - 0.0248414), abs=1e-7)
    assert found.high == pytest.approx(expm1(0.03 + 0.0248414), abs=1e-7)


def test_pairs_of_two_frameworks_with_too_few_of_them_have_their_own_variance() -> None:
    # two pairs: 5 % / 2 each, t(1 - 0.0125, 2) = 6.205347; s = 0.01
    one = layout(A, B)
    found = estimate(Table([one, layout(A, C)]).estimate(one, 0, 1))
    assert found.low is not None and found.df == 2
    assert log((1 + found.mean) / (1 + found.low)) == pytest.approx(6.205347 * 0.01 / sqrt(3), rel=1e-6)


def test_equal_variances_join_their_degrees_of_freedom() -> None:
    dice = np.random.default_rng(4)
    one = layout(*map(tuple, dice.normal(0, 0.01, (6, 4)).tolist()))
    found = estimate(Table([one]).estimate(one, 0, 1))
    assert found.df is not None and found.df > 10


@pytest.mark.parametrize("noisy", [0.3, 3.0])
def test_a_noisy_strategy_does_not_make_a_proven_difference_tied(noisy: float) -> None:
    """Two networks that differ by 22 % with a noise of 0.5 %, beside four rows with a noise of `noisy`."""
    dice = np.random.default_rng(5)
    pair = [tuple(level + dice.normal(0, 0.005, 4)) for level in (0.0, 0.2)]
    loud = [tuple(dice.normal(0, noisy, 4)) for _ in range(4)]
    one, other = layout(*pair, *loud), layout(*loud)
    for table in (Table([one]), Table([one, other])):
        assert is_distinguishable(estimate(table.estimate(one, 0, 1)))
        assert not is_distinguishable(estimate(table.estimate(one, 2, 3)))


def test_noise_of_another_framework_does_not_count() -> None:
    quiet = [(0.0, 0.001, 0.002, 0.0), (0.02, 0.021, 0.023, 0.02), (0.04, 0.041, 0.043, 0.042)]
    halves = set()
    for size in (0.01, 10.0):
        loud = [[size * number for number in one] for one in ((1, 5, 2, 7), (3, 2, 9, 1), (4, 4, 1, 8))]
        made = Layout([dict(enumerate(one)) for one in (*quiet, *loud)], ["torch"] * 3 + ["mxnet"] * 3)
        halves.add(estimate(Table([made]).estimate(made, 0, 1)).half_width)
    assert len(halves) == 1


def test_one_shared_round_has_no_interval_and_none_no_difference() -> None:
    one = layout((0.0, None, 0.1), (0.1, None, None), (None, 0.1, None))
    table = Table([one])
    assert table.estimate(one, 0, 1) == Estimate(mean=expm1(0.1), low=None, high=None, n=1)
    assert table.estimate(one, 0, 2) is None
    assert table.smallest(one, 3) is None


def test_equal_rounds_leave_no_doubt() -> None:
    one = layout((0.0, 0.0), (0.1, 0.1), (0.2, 0.2))
    found = estimate(Table([one]).estimate(one, 0, 1))
    assert found.half_width == pytest.approx(0.0, abs=1e-12) and is_distinguishable(found)


def test_more_rounds_tell_less_apart_and_more_noise_more() -> None:
    one, twice = layout(A, B, C), layout(*(tuple(2 * value for value in row) for row in (A, B, C)))
    now, more = (Table([one]).smallest(one, rounds) for rounds in (3, 8))
    noisier = Table([twice]).smallest(twice, 3)
    assert now is not None and more is not None and noisier is not None
    assert more < now / 2 and log(1 + noisier) == pytest.approx(2 * log(1 + now))


@pytest.mark.parametrize(("rivals", "sizes", "rounds"), [(2, 1, 4), (3, 1, 6), (8, 5, 6)])
def test_the_smallest_difference_is_found_in_80_of_100_tables(rivals: int, sizes: int, rounds: int) -> None:
    """Each of 100 tables names its own; in 80 of 100 tables of the same noise the median of these is found."""
    dice = np.random.default_rng(9)
    named = []
    for logs in drawn(dice, "equal", (100, sizes, rounds, rivals)):
        layouts = [Layout([dict(enumerate(one)) for one in size.T], [""] * rivals) for size in logs]
        named.append(Table(layouts).smallest(layouts[0], rounds))
    found = told_pair(drawn(dice, "equal", (300, sizes, rounds, rivals)), log(1 + median(filter(None, named))))
    assert found == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("rounds", [4, 6])
@pytest.mark.parametrize("noise", NOISES)
def test_equals_are_told_apart_in_at_most_5_of_100_tables(noise: str, rounds: int) -> None:
    """Of 8 strategies at 5 world sizes."""
    told = told_apart(drawn(np.random.default_rng(9), noise, (200, 5, rounds, 8)))
    assert told.any((1, 2)).mean() <= 0.08  # 5 %, with two standard errors of 200 tables


@pytest.mark.parametrize("rivals", [2, 3, 8])
def test_5_percent_are_found_at_a_noise_of_a_third_of_it(rivals: int) -> None:
    """Of any two, at one of 5 world sizes, in the default's 6 rounds."""
    assert told_pair(drawn(np.random.default_rng(9), "equal", (200, 5, 6, rivals)), log(1.05)) >= 0.8


def test_5_percent_are_found_beside_a_noisy_third() -> None:
    """A noise of 1.5 % beside one of 45 %, in the default's 6 rounds at one world size and at two."""
    for sizes in (1, 2):
        logs = np.random.default_rng(9).normal(0, 0.015, (500, sizes, 6, 3))
        logs[..., 1] *= 30
        assert told_pair(logs, log(1.05)) >= 0.8
