"""Intervals, Welch and small statistics, against simulations and known answers."""

from __future__ import annotations

from collections.abc import Collection
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats as reference  # type: ignore[import-untyped]

from scaling.analysis.statistics import intervals
from scaling.analysis.statistics.intervals import (
    Difference,
    Estimate,
    additive,
    interval,
    is_distinguishable,
    steady,
    trimmed,
)
from scaling.records.events import Finished, Window
from scaling.records.point import Point
from scaling.records.run import PointRecord, RankRecord
from tests.bench import simulated_intervals as simulated
from tests.bench.simulated_intervals import ALONE, settled
from tests.support.scripted_records import UNIX_S, by_size, point

# The intervals of simulated runs: that the simulation is the analysis, and how often the truth is inside.

KINDS: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("each", 2, (simulated.SEAT_0, simulated.SEAT_1)),
    ("exchange", 1, (simulated.ONE,)),
    ("exchange", 2, (simulated.TWO, simulated.TWO)),
    ("together", 2, (simulated.BESIDE_0, simulated.BESIDE_1)),
)


def records(times: Any, *, alone: Collection[int] = ()) -> list[PointRecord]:
    """Of one run; `times` are rounds x blocks x columns. Points took turns, but were measured `alone` in these
    rounds."""
    return [
        _record(_point(kind, size, number), times[number], of, epoch=None if number in alone else number)
        for number in range(len(times))
        for kind, size, of in KINDS
    ]


def _point(kind: str, size: int, number: int) -> Point:
    return point(kind, size, number, strategy="fake:a" if kind == "exchange" else "fake:plain")


def _record(of: Point, times: Any, columns: tuple[int, ...], *, epoch: int | None) -> PointRecord:
    ranks = tuple(
        RankRecord(
            rank=rank, launch_rank=rank, host="node1", outcome=Finished(), cpus=(rank,),
            windows=tuple(_window(index, float(np.exp(block[column]))) for index, block in enumerate(times)),
        )
        for rank, column in enumerate(columns)
    )  # fmt: skip
    return PointRecord(
        point=of, outcome=Finished(), ranks=ranks, started_unix_s=UNIX_S, wall_s=1, startup_s=1, measured_s=1,
        epoch=epoch,
    )  # fmt: skip


def _window(index: int, step_s: float) -> Window:
    start_s = 10.0 * index
    return Window(
        index=index, measured=True, steps=1, samples=32, start_s=start_s, end_s=start_s + step_s,
        end_unix_s=UNIX_S + start_s + step_s,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["iid 3 %", "real", "all"])
@pytest.mark.parametrize("rounds", [2, 5])
@pytest.mark.parametrize("design", [simulated.SIDE_BY_SIDE, ALONE], ids=["side by side", "alone"])
def test_the_simulation_is_the_analysis(name: str, rounds: int, design: simulated.Design) -> None:
    dice = np.random.default_rng(5)
    times = design.times(simulated.devices(4, 0.05, dice), rounds, simulated.NOISES[name], dice)
    _is_the_analysis(times, design)


def test_the_simulation_is_the_analysis_where_first_windows_are_left_out() -> None:
    dice = np.random.default_rng(5)
    times = ALONE.times(simulated.devices(4, 0.05, dice), 4, simulated.Noise(window=0.01), dice)
    for column in (simulated.SEAT_0, simulated.SEAT_1, simulated.TWO, simulated.BESIDE_1):
        times[:, 1, 0, column] += 1.0
    assert not settled(times[..., simulated.TWO])[:, 1, 0].any()
    _is_the_analysis(times, ALONE)


def _is_the_analysis(times: Any, design: simulated.Design) -> None:
    found = design.of_run(times)
    for run, of_run in enumerate(times):
        rows = by_size(records(of_run, alone=range(len(times[0]) if design is ALONE else 0)))
        for size in (1, 2):
            efficiency, expected = rows[size].efficiency, found[size]
            assert efficiency is not None and efficiency.low is not None
            assert log(efficiency.mean) == pytest.approx(float(expected.mean[run]), abs=1e-9)
            assert log(efficiency.mean / efficiency.low) == pytest.approx(float(expected.half[run]), abs=1e-9)


@pytest.mark.parametrize("name", ["iid 3 %", "AR 0.8", "drift 5 %", "real", "all"])
@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_the_truth_is_inside_as_often_as_is_said(name: str, spread: float) -> None:
    """1,500 runs: a standard error of 0.6 points about 95 %."""
    found = simulated.measured(simulated.NOISES[name], spread, 6, runs=1500, seed=11)
    assert 0.93 <= found.coverage <= 0.98


@pytest.mark.parametrize("name", ["AR 0.5", "AR 0.8", "AR 0.95", "real"])
@pytest.mark.parametrize("rounds", [4, 10])
def test_the_truth_is_inside_as_often_where_points_are_measured_alone(name: str, rounds: int) -> None:
    """4,000 runs: a standard error of 0.4 points."""
    found = simulated.measured(simulated.NOISES[name], 0.02, rounds, runs=4000, seed=11, design=ALONE)
    assert 0.93 <= found.coverage <= 0.975


@pytest.mark.parametrize("name", ["2 % per start", "real"])
def test_the_truth_is_inside_also_where_rounds_are_added_until_intervals_are_narrow(name: str) -> None:
    found = simulated.measured_until(simulated.NOISES[name], 1.5, 4, runs=1500, seed=11)
    assert 0.92 <= found.coverage <= 0.98 and found.half_width <= 1.5


def test_a_row_quieter_or_noisier_than_many_others_has_its_own_interval() -> None:
    """Standard deviations of 1 to 30 % over rounds, 4,000 runs: a standard error of 0.4 points about 95 %."""
    for sd in (0.01, 0.03, 0.3):
        by_round = np.random.default_rng(11).normal(0, sd, (4000, 6))
        found = simulated.contrast(by_round, np.zeros((4000, 6)))
        assert 0.93 <= np.mean(np.abs(found.mean) <= found.half) <= 0.97


# ---------------------------------------------------------------- by hand


def test_trimmed_mean_and_its_variance() -> None:
    # of six, one at each end is left out; winsorized: 2 2 3 4 5 5, variance 1.9, times 6 / 4^2
    values = [100.0, 2.0, 3.0, 4.0, 5.0, 0.0]
    assert trimmed(values) == pytest.approx((3.5, 1.9 * 6 / 16, 3, 6))
    assert trimmed([1.0]) == (1.0, 0.0, 0, 1)


def test_a_layout_with_holes_is_fitted_by_least_squares() -> None:
    # additive but for nothing: a = 1, b = 2, rounds 0, 10, 20; two cells are missing
    layout = {"a": {0: 1.0, 1: 11.0, 2: 21.0}, "b": {0: 2.0}, "c": {1: 13.0, 2: 23.0}}
    found = additive(layout)
    assert [found.columns[name] for name in "abc"] == pytest.approx([-1.0, 0.0, 1.0])
    assert [found.rows[number] for number in range(3)] == pytest.approx([2.0, 12.0, 22.0])


def test_no_interval_is_narrower_than_windows_imply() -> None:
    found = interval([0.0, 0.0], floor=0.02)
    # t(0.975, 1) = 12.706205 times the root of half of it
    assert found.half_width == pytest.approx(12.706205 * 0.1, rel=1e-6)


def test_an_interval_of_a_ratio_reaches_farther_up_than_down() -> None:
    found = interval([log(1.0), log(4.0)]).exp()
    assert found.mean == pytest.approx(2.0)
    assert found.low is not None and found.high is not None
    assert found.high / found.mean == pytest.approx(found.mean / found.low)
    assert found.mean == pytest.approx(exp((log(1.0) + log(4.0)) / 2))


# Known answers, with Student's quantiles from printed tables.


@pytest.mark.parametrize(
    ("n", "confidence", "quantile"),
    [(2, 0.95, 12.706205), (3, 0.99, 9.924843), (10, 0.95, 2.262157), (31, 0.99, 2.749996)],
)
def test_interval_uses_student_with_n_minus_1(n: int, confidence: float, quantile: float) -> None:
    values = [float(i % 2) for i in range(n)]
    mean = sum(values) / n
    s = sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    assert interval(values, confidence).half_width == pytest.approx(quantile * s / sqrt(n), rel=1e-6)


def test_one_round_has_no_interval_and_no_round_is_refused() -> None:
    assert interval([5.0]) == Estimate(mean=5.0, low=None, high=None, n=1)
    with pytest.raises(ValueError, match="at least one round"):
        interval([])


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


# Welch's test and Holm's procedure against values that SciPy and arithmetic give.

ONE, OTHER = [1.0, 1.3, 0.9, 1.2], [1.5, 1.9, 1.4]


def test_the_test_is_scipys() -> None:
    found = intervals.welch(intervals.of_values(ONE), intervals.of_values(OTHER))
    expected = reference.ttest_ind(OTHER, ONE, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert found.mean - (found.half(0.05) or 0) == pytest.approx(interval.low)
    assert found.df == pytest.approx(expected.df)


def test_an_estimate_gives_back_the_variance_that_its_interval_was_formed_of() -> None:
    values = [0.9, 0.93, 0.91, 0.88]
    side = intervals.of_estimate(intervals.geometric(values))
    logs = [log(value) for value in values]
    assert side.variance == pytest.approx(intervals.variance(logs) / 4)
    assert (side.df, side.n) == (3, 4)


def test_one_unit_tells_nothing() -> None:
    found = intervals.welch(intervals.of_values([1.0]), intervals.of_values(ONE))
    assert (found.se, found.p, found.half(0.05)) == (None, 1.0, None)


@pytest.mark.parametrize(("mean", "p"), [(0.0, 1.0), (0.1, 0.0)])
def test_sides_without_any_noise(mean: float, p: float) -> None:
    found = intervals.welch(intervals.of_values([1.0, 1.0]), intervals.of_values([1.0 + mean, 1.0 + mean]))
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
    assert intervals.holm([of_p(p) for p in ps]) == pytest.approx(levels)


def test_the_units_that_are_needed_narrow_the_interval_to_what_is_wanted() -> None:
    found = Difference(0.0, 0.02, 8.0, 5)
    needed = intervals.units_needed(found, 0.05, 0.02)
    assert needed is not None
    for units, narrow in ((needed, True), (needed - 1, False)):
        half = intervals.quantile(8.0 * (units - 1) / 4) * 0.02 * sqrt(5 / units)
        assert (half < 0.02) is narrow


@pytest.mark.parametrize(("se", "n", "half"), [(0.5, 5, 0.001), (None, 1, 0.02), (0.01, 5, 0.0)])
def test_what_no_number_of_units_gives(se: float | None, n: int, half: float) -> None:
    assert intervals.units_needed(Difference(0.0, se, 8.0, n), 0.05, half) is None


def test_quiet_cells_share_the_noise_of_all_and_noisy_ones_keep_their_own() -> None:
    quiet, noisy = Difference(0.1, 1.0, 4.0, 3), Difference(0.1, 3.0, 4.0, 3)
    assert intervals.pooled([quiet, noisy]) == [Difference(0.1, sqrt(5.0), 8.0, 3), noisy]


def test_a_cell_alone_and_one_without_an_error_stay_as_they_are() -> None:
    one, untold = Difference(0.1, 1.0, 4.0, 3), Difference(0.2, None, 0.0, 1)
    assert intervals.pooled([one]) == [one]
    assert intervals.pooled([one, untold]) == [one, untold]
    assert intervals.pooled([one, untold, one])[1] == untold
