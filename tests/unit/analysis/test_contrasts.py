"""Layouts of paired rounds and tables of contests, against simulations and known answers."""

from __future__ import annotations

from itertools import combinations
from math import expm1, log, sqrt

import numpy as np
import pytest
from scipy.stats import studentized_range  # type: ignore[import-untyped]

from scaling.analysis.contrasts import Layout, Table, range_quantile
from scaling.analysis.intervals import Estimate, is_distinguishable
from tests.support.noise import NOISES, drawn
from tests.support.vectorised_contests import told_apart, told_pair

# Logarithms of three rivals in three rounds.
A, B, C = (0.0, 0.0, 0.0), (0.02, 0.03, 0.04), (0.10, 0.10, 0.13)


def layout(*logs: tuple[float | None, ...]) -> Layout:
    by_round = [{number: value for number, value in enumerate(one) if value is not None} for one in logs]
    return Layout(by_round, [f"s{index}" for index in range(len(logs))])


def variance_of(made: Layout, one: int, other: int) -> float:
    found = made.difference(one, other)
    assert found is not None and found.variance is not None
    return found.variance


def half_widths(table: Table, made: Layout) -> list[float]:
    """Of all pairs, in logarithms."""
    found = [estimate(table.estimate(made, *pair)) for pair in combinations(range(made.count), 2)]
    return [log((1 + one.mean) / (1 + one.low)) for one in found if one.low is not None]


def estimate(found: Estimate | None) -> Estimate:
    assert found is not None
    return found


# ---------------------------------------------------------------- the studentized range


@pytest.mark.parametrize(
    ("confidence", "count", "df", "printed"),
    [(0.95, 3, 4, 5.04), (0.95, 8, 20, 4.77), (0.99, 5, 10, 6.14), (0.95, 2, 5, 3.64), (0.99, 10, 30, 5.76)],
)
def test_quantiles_are_those_of_printed_tables(confidence: float, count: int, df: int, printed: float) -> None:
    assert range_quantile(confidence, count, df) == pytest.approx(printed, abs=0.006)


@pytest.mark.parametrize(("count", "df"), [(2, 1), (2, 3), (3, 2), (5, 8), (8, 21), (16, 45), (30, 200)])
@pytest.mark.parametrize("confidence", [0.95, 0.99, 0.9975])
def test_quantiles_are_those_of_scipy(confidence: float, count: int, df: int) -> None:
    """Below its quantile SciPy finds the confidence."""
    assert studentized_range.cdf(range_quantile(confidence, count, df), count, df) == pytest.approx(
        confidence, abs=2e-6
    )


# ---------------------------------------------------------------- a layout


def test_the_pooled_variance_is_the_residual_mean_square() -> None:
    found = layout(A, B, C)
    values = np.array([A, B, C])
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    assert found.df == 4
    assert found.variance == pytest.approx((rest**2).sum() / 4)


def test_a_difference_has_a_sign_and_the_rounds_that_both_have() -> None:
    found = layout((0.0, 0.1, None, 0.2), (0.1, 0.3, 0.9, None))
    there, back = found.difference(0, 1), found.difference(1, 0)
    assert there is not None and back is not None
    assert there.mean == pytest.approx(0.15) and there.rounds == 2
    assert there.variance == pytest.approx(0.005)
    assert back == there._replace(mean=-there.mean)


def test_missing_rounds_cost_their_own_pairs_and_degrees_of_freedom() -> None:
    whole, less = layout(A, B, C), layout(A, B, (0.10, 0.10, None))
    assert (whole.df, less.df) == (4, 2)  # 2 (2 + 2 + 2) / 3 and 2 (2 + 1 + 1) / 3, less the fraction
    assert whole.difference(0, 1) == less.difference(0, 1)
    one = layout(A, B, (0.10, None, None))
    assert (one.count, one.df) == (2, 2)
    alone = layout(A, (None, None, None))
    assert (alone.count, alone.df, alone.difference(0, 1)) == (0, 0, None)


def test_shares_tell_whose_the_noise_is() -> None:
    """Shukla's variances of a, b, c follow from those of their differences: D_ab = a + b, and so on."""
    found = layout(A, B, C)
    d = {pair: variance_of(found, *pair) for pair in ((0, 1), (0, 2), (1, 2))}
    alone = {0: d[0, 1] + d[0, 2] - d[1, 2], 1: d[0, 1] + d[1, 2] - d[0, 2], 2: d[0, 2] + d[1, 2] - d[0, 1]}
    expected = {f"s{n}": max(0.0, value / 2 / found.variance) for n, value in alone.items()}
    assert found.shares == pytest.approx(expected)
    assert layout(A, B).shares == {}


# ---------------------------------------------------------------- a table


def test_two_rivals_alone_have_students_interval() -> None:
    # mean 0.03, s = 0.01, t(0.975, 2) = 4.302653: half 0.0248414 of the logarithm
    one = layout(A, B)
    found = estimate(Table([one]).estimate(one, 0, 1))
    assert found.n == 3
    assert found.mean == pytest.approx(expm1(0.03))
    assert found.low == pytest.approx(expm1(0.03 - 0.0248414), abs=1e-7)
    assert found.high == pytest.approx(expm1(0.03 + 0.0248414), abs=1e-7)


def test_of_three_rivals_the_wider_interval_counts() -> None:
    one = layout(A, B, C)
    table = Table([one])
    shares = one.shares
    for i, j in ((0, 1), (0, 2), (1, 2)):
        found = one.difference(i, j)
        assert found is not None and found.variance is not None
        noisier = max(1.0, (shares[f"s{i}"] + shares[f"s{j}"]) / 2)
        tukey = studentized_range.ppf(0.95, 3, 4) * sqrt(one.variance * noisier / 3)
        own = 4.302653 * sqrt(found.variance / 3)
        told = estimate(table.estimate(one, i, j))
        assert told.low is not None and found.mean - log(1 + told.low) == pytest.approx(max(own, tukey), rel=1e-4)
        assert told.df == (2 if own > tukey else 4)


def test_a_contest_of_few_takes_the_noise_of_the_table() -> None:
    """Two rivals with as good as no noise beside eight with much: their own 2 degrees of freedom do not tell."""
    quiet = layout((0.0, 0.0, 0.0), (0.01, 0.0101, 0.0102))
    loud = layout(*map(tuple, np.random.default_rng(1).normal(0, 0.03, (8, 3)).tolist()))
    assert is_distinguishable(estimate(Table([quiet]).estimate(quiet, 0, 1)))
    both = Table([quiet, loud])
    assert not is_distinguishable(estimate(both.estimate(quiet, 0, 1)))
    # Eight of their own suffice to themselves: only the family has grown.
    alone, beside = (half_widths(table, loud) for table in (Table([loud]), both))
    ratios = [after / before for before, after in zip(alone, beside, strict=True)]
    assert min(ratios) == 1.0 < max(ratios) < 1.3


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


@pytest.mark.parametrize(("rivals", "sizes", "rounds"), [(2, 1, 4), (3, 1, 6), (8, 5, 4)])
def test_the_smallest_difference_is_found_in_80_of_100_tables(rivals: int, sizes: int, rounds: int) -> None:
    """Of 4,000 tables with the noise of the one that names it; that for 70 or 90 of 100 is another."""
    dice = np.random.default_rng(9)
    rest = dice.normal(0, 0.015, (sizes, rounds, rivals))
    rest -= rest.mean(1, keepdims=True) + rest.mean(2, keepdims=True) - rest.mean((1, 2), keepdims=True)
    freedom = (rivals - 1) * (rounds - 1)
    rest *= 0.015 / np.sqrt((rest**2).sum((1, 2), keepdims=True) / freedom)
    layouts = [Layout([dict(enumerate(one)) for one in size.T], range(rivals)) for size in rest]
    smallest = Table(layouts).smallest(layouts[0], rounds)
    assert smallest is not None
    found = told_pair(drawn(dice, "equal", (4_000, sizes, rounds, rivals)), log(1 + smallest))
    assert found == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("rounds", [4, 6])
@pytest.mark.parametrize("noise", NOISES)
def test_equals_are_told_apart_in_at_most_5_of_100_tables(noise: str, rounds: int) -> None:
    """Of 8 strategies at 5 world sizes."""
    told = told_apart(drawn(np.random.default_rng(9), noise, (3_000, 5, rounds, 8)))
    assert told.any((1, 2)).mean() <= 0.05


@pytest.mark.parametrize(("rivals", "rounds"), [(2, 4), (2, 6), (8, 6)])
def test_5_percent_are_found_at_a_noise_of_a_third_of_it(rivals: int, rounds: int) -> None:
    """Of any two, at one of 5 world sizes, in the default's 6 rounds; of two alone also in 4."""
    assert told_pair(drawn(np.random.default_rng(9), "equal", (3_000, 5, rounds, rivals)), log(1.05)) >= 0.8


# ---------------------------------------------------------------- many at once, for tests.bench.comparisons


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("rivals", "sizes", "rounds"), [(8, 5, 4), (3, 5, 4), (2, 5, 6), (2, 1, 4), (5, 2, 3)])
def test_the_vectorised_contests_of_the_bench_are_these(noise: str, rivals: int, sizes: int, rounds: int) -> None:
    logs = drawn(np.random.default_rng(3), noise, (20, sizes, rounds, rivals))
    logs[:, 0, :, -1] += 0.05
    found = told_apart(logs)
    for table_logs, table_found in zip(logs, found, strict=True):
        layouts = [Layout([dict(enumerate(one)) for one in size.T], range(rivals)) for size in table_logs]
        table = Table(layouts)
        for size, one, told in zip(table_logs, layouts, table_found, strict=True):
            first = int(size.mean(0).argmin())
            expected = [
                other != first and is_distinguishable(estimate(table.estimate(one, first, other)))
                for other in range(rivals)
            ]
            assert expected == told.tolist()
