"""Failures where points take turns; closer looks, idle traffic, preloading."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scaling.analysis.table.analyse import rows
from scaling.errors import Interrupted, SilentRanks
from scaling.records import store
from scaling.records.events import Failed, Finished
from scaling.records.messages import Reserve
from scaling.records.run import PointRecord
from scaling.records.task import Finish
from scaling.records.task import Run as RunCommand
from scaling.sweep.state import PointState
from scaling.sweep.view.plain import View
from tests.support.check_facts import nic
from tests.support.inline import Launch, PaperAgent, Run, host
from tests.support.turns import BLOCK, BLOCKS, CELLS, LATER, LATER_TURNS, WARM, blocks, cell, indices, sweep

# What a failure, a signal and a resumed run cost where points take turns.

pytestmark = pytest.mark.usefixtures("canaries")


def failed(run: Run, kind: str = "exchange", size: int = 2) -> PointRecord:
    """The point that failed, once; all others must have been measured in every block."""
    (record,) = run.of(kind, size)
    assert isinstance(record.outcome, Failed)
    others = [one for one in run.records if one is not record]
    assert len(others) == len(CELLS) - 1
    for one in others:
        assert isinstance(one.outcome, Finished)
        assert indices(one) == [list(range(BLOCKS))] * len(one.ranks)
    return record


@pytest.mark.parametrize(
    ("script", "step", "phase"),
    [
        (["fail=raise"], 2, "warm-up"),
        (["fail=raise"], WARM + 2, "the first block"),
        (["fail=raise"], WARM + BLOCK + 2, "the second block"),
        (["fail=nan"], WARM + BLOCK + 2, "the second block"),
        (["fail=digest"], 1, "the end"),
        (["fail=port-always"], 1, "the start"),
    ],
)
def test_a_point_that_fails_costs_one_cell(tmp_path: Path, script: list[str], step: int, phase: str) -> None:
    launch = Launch(2)
    option = [*script, f"fail_step={step}", "fail_world=2", "fail_rank=1"]
    record = failed(sweep(tmp_path, launch, option=option))
    told = [one.command for one in launch.told if cell(one) == "exchange N=2"]
    runs = [one for one in told if isinstance(one, RunCommand)]
    reached = {
        "the start": not told,
        "warm-up": bool(runs) and not any(run.measured for run in runs),
        "the first block": {run.first for run in runs if run.measured} == {0},
        "the second block": {run.first for run in runs if run.measured} == {0, 1},
        "the end": isinstance(told[-1] if told else None, Finish),
    }
    assert [name for name, is_so in reached.items() if is_so] == [phase]
    assert isinstance(record.outcome, Failed) and record.outcome.rank == 1


@pytest.mark.parametrize(
    ("fault", "step", "firsts", "phase"),
    [
        ("raise", WARM + BLOCKS * BLOCK + 2, [2], "soak"),
        ("oom", WARM + BLOCKS * BLOCK + LATER + 2, [2, 4], "soak"),
        ("oom", WARM + BLOCKS * BLOCK + LATER_TURNS * LATER + 1, None, "digest or uncounted steps"),
        ("digest-raise", 0, None, "digest or uncounted steps"),
    ],
)
def test_a_failure_after_the_measured_windows_costs_a_note(
    tmp_path: Path, fault: str, step: int, firsts: list[int] | None, phase: str
) -> None:
    launch = Launch(2)
    option = [f"fail={fault}", f"fail_step={step}", "fail_world=2", "fail_rank=1"]
    found = sweep(tmp_path, launch, option=option)
    (record,) = found.of(size=2)
    assert all(isinstance(one.outcome, Finished) for one in found.records)
    assert indices(record) == [list(range(BLOCKS))] * 2
    told = [one.command for one in launch.told if cell(one) == "exchange N=2"]
    later = list(dict.fromkeys(run.first for run in _after([one for one in told if isinstance(one, RunCommand)])))
    assert firsts is None or later == firsts
    assert [bool(rank.later) for rank in record.ranks] == [phase != "soak"] * 2
    assert not any(rank.unsynced for rank in record.ranks)
    (note,) = (warning.text for warning in record.warnings if "measured windows" in warning.text)
    assert note.startswith(f"{phase} failed after the measured windows: ")
    assert "rank 1 on node1" in note and note.endswith("the parameters of the ranks were not compared")
    row = rows(found.records)[-1]
    assert row.failed is None and row.efficiency is not None and note in row.footnotes


def _after(runs: Sequence[RunCommand]) -> Sequence[RunCommand]:
    measured = [run.measured for run in runs]
    return runs[len(runs) - measured[::-1].index(True) :] if any(measured) else ()


def test_all_points_but_one_may_fail(tmp_path: Path) -> None:
    option = ["fail=raise", "fail_kind=each", "fail_step=3"]
    found = sweep(tmp_path, option=option, kinds=["exchange", "each"])
    outcomes = {(r.point.kind, r.point.world_size): type(r.outcome) for r in found.records}
    assert outcomes == {("exchange", 1): Finished, ("exchange", 2): Finished, ("each", 2): Failed}


def test_an_epoch_in_which_every_point_fails_ends(tmp_path: Path) -> None:
    found = sweep(tmp_path, option=["fail=raise", "fail_step=3"], kinds=["exchange"])
    assert [type(record.outcome) for record in found.records] == [Failed, Failed]


def test_a_port_that_was_taken_is_tried_once_more_while_the_others_wait(tmp_path: Path) -> None:
    launch = Launch(2)
    found = sweep(tmp_path, launch, option=["fail=port", "fail_world=2"])
    (record,) = found.of(size=2)
    assert isinstance(record.outcome, Finished)
    assert len(record.retries) == 1 and record.retries[0].startswith("port-taken: ")
    assert indices(record) == [list(range(BLOCKS))] * 2
    attempts = {task.attempt for task in launch.tasks if task.point.key == record.point.key}
    assert len(attempts) == 2
    assert {len(r.retries) for r in found.records if r is not record} == {0}


def test_a_port_that_is_taken_twice_costs_its_cell(tmp_path: Path) -> None:
    record = failed(sweep(tmp_path, option=["fail=port-always", "fail_world=2"]))
    assert isinstance(record.outcome, Failed) and record.outcome.cause == "port-taken"
    assert len(record.retries) == 1


def test_ports_that_cannot_be_bound_cost_one_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = PaperAgent._reserve

    def bound(agent: PaperAgent, order: Reserve) -> tuple[int, ...]:
        return () if order.attempt == 2 else reserve(agent, order)

    monkeypatch.setattr(PaperAgent, "_reserve", bound)
    launch = Launch(2)
    found = sweep(tmp_path, launch, kinds=["exchange", "together"])
    (lost,) = (record for record in found.records if isinstance(record.outcome, Failed))
    assert isinstance(lost.outcome, Failed) and "cannot bind a port" in lost.outcome.message
    assert len(found.records) == 3


class Beginning(View):
    def __init__(self, act: Callable[[int], None]) -> None:
        self._act = act
        self.count = 0

    def began(self, state: PointState, number: int) -> None:
        self.count += 1
        self._act(self.count)


def interrupted(tmp_path: Path, **fields: Any) -> tuple[Path, Launch]:
    """A sweep that is signalled when its second epoch begins: its folder."""
    launch = Launch(2)

    def act(count: int) -> None:
        if count == 2:
            launch.agents[1].interrupt(signal.SIGINT)

    with pytest.raises(Interrupted):
        sweep(tmp_path, launch, view=Beginning(act), **fields)
    (folder,) = tmp_path.iterdir()
    return folder, launch


def test_a_signal_keeps_the_epochs_before(tmp_path: Path) -> None:
    folder, launch = interrupted(tmp_path, rounds=3)
    kept = store.load(folder)[1]
    assert {record.point.round for record in kept} == {0}
    assert len(kept) == len(CELLS)
    for _ in range(3):
        launch.turn()
    assert not any(agent.busy for agent in launch.agents)


class Soaking(Beginning):
    def began(self, state: PointState, number: int) -> None:
        return None

    def progress(self, state: PointState) -> None:
        if state.phase == "soaking":
            self._act(0)


@pytest.mark.parametrize(
    "error", [Interrupted(signal.SIGINT), RuntimeError("a planted bug")], ids=["signal", "crash"]
)
def test_what_ends_the_run_in_the_soak_keeps_the_measured_points(tmp_path: Path, error: Exception) -> None:
    def act(_: int) -> None:
        raise error

    whole = sweep(tmp_path / "whole")
    with pytest.raises(type(error)):
        sweep(tmp_path / "broken", view=Soaking(act))
    (folder,) = (tmp_path / "broken").iterdir()
    found = store.load(folder)[1]
    assert {record.point.key for record in found} == {record.point.key for record in whole.records}
    assert all(isinstance(record.outcome, Finished) and not record.ended for record in found)
    assert all(isinstance(rank.outcome, Finished) for record in found for rank in record.ranks)
    assert [row.efficiency for row in rows(found)] == [row.efficiency for row in rows(whole.records)]
    launch = Launch(2)
    assert sweep(tmp_path, launch, resume=folder).records == found
    assert launch.tasks == []


@pytest.mark.parametrize("phase", ["starting", "warming", "measuring", "soaking"])
def test_an_agent_that_stands_still_fails_its_points_and_ends_the_run(tmp_path: Path, phase: str) -> None:
    """Points that are measured stay so, and others that it takes no part in are only not measured."""
    launch = Launch(2, [host(f"node{number}", nics=(nic("eth0", f"10.0.0.{number}"),)) for number in (1, 2)])

    class Freezing(Soaking):
        def progress(self, state: PointState) -> None:
            if state.phase == phase:
                launch.frozen = launch.agents[1:]

    with pytest.raises(SilentRanks, match="no message from rank 1 on node2 for 120 s") as raised:
        sweep(tmp_path, launch, view=Freezing(lambda _: None))
    assert raised.value.exit_code == 1
    (folder,) = tmp_path.iterdir()
    found = store.load(folder)[1]
    if phase == "soaking":
        assert all(isinstance(record.outcome, Finished) for record in found)
        return
    assert {record.point.world_size for record in found} == {2}
    for record in found:
        assert isinstance(record.outcome, Failed)
        assert (record.outcome.cause, record.outcome.host, record.outcome.rank) == ("hang", "node2", 1)
        assert record.outcome.message.startswith("no message from rank 1 on node2 for 120 s")


def test_resume_measures_the_epochs_that_are_lacking(tmp_path: Path) -> None:
    folder, _ = interrupted(tmp_path, rounds=3)
    launch = Launch(2)
    found = sweep(tmp_path, launch, resume=folder, rounds=3)
    assert {task.point.round for task in launch.tasks} == {1, 2}
    assert Counter(record.point.round for record in found.records) == dict.fromkeys(range(3), len(CELLS))
    assert all(isinstance(record.outcome, Finished) for record in found.records)


def test_a_point_that_is_measured_again_later_took_no_turns_with_those_before(tmp_path: Path) -> None:
    """Its windows are not beside theirs: pairing them by block would pair times that are hours apart."""
    ails = sweep(tmp_path, option=["fail=nan", "fail_world=2"])
    lost = failed(ails)
    again = sweep(tmp_path, resume=ails.folder, option=["fail=nan", "fail_world=2"])
    first, second = again.of("exchange", 2)
    assert first == lost
    assert {record.epoch for record in again.records if record is not second} == {0}
    assert second.epoch not in (0, None)


def test_target_ci_adds_epochs(tmp_path: Path) -> None:
    launch = Launch(2)
    noisy = ["round_noise=0.1"]
    found = sweep(
        tmp_path, launch, rounds=2, target_ci="0.01%", max_rounds=4, option=noisy, kinds=["exchange", "solo"]
    )
    assert {record.point.round for record in found.records} == {0, 1, 2, 3}
    assert all(len(blocks(launch, number)) == BLOCKS for number in range(4))
