"""Points that take turns on GPUs: how many live together, what they give back, the warm-up, seats."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scaling.agent.agent import Supervisor
from scaling.plan.placement import most_of_a_host
from scaling.plan.plan import Plan
from scaling.records.events import Failed, Finished
from scaling.records.host import Gpu
from scaling.records.task import Command, Finish, Rest
from scaling.records.task import Run as RunCommand
from scaling.records.telemetry import Sample
from scaling.sweep import epoch
from scaling.sweep.epoch import Epoch, Sharing
from scaling.sweep.view.plain import View
from tests.support.inline import Launch, Run, host
from tests.support.inline_child import InlineChild, Told

GB = 10**9
HELD, COMPUTING = 2 * GB, 12 * GB
# Two GPUs: exchange N=1 and N=2, comm, each, together.
POINTS = 5


class Notes(View):
    """A view that keeps the notes."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


class Cards:
    """GPUs that hold HELD for each worker, and COMPUTING more for one that has run steps and has not rested.
    `grown`: bytes that stay once it has run any, as handles, workspaces, momentum, channels of NCCL."""

    def __init__(self, launch: Launch, memory_bytes: int, *, reads: bool = True, grown: int = 0) -> None:
        self._launch, self._memory_bytes, self._reads, self._grown = launch, memory_bytes, reads, grown
        self._full: set[int] = set()
        self._warm: set[int] = set()

    def used_bytes(self, index: int) -> int:
        here = [one for one in self._launch.children if not one.ended() and one.task.device_index == index]
        return sum(
            HELD + COMPUTING * (id(one) in self._full) + self._grown * (id(one) in self._warm) for one in here
        )

    def gpus(self, supervisor: Supervisor) -> tuple[Sample, ...]:
        index = supervisor.child.task.device_index
        return (Sample(unix_s=0.0, memory_used_bytes=self.used_bytes(index)),) if self._reads else ()

    def tell(self, child: InlineChild, command: Command) -> None:
        if isinstance(command, RunCommand):
            self._full.add(id(child))
            self._warm.add(id(child))
            if self.used_bytes(child.task.device_index) > self._memory_bytes:
                child._fail(MemoryError("planted"))
                return
        else:
            self._full.discard(id(child))
        tell(child, command)


tell = InlineChild.tell


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def run(memory_gb: float, *, reads: bool = True, grown: int = 0, **fields: Any) -> tuple[Run, Launch]:
        memory_bytes = round(memory_gb * GB)
        gpus = tuple(Gpu(index=n, name="GPU", uuid=f"GPU-{n}", memory_bytes=memory_bytes) for n in range(2))
        launch = Launch(2, [host(cores=2, memory_bytes=1 << 40, gpus=gpus)] * 2)
        made = Cards(launch, memory_bytes, reads=reads, grown=grown)
        # Functions, so that they are bound to the supervisor and the child.
        monkeypatch.setattr(Supervisor, "gpus", lambda supervisor: made.gpus(supervisor))  # noqa: PLW0108
        monkeypatch.setattr(InlineChild, "tell", lambda child, command: made.tell(child, command))  # noqa: PLW0108
        own: dict[str, Any] = {
            "device": "cuda", "interleave": True, "rounds": 2, "window_s": 0.3, "windows": 3,
            "kinds": ["exchange", "each", "together", "comm"],
        }  # fmt: skip
        return launch.sweep(tmp_path, **{**own, "option": ["step_s=0.1"], **fields}), launch

    return run


def epochs(found: Run, round_: int) -> list[int]:
    """Numbers of points that lived together, the largest first."""
    counts = Counter(record.epoch for record in found.records if record.point.round == round_)
    return sorted(counts.values(), reverse=True)


@pytest.mark.parametrize(
    ("memory_gb", "first", "later"),
    [(16, [1] * 5, [1] * 5), (24, [5], [5]), (40, [5], [5]), (80, [5], [5]), (141, [5], [5])],
)
def test_as_many_points_live_together_as_gpus_hold(
    cards: Any, memory_gb: float, first: list[int], later: list[int]
) -> None:
    found, _ = cards(memory_gb)
    assert [type(record.outcome) for record in found.records] == [Finished] * 2 * POINTS
    assert (epochs(found, 0), epochs(found, 1)) == (first, later)


def test_points_that_hold_too_much_are_ended_before_another_computes(cards: Any) -> None:
    """Five points hold 10 GB, and one of them computes: 22 GB. So four fit into 22 GB, and nothing fails."""
    found, _ = cards(22)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert epochs(found, 0) == epochs(found, 1) == [4, 1]


def test_points_will_hold_what_the_first_one_holds_once_it_has_computed(cards: Any) -> None:
    """Five cold points, and one that computes, need 22 GB, and warm ones 27 GB: four fit into 26.5 GB."""
    notes = Notes()
    found, _ = cards(26.5, grown=GB, view=notes)
    assert epochs(found, 0) == epochs(found, 1) == [4, 1]
    assert not any("memory ran out" in note for note in notes.said)


def test_unknown_memory_is_no_limit_until_a_point_runs_out_of_it(cards: Any) -> None:
    notes = Notes()
    found, _ = cards(14.5, reads=False, view=notes)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert len(epochs(found, 0)) > 1
    assert any(note.startswith("memory ran out on GPUs that held 2 points") for note in notes.said)


def test_estimates_follow_what_gpus_hold_and_are_made_only_when_that_changes(
    cards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress lines made 8 of 41 s of a run: each estimated the whole plan twice."""
    found: list[tuple[int | None, float | None]] = []
    estimate = Plan.seconds

    def noting(made: Plan, group: Any, step_s: float | None = None, **how: Any) -> float:
        if how:
            found.append((how["fits"], step_s))
        return estimate(made, group, step_s, **how)

    monkeypatch.setattr(Plan, "seconds", noting)
    cards(14.5, reads=False)
    assert {fits for fits, _ in found} >= {None, 1}
    assert len(found) <= 4


def test_processes_of_a_host_start_in_groups(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver makes contexts one after another. A group starts when the one before is ready."""
    monkeypatch.setattr(epoch, "STARTED", 3)
    groups: list[int] = []
    start = Epoch._start_some

    def noting(epoch: Epoch) -> None:
        assert all(attempt.waits or attempt.over for attempt in epoch.attempts)
        before = len(epoch.attempts)
        start(epoch)
        groups.append(
            most_of_a_host([one.state.point for one in epoch.attempts[before:]], epoch._bench.plan.slots)
        )

    monkeypatch.setattr(Epoch, "_start_some", noting)
    found, _ = cards(80, rounds=1)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert sum(groups) == sum(record.point.world_size for record in found.records)
    assert max(groups) <= 3 and len([one for one in groups if one]) >= 3


@pytest.mark.parametrize(("start_s", "processes"), [(None, 8), (0.5, 300), (60.0, 8)])
def test_a_group_is_as_large_as_the_measured_start_allows(start_s: float | None, processes: int) -> None:
    assert Sharing(start_s=start_s).started_at_once(600.0) == processes


def test_a_point_that_runs_out_of_memory_alone_has_failed(cards: Any) -> None:
    found, _ = cards(10, rounds=1)
    causes = {record.outcome.cause for record in found.records if isinstance(record.outcome, Failed)}
    assert causes == {"oom"}
    assert epochs(found, 0) == [1] * POINTS


def measured_seats(told: list[Told], block: int) -> set[int]:
    """The numbers of ranks of `each` that run when a rank of it is told of a block."""
    return {
        sum(task.point.kind == "each" for task in one.running)
        for one in told
        if isinstance(one.command, RunCommand) and one.command.measured and one.command.first == block
        and one.task.point.kind == "each" and one.task.point.round == 0
    }  # fmt: skip


def test_seats_run_one_by_one_first_then_at_the_same_time(cards: Any) -> None:
    _, launch = cards(80)
    assert [measured_seats(launch.told, block) for block in range(3)] == [{1}, {2}, {2}]
    later = [one for one in launch.told if one.task.point.round == 1 and one.task.point.kind == "each"]
    assert all(
        sum(task.point.kind == "each" for task in one.running) == 2
        for one in later
        if isinstance(one.command, RunCommand) and one.command.measured
    )


def test_seats_that_slow_each_other_run_one_by_one(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch, "ALIKE", -1.0)
    found, launch = cards(80)
    assert [measured_seats(launch.told, block) for block in range(3)] == [{1}, {2}, {1}]
    first, second = (record for record in found.records if record.point.kind == "each")
    assert [[window.index for window in rank.windows] for rank in first.ranks] == [[0, 2]] * 2
    assert [[window.index for window in rank.windows] for rank in second.ranks] == [[0, 1, 2]] * 2


def test_memory_is_given_back_before_another_point_has_its_turn(cards: Any) -> None:
    _, launch = cards(80)
    by_worker: dict[str, list[Command]] = {}
    for one in launch.told:
        by_worker.setdefault(one.task.log, []).append(one.command)
    for commands in by_worker.values():
        measured = [number for number, one in enumerate(commands) if isinstance(one, RunCommand) and one.measured]
        assert all(isinstance(commands[number + 1], Rest) for number in measured)
        assert isinstance(commands[-1], Finish)


def test_gpus_are_warmed_up_once_for_all_points(cards: Any) -> None:
    """The widest exchange trains for 3 s, and all others have a single window."""
    found, _ = cards(80)
    warm_s = {
        record.point.label: sum(window.seconds for window in record.ranks[0].warmup)
        for record in found.records
        if record.point.round == 0
    }
    widest = next(record.point.label for record in found.records if record.point.kind == "exchange"
                  and record.point.world_size == 2)  # fmt: skip
    assert warm_s.pop(widest) >= 3.0
    assert max(warm_s.values()) < 2.0
    again = next(
        record for record in found.records if record.point.round == 1 and record.point.label[:-1] == widest[:-1]
    )
    assert 4 * 0.6 <= sum(window.seconds for window in again.ranks[0].warmup) < 5.0
