"""Windows that something else has disturbed are measured again, on record and within a budget."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest

from scaling.hosts import canary
from scaling.plan.plan import Plan
from scaling.records.events import Finished
from scaling.records.host import Gpu
from scaling.sweep import epoch
from scaling.sweep import sweep as sweep_module
from tests.support.inline import Launch, Run, host
from tests.support.turns import BLOCKS, STEADY_S, indices, measured, scripted_canaries, sweep


@pytest.fixture(autouse=True)
def canaries(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return scripted_canaries(monkeypatch)


def slow(values: list[float], *, after: int, times: Iterable[float]) -> None:
    """Script the canaries: so many steady ones, then these."""
    values.extend([*repeat(STEADY_S, after), *times])


def disturbed(run: Run) -> list[tuple[str, int, float | None]]:
    """The windows on record that were measured again: cell, index, canary."""
    return [
        (record.point.label, window.index, window.canary_s)
        for record in run.records
        for rank in record.ranks
        for window in rank.disturbed
    ]


# One cell alone: its canaries come one per block.
ONE_CELL: dict[str, Any] = {"kinds": ["exchange", "each"], "windows": 12}
# In a block: exchanges of both world sizes, two seats one by one.
TURNS = 4


def test_a_disturbed_window_is_measured_again_on_record(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch, "PATIENCE_S", 0.1)
    slow(canaries, after=40, times=[2 * STEADY_S])
    launch = Launch(2)
    found = sweep(tmp_path, launch, **ONE_CELL)
    again = disturbed(found)
    assert 1 <= len(again) <= 2  # all ranks of the window, or the seat alone
    assert 2 * STEADY_S in {seconds for _, _, seconds in again}
    assert len({(label, index) for label, index, _ in again}) == 1
    for record in found.records:
        assert indices(record) == [list(range(12))] * len(record.ranks)
        assert all(window.canary_s == STEADY_S for rank in record.ranks for window in rank.windows)


def test_a_disturbed_window_comes_again_when_the_rest_of_its_block_is_done(
    tmp_path: Path, canaries: list[float]
) -> None:
    """It may be over by then."""
    slow(canaries, after=40, times=[2 * STEADY_S])  # the first of the ninth block
    launch = Launch(2)
    ((label, index),) = {(label, index) for label, index, _ in disturbed(sweep(tmp_path, launch, **ONE_CELL))}
    turns = [told.task.point.label for told, run in measured(launch) if run.first == index]
    assert turns[0] == turns[-1] == label
    assert len(set(turns)) == 3


def test_ranks_that_share_a_core_disturb_only_each_other(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they queue there tells of nobody else; what one queues that runs by itself does."""
    monkeypatch.setattr(canary, "queued_s", count(7.0, STEADY_S / 2).__next__)
    found = sweep(tmp_path, Launch(2, [host(cores=1)] * 2), **ONE_CELL)
    crowded = {record.point.label for record in found.records if record.oversubscribed}
    assert len(crowded) == 1
    again = {label for label, _, _ in disturbed(found)}
    assert again and again.isdisjoint(crowded)


def test_the_first_canaries_of_a_core_are_judged_by_none(tmp_path: Path, canaries: list[float]) -> None:
    canaries.extend([9.0, STEADY_S] * canary.LEAST)
    assert disturbed(sweep(tmp_path, windows=BLOCKS)) == []


# Of an epoch: so long were all its points planned to take, of which a part is for windows that are disturbed.
PLANNED_S = 10.0


def repeated(run: Run, round_number: int = 0) -> int:
    """How many turns of a round were measured again."""
    return len(
        {
            (record.point.cell, window.start_s)
            for record in run.records
            if record.point.round == round_number
            for window in record.ranks[-1].disturbed or record.ranks[0].disturbed
        }
    )


def test_what_is_disturbed_for_good_is_measured_within_the_budget(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each canary slower than the one before, so that all are off: each epoch spends its budget, and all ends."""
    monkeypatch.setattr(Plan, "seconds", lambda plan, group: PLANNED_S)
    canaries.extend(STEADY_S * 1.1**number for number in range(4000))
    found = sweep(tmp_path, rounds=2, **ONE_CELL)
    for number in range(2):
        # The turns of a block are patient together, and then take their windows with the agents' turns.
        waits = sweep_module.BUDGET * PLANNED_S / epoch.PATIENCE_S + 1
        assert waits / 2 <= repeated(found, number) <= TURNS * waits
    for record in found.records:
        assert isinstance(record.outcome, Finished)
        assert indices(record) == [list(range(12))] * len(record.ranks)


def test_what_a_quiet_epoch_leaves_of_the_budget_a_later_one_may_spend(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(first_s: float) -> int:
        """Turns measured again in the second epoch, which is disturbed for good; the first was planned so long."""
        monkeypatch.setattr(Plan, "seconds", lambda _, group: first_s if group.points[0].round == 0 else PLANNED_S)
        canaries.clear()
        ever_slower = (STEADY_S * 1.1**number for number in range(1, 4000))
        slow(canaries, after=12 * 5, times=ever_slower)  # in a round, where an exchange has one of each rank
        found = sweep(tmp_path / str(first_s), rounds=2, **ONE_CELL)
        assert repeated(found, 0) == 0
        return repeated(found, 1)

    assert again(PLANNED_S) > 1.5 * again(0.0)


def test_without_a_budget_nothing_is_measured_again(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "BUDGET", 0.0)
    canaries.extend(STEADY_S * 1.1**number for number in range(4000))
    assert disturbed(sweep(tmp_path, **ONE_CELL)) == []


# Points by themselves, the windows of each in one go: ranks of a round have one canary each.
ALONE: dict[str, Any] = {
    "interleave": False, "kinds": ["exchange", "together"], "world_sizes": [2], "rounds": 6, "windows": BLOCKS,
    "window_s": 0.02,
}  # fmt: skip
CANARIES = 2 * 2 * 6


def test_all_windows_of_a_point_by_itself_are_measured_again(tmp_path: Path, canaries: list[float]) -> None:
    slow(canaries, after=CANARIES - 1, times=[2 * STEADY_S])
    found = Launch(2).sweep(tmp_path, **ALONE)
    again = disturbed(found)
    assert len({label for label, _, _ in again}) == 1
    assert [index for _, index, _ in again] == 2 * list(range(BLOCKS))
    assert [seconds for _, index, seconds in again if index == 0] == [STEADY_S, 2 * STEADY_S]
    for record in found.records:
        assert record.epoch is None
        assert indices(record) == [list(range(BLOCKS))] * 2
        assert {tuple(one.canary_s for one in rank.windows) for rank in record.ranks} == {(STEADY_S, None, None)}
        assert {rank.uncounted_steps(None) for rank in record.ranks} == {2 if record.ranks[0].disturbed else 1}


def test_points_by_themselves_keep_to_the_budget_of_all_of_them(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each canary slower than the one before: what one spends beyond its part, the next ones lack."""
    monkeypatch.setattr(Plan, "seconds", lambda plan, group: 0.4)
    canaries.extend(STEADY_S * 1.1**number for number in range(4000))
    found = Launch(2).sweep(tmp_path, **ALONE)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert all(indices(record) == [list(range(BLOCKS))] * 2 for record in found.records)
    runs = sum(len(record.ranks[0].disturbed) for record in found.records) / BLOCKS
    assert 1 <= runs <= len(found.records) * sweep_module.BUDGET * 0.4 / epoch.PATIENCE_S + 1


def test_no_point_by_itself_runs_into_its_limit_for_being_measured_again(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "BUDGET", 1000.0)
    canaries.extend(STEADY_S * 1.5**number for number in range(1500))
    found = Launch(2).sweep(tmp_path, **{**ALONE, "rounds": 3, "point_timeout_s": 20.0})
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert len(found.records[-1].ranks[0].disturbed) > BLOCKS


def test_on_gpus_no_canary_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "measure", lambda cpus: pytest.fail("tried"))
    gpus = tuple(Gpu(index=each, name="GPU", uuid=f"GPU-{each}", memory_bytes=1 << 36) for each in range(2))
    found = Launch(2, [host(cores=2, gpus=gpus)] * 2).sweep(tmp_path, device="cuda", **{**ALONE, "rounds": 1})
    assert all(window.canary_s is None for r in found.records for rank in r.ranks for window in rank.windows)
