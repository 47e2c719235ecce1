"""Windows that something else has disturbed are measured again, on record, within a budget."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest

from scaling.plan.plan import Plan
from scaling.quiet import agent
from scaling.quiet.canary import LEAST_SEEN
from scaling.records.events import Finished
from scaling.records.host import Gpu
from scaling.records.run import PointRecord
from scaling.sweep import turns as quiet
from scaling.sweep.state import Phase, PointState
from scaling.sweep.view.plain import View
from tests.support.inline import Launch, Run, host
from tests.support.turns import BLOCKS, ONE_CELL, STEADY_S, disturbed, indices, measured, quiet_probes, slow, sweep

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


class Phases(View):
    def __init__(self) -> None:
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
    monkeypatch.setattr(Plan, "seconds", lambda *_, **__: 2 * BURNS_S)
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


# All windows of a point by itself are measured again where something else has disturbed them.


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
    quiet_probes(monkeypatch)
    monkeypatch.setattr(Plan, "seconds", lambda *_, **__: 0.4)
    canaries.extend(STEADY_S * 1.1**number for number in range(4000))
    found = Launch(2).sweep(tmp_path, **ALONE)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert all(indices(record) == [list(range(BLOCKS))] * 2 for record in found.records)
    runs = sum(len(record.ranks[0].disturbed) for record in found.records) / BLOCKS
    assert 1 <= runs <= len(found.records) * quiet.BUDGET * 0.4 / quiet.PATIENCE_S + 1


def test_no_point_by_itself_runs_into_its_limit_for_being_measured_again(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet_probes(monkeypatch)
    monkeypatch.setattr(quiet, "BUDGET", 1000.0)
    canaries.extend(STEADY_S * 1.5**number for number in range(1500))
    found = Launch(2).sweep(tmp_path, **{**ALONE, "rounds": 3, "point_timeout_s": 20.0})
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert len(found.records[-1].ranks[0].disturbed) > BLOCKS


def test_on_gpus_no_canary_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "measure", lambda cpus: pytest.fail("tried"))
    gpus = tuple(Gpu(index=each, name="GPU", uuid=f"GPU-{each}", memory_bytes=1 << 36) for each in range(2))
    found = Launch(2, [host(cores=2, gpus=gpus)] * 2).sweep(tmp_path, device="cuda", **{**ALONE, "rounds": 1})
    assert all(window.canary_s is None for r in found.records for rank in r.ranks for window in rank.windows)


# What windows that something else has disturbed may cost until they are measured undisturbed.


# Of an epoch: so long were all its points planned to take, of which a part is for windows that are disturbed.
PLANNED_S = 3.5


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "seconds", lambda *_, **__: PLANNED_S)


def walls_s(run: Run) -> list[float]:
    rounds: defaultdict[int, list[float]] = defaultdict(list)
    for record in run.records:
        rounds[record.point.round].append(record.wall_s)
    return [max(found) for _, found in sorted(rounds.items())]


def ever_slower() -> Iterator[float]:
    return (STEADY_S * 1.1**number for number in range(1, 7000))


@pytest.fixture
def quiet_s(tmp_path: Path) -> list[float]:
    return walls_s(sweep(tmp_path / "quiet", rounds=4, **ONE_CELL))


# Parts of what rounds were planned to take that each of three spends if all are disturbed for good.
SPENT = (2.0, 1.0, 0.0)
# The last turn may go on when the budget is over, and its patience and the agents' turns take a while.
SPILL_S = quiet.PATIENCE_S + 0.5


def spent(walls_s: Iterable[float], quiet_s: Iterable[float], seconds: Iterable[float]) -> list[bool]:
    rounds = zip(walls_s, quiet_s, seconds, strict=False)
    return [abs(wall_s - one_s - more_s) < SPILL_S for wall_s, one_s, more_s in rounds]


@pytest.mark.usefixtures("planned")
def test_a_lasting_disturbance_is_repeated_within_the_budget(
    tmp_path: Path, canaries: list[float], quiet_s: list[float]
) -> None:
    """Who comes first may spend what all have, up to twice what it was planned to take, and all ends. Nothing is
    measured again beside what is still there."""
    canaries.extend(ever_slower())
    found = sweep(tmp_path, rounds=3, **ONE_CELL)
    assert sum(SPENT) == 3 * quiet.BUDGET
    assert spent(walls_s(found), quiet_s, [part * PLANNED_S for part in SPENT]) == [True] * 3
    assert all(map(is_complete, found.records))
    assert disturbed(found) == []


@pytest.mark.usefixtures("planned")
def test_the_quietest_of_many_tries_counts_where_the_last_is_disturbed_too(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each canary is slower than the one before."""
    quiet_probes(monkeypatch)
    canaries.extend(ever_slower())
    found = sweep(tmp_path, rounds=1, **ONE_CELL)
    assert all(map(is_complete, found.records))
    assert len(disturbed(found)) > 12
    for rank in (rank for record in found.records for rank in record.ranks):
        kept = {window.index: window for window in rank.windows}
        assert all(kept[other.index].start_s < other.start_s for other in rank.disturbed)


def is_complete(record: PointRecord) -> bool:
    return isinstance(record.outcome, Finished) and indices(record) == [list(range(12))] * len(record.ranks)


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(("rounds", "part"), [(1, 1.0), (2, 2.0), (4, 2.0)])
def test_the_last_epoch_may_spend_the_unused_budget(
    tmp_path: Path, canaries: list[float], quiet_s: list[float], rounds: int, part: float
) -> None:
    canaries_of_round = 12 * 5  # an exchange has one of each rank
    slow(canaries, after=canaries_of_round * (rounds - 1), times=ever_slower())
    found = walls_s(sweep(tmp_path, rounds=rounds, **ONE_CELL))
    assert spent(found, quiet_s, [*repeat(0.0, rounds - 1), part * PLANNED_S]) == [True] * rounds


@pytest.mark.usefixtures("planned")
def test_a_resumed_run_has_the_budget_of_what_is_lacking(
    tmp_path: Path, canaries: list[float], quiet_s: list[float]
) -> None:
    first = sweep(tmp_path, rounds=3, **ONE_CELL)
    assert disturbed(first) == []
    file = first.folder / "run.jsonl"
    kept = [line for line in file.read_bytes().splitlines(keepends=True) if b'"round":1' not in line]
    assert len(kept) == 1 + 2 * len(first.records) * 2 / 3
    file.write_bytes(b"".join(kept))
    canaries.extend(ever_slower())
    found = sweep(tmp_path, rounds=3, resume=first.folder, **ONE_CELL)
    assert spent(walls_s(found)[1:2], quiet_s[1:], [quiet.BUDGET * PLANNED_S]) == [True]


def test_without_a_budget_nothing_is_measured_again(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "BUDGET", 0.0)
    canaries.extend(STEADY_S * 1.1**number for number in range(4000))
    assert disturbed(sweep(tmp_path, **ONE_CELL)) == []
