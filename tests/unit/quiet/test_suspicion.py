"""Who else runs is looked up while a core is slower than it mostly is, or shared with others, and once others ran
on a rank's CPUs though nothing of the run was beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, count, repeat
from pathlib import Path

import pytest

from scaling.agent.watch import CpuMeter
from scaling.quiet import agent
from scaling.quiet.agent import OTHERS, Quiet
from scaling.sweep import turns
from tests.support.inline import Launch
from tests.support.turns import quiet_probes

CANARY_S = 0.006


@pytest.fixture
def suspected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(agent, "measure", lambda cpus: CANARY_S)
    monkeypatch.setattr(Quiet, "look", lambda one: found.append(one.task.point.label))
    return found


def measure(folder: Path, soak_s: float = 0.0) -> None:
    Launch(2).sweep(
        folder, interleave=True, kinds=["exchange", "solo"], rounds=1, windows=8, world_sizes=[1, 2], soak_s=soak_s
    )


def queueing(monkeypatch: pytest.MonkeyPatch, times_s: Iterator[float]) -> None:
    monkeypatch.setattr(agent, "queued_s", lambda: next(times_s))


def test_a_soak_on_cores_that_another_program_uses(
    tmp_path: Path, suspected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks, since these windows are in no figure."""
    monkeypatch.setattr(turns, "BUDGET", 0.0)
    queueing(monkeypatch, count(7.0, CANARY_S / 2))
    measure(tmp_path, soak_s=1.0)
    assert len(suspected) == 8 * (1 + 2 + 1)


def test_a_core_of_its_own(tmp_path: Path, suspected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    queueing(monkeypatch, count(7.0, 0.0))
    measure(tmp_path)
    assert suspected == []


def test_a_core_that_somebody_else_has_for_half_of_the_time_from_the_first_window_on(
    tmp_path: Path, suspected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queueing(monkeypatch, count(7.0, CANARY_S / 2))
    monkeypatch.setattr(turns, "BUDGET", 0.0)  # nothing is measured again
    measure(tmp_path)
    assert len(suspected) == 8 * (1 + 2 + 1)


def test_a_core_that_is_slower_than_usual_without_queueing(
    tmp_path: Path, suspected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside a load on its other hardware thread."""
    queueing(monkeypatch, count(7.0, 0.0))
    taken_s = chain(repeat(CANARY_S, 20), [2 * CANARY_S], repeat(CANARY_S))
    monkeypatch.setattr(agent, "measure", lambda cpus: next(taken_s))
    measure(tmp_path)
    assert len(suspected) == 1


def test_a_core_that_is_slow_in_most_tries_of_the_same_windows(
    tmp_path: Path, suspected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They tell nothing of what it mostly does: each slow one is looked into."""
    queueing(monkeypatch, count(7.0, 0.0))
    quiet_probes(monkeypatch, CANARY_S)
    monkeypatch.setattr(turns, "BUDGET", 1000.0)
    tries, slow = count(), set[int]()

    def taken_s(_: object) -> float:
        number = next(tries)
        if number < 16 or number % 8 == 0:
            return CANARY_S
        slow.add(number)
        return 2 * CANARY_S

    monkeypatch.setattr(agent, "measure", taken_s)
    measure(tmp_path)
    assert len(slow) > 16
    assert len(suspected) == len(slow)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody on all CPUs from the first window to the last, for whom none waits, as on the other hardware thread
    of a core: no canary is slower than others."""
    queueing(monkeypatch, count(7.0, 0.0))
    monkeypatch.setattr(CpuMeter, "end", lambda meter, steps: setattr(meter, "others", 2 * OTHERS))


@pytest.mark.usefixtures("others")
def test_others_beside_a_rank_alone_are_looked_for_in_all_windows_from_then_on(
    tmp_path: Path, suspected: list[str]
) -> None:
    measure(tmp_path)
    looked = Counter(label.split(" round")[0] for label in suspected)
    assert set(looked) == {"fake:plain solo N=1", "fake:a exchange N=1", "fake:a exchange N=2"}
    assert looked.pop("fake:plain solo N=1") == 7  # all but the first, which tells it
    assert all(count in (7, 8) for count in looked.values())  # of rank 0: rank 1 never runs alone


@pytest.mark.usefixtures("others")
def test_others_beside_ranks_that_exchange_may_be_the_runs_own(tmp_path: Path, suspected: list[str]) -> None:
    Launch(2).sweep(tmp_path, interleave=True, kinds=["exchange"], rounds=1, windows=8, world_sizes=[1, 2])
    assert suspected == []
