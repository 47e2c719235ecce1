"""Burn-ins (`--for`) inside this process, on a virtual clock: when they end, what they keep, how they go on."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scaling.analysis.table.burn_in import over_time
from scaling.errors import Interrupted
from scaling.records import store
from scaling.records.burn_in import LIVE_ROUNDS, MOST_STRETCHES, PointSummary, is_kept, spacing
from scaling.records.events import Failed
from scaling.sweep import sweep as sweeping
from scaling.sweep.burn_in import BurnIn
from scaling.sweep.sweep import Sweep
from scaling.sweep.view.plain import introduction
from tests.support.inline import Launch, Run
from tests.support.inline_child import Clock
from tests.support.scripted_records import header

SHORT: dict[str, Any] = {"rounds": None, "kinds": ["exchange", "solo"], "windows": 3, "option": ["step_s=0.02"]}


def burn_in(results: Path, launch: Launch, **fields: Any) -> Run:
    return launch.sweep(results, **{**SHORT, **fields})


def rounds_of(run: Path) -> int:
    return max(one.first_round + one.rounds for one in store.read(run).summaries)


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[Sweep]:
    """The sweeps of this test."""
    made: list[Sweep] = []
    begin = Sweep.begin

    def noted(self: Sweep) -> None:
        made.append(self)
        begin(self)

    monkeypatch.setattr(sweeping.Sweep, "begin", noted)
    return made


# ---------------------------------------------------------------- when it ends


def test_rounds_are_added_until_the_time_is_over(tmp_path: Path) -> None:
    launch = Launch(2)
    begun_s = launch.clock.now_s
    found = burn_in(tmp_path, launch, **{"for": "60s"})
    rounds, took_s = rounds_of(found.folder), launch.clock.now_s - begun_s
    assert rounds > 3
    assert took_s <= 60.5
    assert took_s + took_s / rounds > 60, "another round would have fitted"


def test_a_time_shorter_than_a_round_gives_two_rounds(tmp_path: Path) -> None:
    assert rounds_of(burn_in(tmp_path, Launch(1), **{"for": "1s"}).folder) == 2


@pytest.mark.parametrize(("rounds", "now_s", "follows"), [(2, 20.0, True), (9, 90.0, True), (9, 91.0, False)])
def test_a_round_that_would_not_fit_is_not_begun(rounds: int, now_s: float, follows: bool) -> None:
    clock = Clock()
    rule = BurnIn(100.0, clock)
    clock.now_s = now_s
    assert rule((), rounds) is follows


def test_the_time_left_is_that_of_the_clock() -> None:
    clock = Clock(5.0)
    rule = BurnIn(100.0, clock, [PointSummary(cell="a", first_round=0, rounds=3, begin_s=0.0, end_s=30.0)])
    clock.now_s = 15.0
    assert (rule.elapsed_s, rule.ahead.share, rule.ahead.left_s) == (40.0, 0.4, 60.0)
    assert str(rule) == "40 s of 1 min 40 s, 3 rounds"


def test_the_log_begins_with_the_time_of_the_burn_in() -> None:
    *_, last = introduction(header(config={"for": "2h", "rounds": 2}, estimate_s=7200.0), 14)
    assert last == "14 points planned, then rounds until 2 h 0 min are over"


# ---------------------------------------------------------------- what it keeps


def test_memory_and_file_of_a_long_run_are_bounded(tmp_path: Path, sweeps: list[Sweep]) -> None:
    """Hundreds of rounds: the sweep keeps evenly spaced ones, and the times of all."""
    found = burn_in(
        tmp_path, Launch(1), **{"for": "150s"}, kinds=["exchange"], option=["step_s=0.02", "noise=0.1"]
    )
    (sweep,) = sweeps
    whole = store.read(found.folder)
    rounds, cells = rounds_of(found.folder), len(sweep.plan.cells)
    assert rounds > 200
    assert len(sweep.records) <= (LIVE_ROUNDS + 1) * cells
    assert {one.point.round for one in found.records} == {*range(0, rounds, spacing(rounds))}
    assert len(whole.summaries) <= MOST_STRETCHES * cells
    lines = Counter(b'"type":"summary"' in line for line in (found.folder / store.FILE).read_bytes().splitlines())
    assert lines[True] == rounds * cells
    written = sum(is_kept(number, number + 1) for number in range(rounds))
    assert lines[False] == 1 + 2 * written * cells
    assert written < rounds / 2
    (exchange,) = (one for one in over_time(whole.records, whole.summaries) if one.kind == "exchange")
    assert exchange.whole.rounds == rounds
    assert exchange.steps == 3 * rounds, "percentiles are of all windows of all rounds"


def test_the_table_while_it_runs_is_of_the_records_in_memory(tmp_path: Path, sweeps: list[Sweep]) -> None:
    burn_in(tmp_path, Launch(1), **{"for": "30s"})
    (sweep,) = sweeps
    assert sweep._analyser.rows()[0].rounds == len({one.point.round for one in sweep.records})


def test_steps_are_timed_one_by_one_and_logs_of_later_rounds_go(tmp_path: Path) -> None:
    launch = Launch(1)
    burn_in(tmp_path, launch, **{"for": "10s"})
    assert all(task.times_steps for task in launch.tasks)
    assert {task.point.round: task.keeps_log for task in launch.tasks} == {
        task.point.round: task.point.round == 0 for task in launch.tasks
    }


def test_other_sweeps_have_no_summaries(tmp_path: Path) -> None:
    launch = Launch(1)
    found = launch.sweep(tmp_path, rounds=2)
    assert store.read(found.folder).summaries == ()
    assert all(task.keeps_log and not task.times_steps for task in launch.tasks)


def test_a_failed_point_counts_also_in_a_round_that_is_not_kept(tmp_path: Path, sweeps: list[Sweep]) -> None:
    found = burn_in(tmp_path, Launch(2), **{"for": "10s"}, option=["fail=nan", "fail_world=2"])
    assert any(isinstance(one.outcome, Failed) for one in found.records)
    failures = sum(sum(one.failures.values()) for one in store.read(found.folder).summaries)
    assert sweeps[0].burn_in is not None
    assert sweeps[0].burn_in.failures == failures == rounds_of(found.folder)


# ---------------------------------------------------------------- interruption


class Interrupting:
    """A view that interrupts the launch when a point of this round begins."""

    def __init__(self, launch: Launch, number: int) -> None:
        self._launch, self._number = launch, number

    def __getattr__(self, _name: str) -> object:
        return lambda *_args: None

    def began(self, state: Any, _number: int) -> None:
        if state.point.round == self._number:
            self._launch.agents[0].interrupt(signal.SIGINT)


def test_an_interrupted_burn_in_goes_on_for_the_time_that_is_left(tmp_path: Path) -> None:
    launch = Launch(1)
    view: Any = Interrupting(launch, 4)
    with pytest.raises(Interrupted):
        burn_in(tmp_path, launch, view=view, **{"for": "60s"})
    (folder,) = tmp_path.iterdir()
    before = store.read(folder)
    spent_s = max(one.end_s for one in before.summaries)
    assert rounds_of(folder) == 4
    again = Launch(1)
    begun_s = again.clock.now_s
    found = burn_in(tmp_path, again, resume=folder, **{"for": "60s"})
    took_s = again.clock.now_s - begun_s
    assert min(task.point.round for task in again.tasks) == 4
    assert spent_s + took_s == pytest.approx(60, abs=2 * 60 / rounds_of(folder))
    rounds = rounds_of(folder)
    assert [one.point.round for one in found.of("solo")] == [*range(0, rounds, spacing(rounds))]
    once_more = Launch(1)
    burn_in(tmp_path, once_more, resume=folder, **{"for": "60s"})
    assert once_more.tasks == []
