"""When the warm-up is over and how many steps a window has: decisions by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.records.events import Window
from scaling.records.task import Run
from scaling.records.telemetry import Sample
from scaling.sweep.state import ChildState as RankState
from scaling.sweep.state import PointState
from scaling.sweep.warmup import CEILING_WINDOWS, Pace, Warm, decide, drift_per_s, pace_of, steps_per_window
from tests.support.points import POINT, TASK, changed

PACE = Pace(window_s=0.2)


def state(*warmup: tuple[int, float], others: float = 1.0) -> PointState:
    """Two ranks after warm-up windows of (steps, seconds); rank 1 takes `others` times as long."""
    ranks = []
    for factor in (1.0, others):
        windows = tuple(
            Window(index=0, measured=False, steps=n, samples=n, start_s=0.0, end_s=s * factor, end_unix_s=0.0)
            for n, s in warmup
        )
        ranks.append(RankState(task=TASK, warmup=windows))
    return PointState(
        point=POINT, ranks=tuple(ranks), expected=10, started_s=0.0, started_unix_s=0.0, phase="warming"
    )


def more(windows: int, steps: int) -> Run:
    return Run(windows=windows, steps=steps, measured=False)


SINGLE = [(1, 0.5), (1, 0.1)]


def test_first_two_single_steps() -> None:
    assert decide(state(), PACE) == more(1, 1)
    assert decide(state((1, 0.5)), PACE) == more(1, 1)


def test_then_windows_of_as_many_steps_as_the_slowest_rank_allows() -> None:
    assert decide(state(*SINGLE), PACE) == more(4, 2)
    assert decide(state((1, 0.5), (1, 0.01)), PACE) == more(4, 20)
    assert decide(state((1, 0.5), (1, 0.01), others=4.0), PACE) == more(4, 5)


def test_steady_windows_end_the_warm_up() -> None:
    assert decide(state(*SINGLE, *[(2, 0.2)] * 4), PACE) == Warm(steps=2)


def test_drifting_windows_go_on_until_they_settle() -> None:
    drifting = [(2, 0.3), (2, 0.28), (2, 0.22), (2, 0.2)]
    assert decide(state(*SINGLE, *drifting), PACE) == more(2, 2)
    assert decide(state(*SINGLE, *drifting, (2, 0.2), (2, 0.2)), PACE) == Warm(steps=2)


def test_at_the_ceiling_it_is_over_and_says_that_it_never_settled() -> None:
    drifting = [(2, 0.3 * 0.9**number) for number in range(CEILING_WINDOWS)]
    assert decide(state(*SINGLE, *drifting), PACE) == Warm(steps=2, settled=False)


def on_gpu(window_s: float) -> Pace:
    return pace_of(changed(POINT, device="cuda"), window_s, takes_turns=False)


@pytest.mark.parametrize(("window_s", "windows"), [(0.1, 30), (0.3, 10), (0.5, 6), (2.0, 4)])
def test_gpus_warm_up_for_three_seconds_with_any_window(window_s: float, windows: int) -> None:
    assert decide(state(*[(1, window_s)] * 2), on_gpu(window_s)) == more(windows, 1)


def test_windows_that_are_shorter_than_planned_do_not_shorten_the_warm_up() -> None:
    single, planned = [(1, 0.5), (1, 0.1)], [(3, 0.2)] * 10
    assert decide(state(*single, *planned), on_gpu(0.3)) == more(2, 3)
    assert decide(state(*single, *planned, *[(3, 0.2)] * 5), on_gpu(0.3)) == Warm(steps=3)


@pytest.mark.parametrize("window_s", [0.05, 0.3, 0.62, 1.0, 2.0])
def test_the_ceiling_leaves_room_above_the_floor(window_s: float) -> None:
    """Short windows that vary at the floor are judged again."""
    pace = on_gpu(window_s)
    single = [(1, window_s)] * 2
    floor = decide(state(*single), pace)
    assert isinstance(floor, Run)
    unsteady = [*single, *[(1, window_s)] * (floor.windows - 2), *[(1, 1.2 * window_s)] * 2]
    assert decide(state(*unsteady), pace) == more(2, 1)
    assert decide(state(*unsteady, *[(1, 1.2 * window_s)] * 2), pace) == Warm(steps=1)
    drifting = [(1, window_s * 1.05**number) for number in range(400)]
    assert decide(state(*single, *drifting), pace) == Warm(steps=1, settled=False)


def test_a_given_warm_up_has_its_seconds_and_a_ceiling_above_them() -> None:
    pace = pace_of(changed(POINT, device="cuda"), 0.5, takes_turns=False, warm_up_s=60.0)
    assert (pace.floor_s, pace.ceiling_s) == (60.0, 87.0)
    in_turns = pace_of(POINT, 0.5, takes_turns=True, warm_up_s=2.0)
    assert decide(state(*SINGLE), replace(in_turns, window_s=0.2)) == more(10, 2)


def readings(*changes: dict[str, Any]) -> PointState:
    """Two single steps and steady windows, each with a reading of the GPU."""
    steady: dict[str, Any] = {"sm_clock_mhz": 1980.0, "power_w": 600.0, "temperature_c": 60.0}
    made = state(*SINGLE, *[(2, 0.2)] * len(changes))
    (first, *_) = made.ranks
    warmup = [
        replace(window, gpus=(Sample(unix_s=0.0, **{**steady, **change}),))
        for window, change in zip(first.warmup[2:], changes, strict=True)
    ]
    return replace(made, ranks=(replace(first, warmup=(*first.warmup[:2], *warmup)), *made.ranks[1:]))


@pytest.mark.parametrize(
    ("name", "steady", "unsteady"),
    [
        ("sm_clock_mhz", (1980, 1965, 1980, 1975), (1980, 1970, 1940, 1920)),
        # Each run ends with a reading of an idle GPU.
        ("power_w", (600, 180, 610, 170), (400, 180, 580, 190)),
        ("temperature_c", (60, 60, 61, 61), (50, 52, 54, 55)),
    ],
)
def test_clock_power_and_temperature_must_be_steady(
    name: str, steady: Sequence[float], unsteady: Sequence[float]
) -> None:
    assert decide(readings(*({name: value} for value in steady)), PACE) == Warm(steps=2)
    assert decide(readings(*({name: value} for value in unsteady)), PACE) == more(2, 2)
    settled = (*({name: value} for value in unsteady), *({name: value} for value in steady))
    assert decide(readings(*settled), PACE) == Warm(steps=2)
    assert decide(readings(*({name: None} for _ in range(4))), PACE) == Warm(steps=2)


def test_the_slope_of_windows_that_drift() -> None:
    assert drift_per_s(state(*SINGLE, *[(1, 0.5)] * 8)) == pytest.approx(0.0, abs=1e-9)
    assert drift_per_s(state(*SINGLE, *[(1, 1 + 0.01 * number) for number in range(8)])) == pytest.approx(
        0.01, rel=0.1
    )
    assert drift_per_s(state(*SINGLE)) == 0.0


def test_where_points_take_turns_nothing_is_judged() -> None:
    short = Pace(window_s=0.2, floor_windows=1, judged=False)
    assert decide(state(*SINGLE), short) == more(1, 2)
    assert decide(state(*SINGLE, (2, 0.21)), short) == Warm(steps=2)


def test_a_single_step_that_misled_is_corrected() -> None:
    """The second step took ten times too long: windows came out too short, and are made longer."""
    assert decide(state((1, 2.0), (1, 1.0), *[(1, 0.02)] * 4), PACE) == more(4, 10)


@pytest.mark.parametrize(("step_s", "steps"), [(0.2, 1), (5.0, 1), (0.19, 2), (0.05, 4), (0.0, 100_000)])
def test_steps_per_window(step_s: float, steps: int) -> None:
    assert steps_per_window(step_s, 0.2) == steps
