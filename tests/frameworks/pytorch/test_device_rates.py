"""How the rates of CPUs are timed, on a scripted clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from scaling.frameworks.pytorch import device_rates
from scaling.frameworks.pytorch.device_rates import by_clock
from scaling.hosts import proc
from tests.support.inline_child import Clock

Script = Callable[[Sequence[tuple[float, float]], float], list[float]]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Times repeats that take (seconds, of which the thread waits) in turn, with a budget."""
    clock, waited_s = Clock(), 0.0
    monkeypatch.setattr(device_rates, "perf_counter", clock)
    monkeypatch.setattr(proc, "queued_s", lambda: waited_s)

    def call(script: Sequence[tuple[float, float]], budget_s: float) -> list[float]:
        repeats = iter(script)

        def work() -> None:
            nonlocal waited_s
            seconds, queued_s = next(repeats)
            clock.sleep(seconds)
            waited_s += queued_s

        return by_clock(work, budget_s)

    return call


def test_waiting_for_other_programs_does_not_count(timed: Script) -> None:
    assert timed([(1.0, 0.0), (3.0, 2.0), (2.5, 0.5), (1.0, 0.0)], 4.5) == pytest.approx([1.0, 1.0, 2.0, 1.0])


def test_repeats_end_when_their_budget_is_spent(timed: Script) -> None:
    assert len(timed([(1.0, 0.0)] * 9, 3.0)) == 3
    assert len(timed([(2.0, 1.0)] * 9, 3.0)) == 3  # on crowded cores it takes longer


def test_repeats_that_only_wait_end_in_time(timed: Script) -> None:
    assert len(timed([(3.0, 3.0)] * 9, 3.0)) == device_rates.CROWDED


def test_a_repeat_that_is_longer_than_the_budget_is_made_once(timed: Script) -> None:
    assert timed([(100.0, 0.0)], 0.1) == [100.0]
