"""How much of a sweep is done, and how long the rest takes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.records.task import Finish
from scaling.sweep.forecast import Ahead, Work, ahead, part
from scaling.sweep.state import PointState, commanded, failing
from tests.support.scripted_points import CRASH, measuring, point, ready, starting, warming

NOTHING = Work(0, 10, measured=0, measured_s=0.0)
BEGUN = starting(point(2))


@pytest.mark.parametrize(("planned_s", "left_s"), [(3.0, 30.0), (60.0, 600.0), (0.0, None)])
def test_at_first_the_plan_s_estimate_holds(planned_s: float, left_s: float | None) -> None:
    assert ahead(NOTHING, planned_s=planned_s) == Ahead(0.0, left_s)


def test_measured_times_outweigh_the_estimate() -> None:
    """The estimate weighs 10 s or one point."""
    few, many = Work(5, 1000, measured=5, measured_s=20.0), Work(500, 1000, measured=500, measured_s=2000.0)
    assert ahead(few, planned_s=2.0).left_s == pytest.approx(995 * (20 + 10) / (5 + 5))
    assert ahead(many, planned_s=2.0).left_s == pytest.approx(500 * 4.0, rel=0.01)
    one = Work(1, 2, measured=1, measured_s=90.0)
    assert ahead(one, planned_s=60.0).left_s == pytest.approx(75.0)


def test_without_an_estimate_measured_times_tell() -> None:
    assert ahead(Work(0.5, 2, measured=0.5, measured_s=10.0), planned_s=0.0) == Ahead(0.25, 30.0)


def test_points_of_earlier_runs_count_and_took_no_time() -> None:
    found = ahead(Work(5, 10, measured=0, measured_s=0.0), planned_s=3.0)
    assert found == Ahead(0.5, 15.0)


def test_the_soak_is_work_too() -> None:
    work = Work(5, 10, measured=5, measured_s=15.0)
    assert ahead(work, planned_s=3.0, soak_s=30.0) == Ahead(0.25, 45.0)
    assert ahead(work, planned_s=3.0, soak_s=30.0, soaked_s=15.0) == Ahead(0.5, 30.0)
    assert ahead(work, planned_s=3.0, soak_s=30.0, soaked_s=45.0) == Ahead(0.8, 15.0)


def test_the_end() -> None:
    assert ahead(Work(10, 10, measured=10, measured_s=15.0), planned_s=3.0) == Ahead(1.0, 0.0)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (BEGUN, 0.0),
        (ready(BEGUN), 0.0),
        (warming(BEGUN), 1 / 12),
        (measuring(BEGUN, 0), 2 / 12),
        (measuring(BEGUN, 4), 6 / 12),
        (replace(measuring(BEGUN, 4), phase="waiting"), 6 / 12),
        (measuring(BEGUN, 10), 1.0),
        (replace(measuring(BEGUN, 4), phase="soaking"), 1.0),
        (commanded(measuring(BEGUN, 10), Finish()), 1.0),
        (failing(BEGUN, CRASH), 1.0),
    ],
)
def test_the_part_of_a_point_that_is_measured(state: PointState, expected: float) -> None:
    assert part(state) == pytest.approx(expected)
