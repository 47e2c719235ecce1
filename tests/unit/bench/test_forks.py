"""When forked workers count as fast as fresh ones."""

from __future__ import annotations

import pytest

from scaling.analysis.statistics.intervals import Estimate
from tests.bench import forks


@pytest.mark.parametrize(
    ("mean", "half", "verdict"),
    [
        (1.000, 0.009, "alike"),
        (0.991, 0.009, "alike"),
        (1.009, 0.009, "alike"),
        (0.985, 0.009, "not alike"),
        (1.015, 0.009, "not alike"),
        (1.000, 0.020, "too wide to tell"),
        (1.000, None, "too wide to tell"),
    ],
)
def test_the_bar_is_one_percent_to_either_side(mean: float, half: float | None, verdict: str) -> None:
    low, high = (None, None) if half is None else (mean - half, mean + half)
    assert forks.verdict(Estimate(mean=mean, low=low, high=high, n=4)) == verdict
