"""Points that take turns, with real workers that are really stopped; forked by the agents, as a user's are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import psutil
import pytest

from scaling.agent.agent import Agent
from scaling.errors import Interrupted
from scaling.records.events import Failed, Finished, Window
from scaling.records.run import PointRecord
from scaling.records.task import CHILD_MARK
from scaling.records.telemetry import MAIN
from scaling.sweep.state import PointState
from scaling.sweep.view.plain import View
from tests.support import forked
from tests.support.children import environ_of
from tests.support.inline import Launch, Run
from tests.support.matrix import cases
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("adopting")

BLOCKS = 3
QUICK: dict[str, Any] = {
    "interleave": True, "rounds": 1, "windows": BLOCKS, "window_s": 0.02, "world_sizes": [1, 2],
    "kinds": ["exchange", "each", "together"],
}  # fmt: skip
CELLS = {("exchange", 1), ("exchange", 2), ("each", 2), ("together", 2)}


class Acting(View):
    def __init__(self, act: Callable[[PointState], bool]) -> None:
        self._act, self.has_acted = act, False

    def progress(self, state: PointState) -> None:
        if state.phase == "measuring" and not self.has_acted:
            self.has_acted = self._act(state)


def fork_servers() -> Iterator[int]:
    """Those of this process that run; what other tests have left for it to reap does not."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "fork_server" in " ".join(child.cmdline()):
                yield child.pid


@pytest.fixture
def launch(preload: object) -> Iterator[Launch]:
    one = Launch(2, real=True)
    one.agents = [Agent(one.hub.rank(rank), environ=os.environ) for rank in range(2)]
    yield one
    for agent in one.agents:
        agent.finish()
        assert not agent.busy
    assert not list(fork_servers())


def sweep(launch: Launch, tmp_path: Path, *script: str, **fields: Any) -> Run:
    return launch.sweep(tmp_path, option=["step_s=0.004", *script], **{**QUICK, **fields})


def of(found: Run, kind: str, size: int = 2) -> PointRecord:
    (record,) = found.of(kind, size, None)
    return record


def windows(record: PointRecord) -> list[Window]:
    return [window for rank in record.ranks for window in rank.windows]


def lost(found: Run, kind: str, size: int = 2) -> Failed:
    """Why one cell failed; all others must have been measured in every block."""
    assert {(record.point.kind, record.point.world_size) for record in found.records} == CELLS
    outcome = of(found, kind, size).outcome
    assert isinstance(outcome, Failed)
    for record in found.records:
        if record.outcome is not outcome:
            assert isinstance(record.outcome, Finished), record.outcome
            assert all([w.index for w in rank.windows] == list(range(BLOCKS)) for rank in record.ranks)
    return outcome


def test_windows_of_points_that_take_turns_do_not_overlap(launch: Launch, tmp_path: Path) -> None:
    """By the clock of the host, which all share; nor do those of the seats of `each`."""
    found = sweep(launch, tmp_path)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert {record.epoch for record in found.records} == {0}
    for one, other in combinations(found.records, 2):
        assert all(apart(a, b) for a in windows(one) for b in windows(other))
    seats = of(found, "each").ranks
    assert all(apart(a, b) for a in seats[0].windows for b in seats[1].windows)
    for record in found.records:
        for rank in record.ranks:
            assert len(rank.windows) == BLOCKS
            assert all(window.canary_s for window in rank.windows)


def apart(one: Window, other: Window) -> bool:
    return one.end_s <= other.start_s or other.end_s <= one.start_s


def test_whoever_is_not_measured_is_stopped(launch: Launch, tmp_path: Path) -> None:
    """As the kernel says, whenever a point is measured and every agent has had two turns since it was told."""
    told: list[PointState] = []
    found: dict[str, set[str]] = {}

    def look(state: PointState) -> bool:
        told.append(state)
        if all(same is state for same in told[-5:]) and len(told) > 5:
            own = {rank.pid for rank in state.ranks}
            others = [
                child
                for child in psutil.Process().children(recursive=True)
                if child.pid not in own and is_worker(child)
            ]
            assert len(others) > 1
            found.setdefault(state.point.label, set()).update(child.status() for child in others)
        return False

    sweep(launch, tmp_path, "step_s=0.02", view=Acting(look), window_s=0.06)
    assert len(found) > 1  # on a busy machine a point's turn may be over before it is seen five times
    assert set.union(*found.values()) == {psutil.STATUS_STOPPED}


def is_worker(child: psutil.Process) -> bool:
    """A fork that is a session of its own and has the mark of this process's children."""
    return f"{CHILD_MARK}={os.getpid()}-".encode() in environ_of(child.pid)


def test_workers_are_forked_unless_they_shall_be_fresh(launch: Launch, tmp_path: Path) -> None:
    seen: dict[bool, set[bool]] = {}
    for fresh in (False, True):

        def look(state: PointState, fresh: bool = fresh) -> bool:
            seen.setdefault(fresh, set()).update(forked.is_forked(rank.pid) for rank in state.ranks if rank.pid)
            return False

        sweep(launch, tmp_path / str(fresh), view=Acting(look), fresh_workers=fresh)
    assert seen == {False: {True}, True: {False}}


def test_cpu_times_cover_the_steps_of_measured_windows_alone(launch: Launch, tmp_path: Path) -> None:
    """With the one before each window that is not counted."""
    for record in sweep(launch, tmp_path).records:
        for rank in record.ranks:
            measured = (*rank.windows, *rank.disturbed)
            cpu = rank.telemetry.cpu
            assert cpu is not None
            assert cpu.steps == sum(window.steps + 1 for window in measured)
            assert cpu.wall_s >= sum(window.seconds for window in measured)
            assert MAIN in [thread.name for thread in cpu.threads]


FAULTS = [
    ("kill", "exchange", "crash(SIGKILL)", ""),
    ("hang", "each", "hang", "_hang"),
    ("raise", "exchange", "error", "scripted failure"),
    ("segfault", "exchange", "crash(SIGSEGV)", ""),
]


@pytest.mark.parametrize(("fault", "kind", "cause", "told"), cases(FAULTS, FAULTS[:2]))
def test_a_worker_that_fails_in_its_turn_costs_its_cell(
    launch: Launch, tmp_path: Path, fault: str, kind: str, cause: str, told: str
) -> None:
    script = (f"fail={fault}", f"fail_kind={kind}", "fail_world=2", "fail_rank=1", "fail_step=6")
    outcome = lost(sweep(launch, tmp_path, *script, stall_timeout_s=1.0), kind)
    assert (outcome.cause, outcome.rank) == (cause, 1)
    assert told in outcome.log_tail


def test_a_worker_that_is_killed_while_it_is_stopped_costs_its_cell(launch: Launch, tmp_path: Path) -> None:
    def kill(state: PointState) -> bool:
        own = {rank.pid for rank in state.ranks}
        stopped = [
            child
            for child in psutil.Process().children(recursive=True)
            if child.pid not in own and child.status() == psutil.STATUS_STOPPED
        ]
        if stopped:
            stopped[0].kill()
        return bool(stopped)

    view = Acting(kill)
    found = sweep(launch, tmp_path, view=view)
    assert view.has_acted
    (failed,) = (record for record in found.records if isinstance(record.outcome, Failed))
    assert lost(found, failed.point.kind, failed.point.world_size).cause == "crash(SIGKILL)"


def test_a_signal_ends_those_that_are_stopped_too(launch: Launch, tmp_path: Path) -> None:
    def interrupt(_: PointState) -> bool:
        launch.agents[1].interrupt(signal.SIGINT)
        return True

    with pytest.raises(Interrupted):
        sweep(launch, tmp_path, view=Acting(interrupt))

    def all_over() -> bool:
        launch.turn()
        return not any(agent.busy for agent in launch.agents)

    eventually(all_over)
