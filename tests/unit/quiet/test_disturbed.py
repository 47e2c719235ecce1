"""Windows that something else has disturbed are measured again, on record, once it is gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from io import StringIO
from itertools import count
from pathlib import Path

import pytest

from scaling.plan.plan import Plan
from scaling.quiet import agent
from scaling.quiet.canary import LEAST_SEEN
from scaling.sweep import turns as quiet
from scaling.sweep.state import Phase, PointState
from scaling.sweep.view.plain import NoView
from tests.support.inline import Launch, Run, host
from tests.support.turns import BLOCKS, ONE_CELL, STEADY_S, disturbed, indices, measured, slow, sweep

pytestmark = pytest.mark.usefixtures("canaries")


def before(run: Run, label: str, index: int) -> set[tuple[str, int]]:
    """The turns that were measured last on the same cores when this one came for the first time: who had these
    when its canary ran may have come within them."""
    by_rank: defaultdict[int, list[tuple[float, str, int]]] = defaultdict(list)
    for record in run.records:
        for rank in record.ranks:
            for one in (*rank.disturbed, *rank.windows):
                by_rank[rank.launch_rank].append((one.end_s, record.point.label, one.index))
    found = set()
    for turns in map(sorted, by_rank.values()):
        place = next((at for at, (_, *turn) in enumerate(turns) if turn == [label, index]), 0)
        found |= {turns[place - 1][1:]} if place else set()
    return found


def with_one_slow(tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(quiet, "PATIENCE_S", 0.1)
    slow(canaries, after=40, times=[2 * STEADY_S])
    return sweep(tmp_path, Launch(2), **ONE_CELL)


def around_slow_one(run: Run) -> tuple[set[tuple[str, int]], tuple[str, int]]:
    """The turns that were measured again, and the one of them whose canary was slow; all of them are quiet now."""
    again = disturbed(run)
    (found,) = {(label, index) for label, index, seconds in again if seconds == 2 * STEADY_S}
    for record in run.records:
        assert indices(record) == [list(range(12))] * len(record.ranks)
        assert all(window.canary_s == STEADY_S for rank in record.ranks for window in rank.windows)
    return {(label, index) for label, index, _ in again}, found


def test_a_disturbed_window_is_measured_again_on_record(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone: what came before a core that is slower for a moment was mostly as quick as ever."""
    again, found = around_slow_one(with_one_slow(tmp_path, canaries, monkeypatch))
    assert again == {found}


def test_the_turn_before_is_repeated_if_another_program_uses_its_cores(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_s = [7.0]
    take = agent.measure

    def measure(cpus: Collection[int]) -> float:
        seconds = take(cpus)
        waited_s[0] += seconds - STEADY_S
        return seconds

    monkeypatch.setattr(agent, "measure", measure)
    monkeypatch.setattr(agent, "queued_s", lambda: waited_s[0])
    run = with_one_slow(tmp_path, canaries, monkeypatch)
    again, found = around_slow_one(run)
    aside = before(run, *found)
    assert aside and again == {found, *aside}


def test_a_disturbed_window_comes_again_after_a_while_and_others_have_their_turns_meanwhile(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be over by then, and nobody waits for that with nothing to do."""
    monkeypatch.setattr(quiet, "PATIENCE_S", 0.3)
    slow(canaries, after=20, times=[2 * STEADY_S])  # the first of the fifth block
    launch = Launch(2)
    found = sweep(tmp_path, launch, **ONE_CELL)
    ((label, index),) = {(one, at) for one, at, seconds in disturbed(found) if seconds == 2 * STEADY_S}
    turns = [(told.task.point.label, run.first) for told, run in measured(launch)]
    first, last = (place for place in (turns.index((label, index)), -1 - turns[::-1].index((label, index))))
    meanwhile = {block for _, block in turns[first:last]}
    assert {index, index + 1} <= meanwhile and 11 not in meanwhile
    ((aside, kept),) = {
        (old.end_s, new.start_s)
        for record in found.records
        for rank in record.ranks[:1]
        for old in rank.disturbed
        if old.index == index
        for new in rank.windows
        if new.index == index and record.point.label == label
    }
    assert kept - aside >= quiet.PATIENCE_S


def test_ranks_that_share_a_core_disturb_only_each_other(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they queue there tells of nobody else; what one queues that runs by itself does."""
    monkeypatch.setattr(agent, "queued_s", count(7.0, STEADY_S / 2).__next__)
    found = sweep(tmp_path, Launch(2, [host(cores=1)] * 2), **ONE_CELL)
    crowded = {record.point.label for record in found.records if record.oversubscribed}
    assert len(crowded) == 1
    again = {label for label, _, _ in disturbed(found)}
    assert again and again.isdisjoint(crowded)


def test_the_first_canaries_of_a_core_are_judged_by_none(tmp_path: Path, canaries: list[float]) -> None:
    canaries.extend([9.0, STEADY_S] * LEAST_SEEN)
    assert disturbed(sweep(tmp_path, windows=BLOCKS)) == []


BURNS_S = 10.0


class Phases(NoView):
    def __init__(self) -> None:
        super().__init__(StringIO())
        self.seen: set[Phase] = set()

    def progress(self, state: PointState) -> None:
        self.seen.add(state.phase)


def burning(launch: Launch, monkeypatch: pytest.MonkeyPatch, *, from_s: float) -> list[float]:
    """A burner that halves all cores from so many seconds after now on for a while: when canaries met it."""
    began_s, met_s = launch.now() + from_s, list[float]()

    def measure(_: object) -> float:
        if not began_s <= launch.now() < began_s + BURNS_S:
            return STEADY_S
        met_s.append(launch.now())
        return 2 * STEADY_S

    monkeypatch.setattr(agent, "measure", measure)
    return met_s


def test_a_burner_is_waited_out_however_often_somebody_looks_meanwhile(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins when some canaries were quick: the many that meet it do not make its slowness usual. No window is
    measured beside it twice."""
    monkeypatch.setattr(Plan, "seconds", lambda *_: 2 * BURNS_S)
    launch = Launch(2)
    met_s, view = burning(launch, monkeypatch, from_s=1.8), Phases()
    found = sweep(tmp_path, launch, view=view, **ONE_CELL)
    assert "waiting" in view.seen
    assert len(met_s) > 12 * 4  # more often than there are windows
    assert disturbed(found)
    for rank in (rank for record in found.records for rank in record.ranks):
        beside = [window.index for window in rank.disturbed]
        assert len(beside) == len(set(beside))
        assert all(window.canary_s == STEADY_S for window in rank.windows)
