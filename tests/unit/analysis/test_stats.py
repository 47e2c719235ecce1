"""Known answers, with Student's quantiles from printed tables."""

from __future__ import annotations

import random
from math import sqrt

import pytest

from scaling.analysis.stats import Estimate, interval, is_distinguishable, paired, steady


def test_interval_of_three_rounds() -> None:
    # mean 2, s = 1, t(0.975, 2) = 4.30265, half = 4.30265 / sqrt(3) = 2.48414
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.n) == (2.0, 3)
    assert found.half_width == pytest.approx(2.484138, abs=1e-6)
    assert found.low == pytest.approx(-0.484138, abs=1e-6)
    assert found.high == pytest.approx(4.484138, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "confidence", "quantile"),
    [(2, 0.95, 12.706205), (3, 0.99, 9.924843), (10, 0.95, 2.262157), (31, 0.99, 2.749996)],
)
def test_interval_uses_student_with_n_minus_1(n: int, confidence: float, quantile: float) -> None:
    values = [float(i % 2) for i in range(n)]
    mean = sum(values) / n
    s = sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    assert interval(values, confidence).half_width == pytest.approx(quantile * s / sqrt(n), rel=1e-6)


def test_one_round_has_no_interval() -> None:
    found = interval([5.0])
    assert found == Estimate(mean=5.0, low=None, high=None, n=1)
    assert found.half_width is None


def test_no_round_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        interval([])


def test_equal_rounds_have_an_interval_of_width_zero() -> None:
    assert interval([0.5, 0.5, 0.5]).half_width == 0.0


def test_paired_removes_the_drift_of_rounds() -> None:
    # b is 10 % above a in every round, whatever the round's level.
    found = paired([1.0, 2.0, 4.0], [1.1, 2.2, 4.4])
    assert found.mean == pytest.approx(0.1)
    assert found.half_width == pytest.approx(0.0, abs=1e-12)
    assert is_distinguishable(found)


def test_paired_is_at_99_percent() -> None:
    # differences 0.01, 0.02, 0.03: mean 0.02, s = 0.01, half = 9.924843 * 0.01 / sqrt(3) = 0.0573011
    found = paired([1.0, 1.0, 1.0], [1.01, 1.02, 1.03])
    assert found.mean == pytest.approx(0.02)
    assert found.half_width == pytest.approx(0.0573011, abs=1e-7)
    assert not is_distinguishable(found)
    # At 95 % it would still hold zero: 4.302653 * 0.01 / sqrt(3) = 0.0248
    assert paired([1.0, 1.0, 1.0], [1.01, 1.02, 1.03], 0.95).half_width == pytest.approx(0.0248414, abs=1e-7)


def test_paired_wants_pairs() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.001, 0.2, True), (-0.2, -0.001, True), (-0.1, 0.1, False), (0.0, 0.1, False), (None, None, False)],
)
def test_distinguishable_means_the_interval_leaves_zero(
    low: float | None, high: float | None, expected: bool
) -> None:
    assert is_distinguishable(Estimate(mean=0.1, low=low, high=high, n=3)) is expected


def test_equals_are_rarely_told_apart() -> None:
    """At 99 % about 1 of 100 comparisons of equals errs; 5 would be the doing of a 95 % interval."""
    rng = random.Random(7)
    errors = 0
    for _ in range(1000):
        a, b = ([rng.gauss(100, 1) for _ in range(5)] for _ in range(2))
        errors += is_distinguishable(paired(a, b))
    assert 2 <= errors <= 25


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((1.0, 1.0, 1.0, 1.0), True),
        ((9.0, 5.0, 1.0, 1.0, 1.0, 1.0), True),
        ((1.0, 1.02, 0.99, 1.01), True),
        ((1.3, 1.2, 1.1, 1.0), False),
        ((1.0, 1.0, 1.06, 1.06), False),
        ((1.0, 1.0, 0.94, 0.94), False),
        ((1.0, 1.0, 1.0), False),
        ((), False),
    ],
)
def test_steady_means_no_drift_is_left(seconds: tuple[float, ...], expected: bool) -> None:
    assert steady(seconds) is expected


def test_steady_tolerance() -> None:
    assert steady((1.0, 1.0, 1.15, 1.15), tolerance=0.2)
