"""Welch's test and Holm's procedure against values that SciPy and arithmetic give."""

from __future__ import annotations

from math import log, sqrt
from random import Random

import pytest
from scipy import stats as reference  # type: ignore[import-untyped]

from scaling.analysis.statistics import intervals, launches
from scaling.analysis.statistics.launches import Difference

ONE, OTHER = [1.0, 1.3, 0.9, 1.2], [1.5, 1.9, 1.4]


def test_the_test_is_scipys() -> None:
    found = launches.welch(launches.of_values(ONE), launches.of_values(OTHER))
    expected = reference.ttest_ind(OTHER, ONE, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.mean - (found.half(0.05) or 0) == pytest.approx(interval.low)
    assert found.df == pytest.approx(expected.df)


def test_an_estimate_gives_back_the_variance_that_its_interval_was_formed_of() -> None:
    values = [0.9, 0.93, 0.91, 0.88]
    side = launches.of_estimate(intervals.geometric(values))
    logs = [log(value) for value in values]
    assert side.variance == pytest.approx(intervals.variance(logs) / 4)
    assert (side.df, side.n) == (3, 4)


def test_an_estimate_with_pooled_degrees_of_freedom_keeps_them() -> None:
    side = launches.of_estimate(intervals.student(0.5, 0.01**2, 4, 15), logarithm=False)
    assert side.variance == pytest.approx(0.01**2) and side.df == 15


def test_one_unit_tells_nothing() -> None:
    found = launches.welch(launches.of_values([1.0]), launches.of_values(ONE))
    assert (found.se, found.p, found.half(0.05)) == (None, 1.0, None)


@pytest.mark.parametrize(("mean", "p"), [(0.0, 1.0), (0.1, 0.0)])
def test_sides_without_any_noise(mean: float, p: float) -> None:
    found = launches.welch(launches.of_values([1.0, 1.0]), launches.of_values([1.0 + mean, 1.0 + mean]))
    assert found.p == p and found.half(0.05) == 0.0


def of_p(p: float) -> Difference:
    return Difference(float(-reference.norm.ppf(p / 2)), 1.0, 1e9, 5)


@pytest.mark.parametrize(
    ("ps", "levels"),
    [
        ([0.01, 0.04, 0.03], [0.05 / 3, 0.05 / 2, 0.05 / 2]),  # 0.03 fails at 0.025: nothing after it is told
        ([0.01, 0.02, 0.04], [0.05 / 3, 0.05 / 2, 0.05]),
        ([0.02, 0.5], [0.05 / 2, 0.05]),
        ([0.03, 0.04], [0.05 / 2, 0.05 / 2]),
        ([], []),
    ],
)
def test_holm(ps: list[float], levels: list[float]) -> None:
    assert launches.holm([of_p(p) for p in ps]) == pytest.approx(levels)


def test_an_interval_at_its_level_leaves_zero_where_holm_rejects() -> None:
    dice = Random(1)
    for _ in range(200):
        ps = [dice.random() ** 4 for _ in range(6)]
        found = [of_p(p) for p in ps]
        rejected = _holm_by_the_book(ps)
        for one, level, at in zip(found, launches.holm(found), range(6), strict=True):
            assert (abs(one.mean) > (one.half(level) or 0)) == (at in rejected)


def _holm_by_the_book(ps: list[float]) -> set[int]:
    rejected: set[int] = set()
    for place, at in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        if ps[at] >= 0.05 / (len(ps) - place):
            break
        rejected.add(at)
    return rejected


def test_the_units_that_are_needed_narrow_the_interval_to_what_is_wanted() -> None:
    found = Difference(0.0, 0.02, 8.0, 5)
    needed = launches.units_needed(found, 0.05, 0.02)
    assert needed is not None
    for units, narrow in ((needed, True), (needed - 1, False)):
        half = intervals.quantile(8.0 * (units - 1) / 4) * 0.02 * sqrt(5 / units)
        assert (half < 0.02) is narrow


@pytest.mark.parametrize(("se", "n", "half"), [(0.5, 5, 0.001), (None, 1, 0.02), (0.01, 5, 0.0)])
def test_what_no_number_of_units_gives(se: float | None, n: int, half: float) -> None:
    assert launches.units_needed(Difference(0.0, se, 8.0, n), 0.05, half) is None


def test_quiet_cells_share_the_noise_of_all_and_noisy_ones_keep_their_own() -> None:
    quiet, noisy = Difference(0.1, 1.0, 4.0, 3), Difference(0.1, 3.0, 4.0, 3)
    assert launches.pooled([quiet, noisy]) == [Difference(0.1, sqrt(5.0), 8.0, 3), noisy]


def test_a_cell_alone_and_one_without_an_error_stay_as_they_are() -> None:
    one, untold = Difference(0.1, 1.0, 4.0, 3), Difference(0.2, None, 0.0, 1)
    assert launches.pooled([one]) == [one]
    assert launches.pooled([one, untold]) == [one, untold]
    assert launches.pooled([one, untold, one])[1] == untold
