"""Known answers, with Student's quantiles from printed tables."""

from __future__ import annotations

from math import sqrt

import pytest

from scaling.analysis.statistics.intervals import Estimate, interval, is_distinguishable, steady


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


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.001, 0.2, True), (-0.2, -0.001, True), (-0.1, 0.1, False), (0.0, 0.1, False), (None, None, False)],
)
def test_distinguishable_means_the_interval_leaves_zero(
    low: float | None, high: float | None, expected: bool
) -> None:
    assert is_distinguishable(Estimate(mean=0.1, low=low, high=high, n=3)) is expected


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
