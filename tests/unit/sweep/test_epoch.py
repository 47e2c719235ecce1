"""Points that take turns, and points that go on when their windows are over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.analysis.table.rows import Row
from scaling.frameworks.base import Helper
from scaling.plan import groups
from scaling.records.events import Finished
from scaling.records.host import Gpu, Nic
from scaling.records.run import PointRecord
from scaling.records.task import Finish, Rest
from scaling.records.task import Run as RunCommand
from scaling.sweep.state import Ahead
from scaling.sweep.view.plain import View
from tests.support.inline import ALONE, Launch, host
from tests.support.points import POINT, changed
from tests.support.turns import BLOCKS, CELLS, SIDE_BY_SIDE, STEADY_S, blocks, cell, indices, measured, sweep

# Points that take turns, as whole sweeps in this process: who runs when, and what is on record of it.

pytestmark = pytest.mark.usefixtures("canaries")


def test_every_block_has_every_cell_once_in_its_own_order(tmp_path: Path) -> None:
    launch = Launch(2)
    sweep(tmp_path, launch, windows=6)
    found = blocks(launch)
    assert len(found) == 6
    assert all(sorted(block) == sorted(CELLS) for block in found)
    assert len({tuple(block) for block in found}) > 1


@pytest.mark.parametrize(("step_s", "windows"), [("0.01", 12), ("0.2", 5)])
def test_by_default_a_round_has_as_many_windows_as_fit(tmp_path: Path, step_s: str, windows: int) -> None:
    """All points of it alike, whose ranks report as many as the view says."""
    launch = Launch(2)
    found = sweep(tmp_path, launch, windows=None, option=[f"step_s={step_s}"])
    assert len(blocks(launch)) == windows
    assert {tuple(map(len, indices(record))) for record in found.records} == {(windows,), (windows, windows)}


def test_the_order_of_blocks_is_the_seeds_and_the_rounds(tmp_path: Path) -> None:
    launches = [Launch(2) for _ in range(3)]
    for launch, seed in zip(launches, (1, 1, 2), strict=True):
        sweep(tmp_path, launch, seed=seed, rounds=2, windows=6)
    first, again, other = (blocks(launch) for launch in launches)
    assert first == again
    assert first != other
    assert first != blocks(launches[0], round_number=1)


def test_whoever_is_not_measured_is_stopped(tmp_path: Path) -> None:
    """Also in the warm-up and after the measured windows; only at their end do all run."""
    launch = Launch(2)
    sweep(tmp_path, launch, rounds=2, strategy=["fake:a", "fake:b"])
    for told in launch.told:
        if not isinstance(told.command, Finish):
            assert {one.attempt for one in told.running} <= {told.task.attempt}, cell(told)
    assert all(len(told.running) == 2 for told, _ in measured(launch) if cell(told) == "together N=2")


class Late(Launch):
    """The agent of rank 1 looks for messages at every fourth turn only, as one does that sleeps meanwhile."""

    turns = 0

    def turn(self) -> None:
        self.turns += 1
        late = self.agents[1]
        if self.turns % 4:
            self.agents[1:2] = []
        super().turn()
        if late not in self.agents:
            self.agents.insert(1, late)


def test_nobody_is_measured_before_all_others_stand_still(tmp_path: Path) -> None:
    launch = Late(2)
    sweep(tmp_path, launch)
    assert measured(launch)
    for told in launch.told:
        if not isinstance(told.command, Finish):
            assert {one.attempt for one in told.running} <= {told.task.attempt}, cell(told)


def test_of_each_one_rank_at_a_time_runs(tmp_path: Path) -> None:
    launch = Launch(4)
    launch.sweep(tmp_path, **SIDE_BY_SIDE, world_sizes=[4])
    seats = [(told, run.first) for told, run in measured(launch) if told.task.point.kind == "each"]
    assert sorted((told.task.rank, block) for told, block in seats) == list(product(range(4), range(BLOCKS)))
    assert all(told.running == (told.task,) for told, _ in seats)


def test_no_seat_of_many_has_the_first_block_of_every_round(tmp_path: Path) -> None:
    """Six take turns: what is slow of a block shall not look like a slow rank."""
    launch = Launch(6)
    fields = {**SIDE_BY_SIDE, "kinds": ["exchange", "each"], "rounds": 3, "windows": 6}
    launch.sweep(tmp_path, **fields, world_sizes=[6])
    turns = [
        (number, told.task.rank, run.first)
        for number in range(3)
        for told, run in measured(launch, number)
        if told.task.point.kind == "each"
    ]
    assert Counter((number, rank) for number, rank, _ in turns) == dict.fromkeys(product(range(3), range(6)), 2)
    assert sorted(rank for _, rank, block in turns if block == 0) == list(range(6))


def test_seats_of_each_also_run_one_by_one_where_points_are_measured_alone(tmp_path: Path) -> None:
    launch = Launch(2)
    found = launch.sweep(
        tmp_path, **{**SIDE_BY_SIDE, "interleave": False, "kinds": ["exchange", "each"]}, world_sizes=[2]
    )
    (record,) = found.of("each", 2)
    assert record.epoch is None
    assert indices(record) == [list(range(BLOCKS))] * 2
    seats = [told for told, _ in measured(launch) if told.task.point.kind == "each"]
    assert [told.task.rank for told in seats] == [0, 1]
    assert all(told.running == (told.task,) for told in seats)


def test_a_point_by_itself_on_gpus_is_never_stopped(tmp_path: Path) -> None:
    """And need not rest: no canary is tried on their hosts' cores."""
    gpus = tuple(Gpu(index=each, name="GPU", uuid=f"GPU-{each}", memory_bytes=1 << 36) for each in range(2))
    launch = Launch(2, [host(cores=2, gpus=gpus)] * 2)
    found = launch.sweep(tmp_path, device="cuda", **{**ALONE, "rounds": 1})
    assert {record.epoch for record in found.records} == {None}
    assert {child.pauses for child in launch.children} == {0}
    assert not any(isinstance(told.command, Rest) for told in launch.told)


def test_a_point_by_itself_stands_still_for_its_canary(tmp_path: Path) -> None:
    """Whoever polls or lingers would be beside it."""
    launch = Launch(2)
    found = launch.sweep(tmp_path, **{**ALONE, "rounds": 1})
    assert {record.epoch for record in found.records} == {None}
    for child in launch.children:
        assert child.pauses == child.resumes > 0


@pytest.mark.parametrize(
    ("strategy", "lingering"), [("fake:a", {"together"}), ("fake:async", {"together", "exchange", "comm"})]
)
def test_ranks_that_linger_rest_before_they_are_stopped(
    tmp_path: Path, strategy: str, lingering: set[str]
) -> None:
    """Once after each turn, all ranks of it; nobody else does."""
    launch = Launch(2)
    sweep(tmp_path, launch, strategy=[strategy], world_sizes=[2])
    turns = [(told.task.point.kind, told.task.rank) for told, run in measured(launch) if run.linger]
    rests = [(told.task.point.kind, told.task.rank) for told in launch.told if isinstance(told.command, Rest)]
    assert rests == turns
    assert {kind for kind, _ in rests} == lingering
    by_child = [[told.command for told in launch.told if told.task is child.task] for child in launch.children]
    for commands in by_child:
        for before, after in pairwise(commands):
            lingers = isinstance(before, RunCommand) and before.linger
            assert lingers == isinstance(after, Rest)


def test_whoever_was_stopped_goes_on(tmp_path: Path) -> None:
    launch = Launch(2)
    sweep(tmp_path, launch, rounds=2)
    assert launch.children
    for child in launch.children:
        assert child.pauses == child.resumes >= BLOCKS


def test_windows_tell_their_block_and_records_their_epoch(tmp_path: Path) -> None:
    launch = Launch(2)
    found = sweep(tmp_path, launch, rounds=2)
    assert len(found.records) == 2 * len(CELLS)
    for record in found.records:
        assert indices(record) == [list(range(BLOCKS))] * len(record.ranks)
        assert record.epoch == 0
        assert all(window.canary_s == STEADY_S for rank in record.ranks for window in rank.windows)
        assert not any(rank.disturbed for rank in record.ranks)
    runs = [told.command for told in launch.told if isinstance(told.command, RunCommand)]
    assert all(run.canary == (run.measured or run.is_later) for run in runs)


@pytest.mark.parametrize("fields", [{}, {"malloc": "system", "fresh_workers": True}])
def test_all_workers_and_helpers_have_the_heap_and_the_start_that_are_asked_for(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    launch = Launch(2)
    sweep(tmp_path, launch, strategy=["fake:ps"], **fields)
    asked = ("system", True) if fields else ("keep", False)
    tasks = [child.task for child in launch.children]
    assert {(task.malloc, task.fresh) for task in tasks} == {asked}
    assert {task.point.kind for task in tasks} == {"exchange", "each", "together", "comm"}
    assert len({task.role for task in tasks}) > 1


@pytest.mark.parametrize("awaited", [True, False])
def test_workers_that_wait_for_their_helpers_themselves_start_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, awaited: bool
) -> None:
    """They are then told nothing of what helpers announce."""
    helper = Helper(name="server-0", server=0, awaited=awaited)
    monkeypatch.setattr(type(frameworks.load("fake:ps")), "helpers", lambda *_: [helper])
    launch = Launch(2)
    found = sweep(tmp_path, launch, strategy=["fake:ps"], kinds=["exchange"])
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    workers = [one.task for one in launch.children if one.task.role == "worker" and one.task.servers]
    assert workers
    assert all(bool(task.announced) == awaited for task in workers)


def test_where_memory_does_not_hold_all_points_each_world_size_is_an_epoch(tmp_path: Path) -> None:
    computing, exchanging = (groups.worker_bytes(changed(POINT, kind=kind)) for kind in ("together", "comm"))
    # Of the points of two ranks two exchanges are among the eight workers; that of one rank is too much.
    fitting = 6.5 * computing + 2 * exchanging
    small = [host(memory_bytes=round(fitting / groups.MEMORY_PART), cores=2)] * 2
    found = sweep(tmp_path, Launch(2, small))
    by_size = {size: {r.epoch for r in found.records if r.point.world_size == size} for size in (1, 2)}
    assert by_size[1] != by_size[2]
    assert all(len(epochs) == 1 and None not in epochs for epochs in by_size.values())
    assert {record.point.kind for record in found.records if record.point.world_size == 1} == {"exchange", "solo"}


@pytest.mark.parametrize(("device", "windows"), [("cuda", 4), ("cpu", 4)])
def test_a_point_alone_warms_up_for_four_windows_of_a_second(tmp_path: Path, device: str, windows: int) -> None:
    gpu = Gpu(index=0, name="GPU", uuid="GPU-0", memory_bytes=1 << 36)
    launch = Launch(1, [host(cores=1, gpus=(gpu,))])
    launch.sweep(tmp_path, device=device, window_s=1.0, kinds=["exchange"], rounds=1, option=["step_s=0.1"])
    commands = [told.command for told in launch.told]
    assert [one.windows for one in commands if isinstance(one, RunCommand) and not one.measured][:3] == [
        1,
        1,
        windows,
    ]


def test_records_name_their_gpus_and_say_that_hosts_share_one(tmp_path: Path) -> None:
    gpu = Gpu(index=0, name="GPU", uuid="GPU-a", memory_bytes=1 << 36)
    card = Nic(name="eth0", address="10.0.0.1", netmask="255.255.255.0", up=True, mtu=1500)
    nics = {"node1": (card,), "node2": (replace(card, address="10.0.0.2"),)}
    launch = Launch(2, [host(name, cores=1, gpus=(gpu,), nics=own) for name, own in nics.items()])
    found = launch.sweep(tmp_path, device="cuda", kinds=["exchange"], rounds=1, world_sizes=[1, 2])
    told = {record.point.world_size: (record.gpus, record.oversubscribed) for record in found.records}
    assert told == {1: (("GPU-a",), False), 2: (("GPU-a", "GPU-a"), True)}


class Told(View):
    """Notes what is ahead, and which of it was told before the first point ended."""

    def __init__(self) -> None:
        self.ahead: list[Ahead] = []
        self.before_the_first = 0

    def advanced(self, ahead: Ahead) -> None:
        self.ahead.append(ahead)

    def finished(self, record: PointRecord, rows: Sequence[Row], number: int, total: int) -> None:
        self.before_the_first = self.before_the_first or len(self.ahead) - 1


def test_progress_goes_on_while_points_take_turns(tmp_path: Path) -> None:
    """Also before the first points end, and in the soak. Points that end together change nothing."""
    view = Told()
    sweep(tmp_path, Launch(2), view=view, rounds=2, soak_s=2.0)
    shares = [one.share for one in view.ahead]
    assert view.before_the_first > 10
    assert len(set(shares[: view.before_the_first])) > 8
    assert shares[0] < 0.2 and 0.5 < shares[view.before_the_first] < 0.8
    assert shares[-1] == pytest.approx(1.0)
    assert max(before - after for before, after in pairwise(shares)) < 0.05
    assert view.ahead[view.before_the_first : view.before_the_first + 5] == [view.ahead[view.before_the_first]] * 5


def test_the_time_left_is_known_from_the_first_moment_on(tmp_path: Path) -> None:
    view, launch = Told(), Launch(2)
    begun_s = launch.clock()
    sweep(tmp_path, launch, view=view, rounds=2)
    left = [one.left_s for one in view.ahead]
    assert None not in left
    assert left[0] > left[view.before_the_first] > left[-1] == pytest.approx(0.0)  # type: ignore[operator]
    assert left[view.before_the_first] < launch.clock() - begun_s  # type: ignore[operator]


def test_progress_of_a_resumed_run_includes_what_was_measured(tmp_path: Path) -> None:
    view = Told()
    begun = sweep(tmp_path, Launch(2), rounds=1)
    sweep(tmp_path, Launch(2), view=view, rounds=2, resume=begun.folder)
    assert 0.5 < view.ahead[0].share < 1.0
