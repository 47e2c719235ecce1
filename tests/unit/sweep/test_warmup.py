"""When the warm-up is over and how many steps a window has: decisions by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.records.events import Window
from scaling.records.point import Kind
from scaling.records.task import Finish, Run
from scaling.sweep.state import PointState, RankState
from scaling.sweep.warmup import CEILING_WINDOWS, Decision, Pace, decide, steps_per_window
from tests.support.points import POINT, TASK

PACE = Pace(windows=10, window_s=0.2)


def state(*warmup: tuple[int, float], kind: Kind = "exchange", others: float = 1.0) -> PointState:
    """Two ranks after warm-up windows of (steps, seconds); rank 1 takes `others` times as long."""
    ranks = []
    for factor in (1.0, others):
        windows = tuple(
            Window(index=0, measured=False, steps=n, samples=n, start_s=0.0, end_s=s * factor, end_unix_s=0.0)
            for n, s in warmup
        )
        ranks.append(RankState(task=TASK, warmup=windows))
    point = replace(POINT, kind=kind)
    return PointState(
        point=point, ranks=tuple(ranks), expected=10, started_s=0.0, started_unix_s=0.0, phase="warming"
    )


def warm(windows: int, steps: int) -> Decision:
    return Decision(command=Run(windows=windows, steps=steps, measured=False))


SINGLE = [(1, 0.5), (1, 0.1)]


def test_first_two_single_steps() -> None:
    assert decide(state(), PACE) == warm(1, 1)
    assert decide(state((1, 0.5)), PACE) == warm(1, 1)


def test_then_windows_of_as_many_steps_as_the_slowest_rank_allows() -> None:
    assert decide(state(*SINGLE), PACE) == warm(4, 2)
    assert decide(state((1, 0.5), (1, 0.01)), PACE) == warm(4, 20)
    assert decide(state((1, 0.5), (1, 0.01), others=4.0), PACE) == warm(4, 5)


def test_steady_windows_end_the_warm_up() -> None:
    found = decide(state(*SINGLE, *[(2, 0.2)] * 4), PACE)
    assert found == Decision(command=Run(windows=10, steps=2, measured=True))
    together = decide(state(*SINGLE, *[(2, 0.2)] * 4, kind="together"), PACE)
    assert together == Decision(command=Run(windows=10, steps=2, measured=True, linger=True))


def test_drifting_windows_go_on_until_they_settle() -> None:
    drifting = [(2, 0.3), (2, 0.28), (2, 0.22), (2, 0.2)]
    assert decide(state(*SINGLE, *drifting), PACE) == warm(2, 2)
    settled = decide(state(*SINGLE, *drifting, (2, 0.2), (2, 0.2)), PACE)
    assert settled == Decision(command=Run(windows=10, steps=2, measured=True))


def test_at_the_ceiling_it_measures_and_says_that_it_never_settled() -> None:
    drifting = [(2, 0.3 * 0.9**number) for number in range(CEILING_WINDOWS)]
    found = decide(state(*SINGLE, *drifting), PACE)
    assert not found.settled
    assert isinstance(found.command, Run)
    assert found.command.measured


def test_a_single_step_that_misled_is_corrected() -> None:
    """The second step took ten times too long: windows came out too short, and are made longer."""
    assert decide(state((1, 2.0), (1, 1.0), *[(1, 0.02)] * 4), PACE) == warm(4, 10)


def test_after_the_measured_windows_comes_the_end() -> None:
    measuring = replace(state(*SINGLE), phase="measuring")
    assert decide(measuring, PACE) == Decision(command=Finish())


@pytest.mark.parametrize(("step_s", "steps"), [(0.2, 1), (5.0, 1), (0.19, 2), (0.05, 4), (0.0, 100_000)])
def test_steps_per_window(step_s: float, steps: int) -> None:
    assert steps_per_window(step_s, 0.2) == steps
