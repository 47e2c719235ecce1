"""Other processes' use of the CPUs, from what /proc says of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from scaling.quiet import agent
from scaling.quiet.agent import TICKS_PER_S, Census
from scaling.records.telemetry import Foreign

NOBODY: Mapping[int, float] = MappingProxyType({})
# More than any kernel gives: their commands are unknown.
BASE = 1 << 23
LAUNCHER, RANK, BURNER, TWIN, IDLE, SHELL, MAKE, DRIVER, COMPILER, SECOND = range(BASE, BASE + 10)
PARENTS = {
    LAUNCHER: 1, RANK: LAUNCHER, BURNER: 1, TWIN: BURNER, IDLE: 1,
    SHELL: 1, MAKE: SHELL, DRIVER: MAKE, COMPILER: DRIVER, SECOND: MAKE,
}  # fmt: skip
NAMES = {
    LAUNCHER: "mpirun", RANK: "rank", BURNER: "a (b) c", TWIN: "a (b) c", IDLE: "idle",
    SHELL: "shell", MAKE: "make", DRIVER: "gcc", COMPILER: "cc1", SECOND: "gcc",
}  # fmt: skip


def seen(root: Path, at_s: float, used_s: dict[int, float], children_s: Mapping[int, float] = NOBODY) -> Census:
    """These processes alone, which have used so many seconds, half of them in the kernel, and so have the children
    that they have waited for."""
    shutil.rmtree(root, ignore_errors=True)
    for pid, seconds in used_s.items():
        (root / str(pid)).mkdir(parents=True)
        half, of_children = (int(s * TICKS_PER_S / 2) for s in (seconds, children_s.get(pid, 0.0)))
        times = map(str, (half, half, of_children, of_children))
        fields = ["S", str(PARENTS[pid]), *["0"] * 9, *times, *["0"] * 28]
        (root / str(pid) / "stat").write_text(f"{pid} ({NAMES[pid]}) {' '.join(fields)}\n")
    (root / "uptime").write_text("1.0 1.0\n")
    return agent.census(root)._replace(at_s=at_s)


def test_busy_processes_outside_the_launch(tmp_path: Path) -> None:
    before = seen(tmp_path, 100.0, {LAUNCHER: 5.0, RANK: 50.0, BURNER: 7.0, IDLE: 3.0})
    now = seen(tmp_path, 102.0, {LAUNCHER: 5.0, RANK: 52.0, BURNER: 9.0, IDLE: 3.1})
    (found,) = agent.busiest(before, now, LAUNCHER)
    assert (found.name, found.over_s) == ("a (b) c", 2.0)
    assert found.run_s == pytest.approx(2.0)


def test_processes_of_one_name_are_one(tmp_path: Path) -> None:
    before = seen(tmp_path, 0.0, {BURNER: 0.0, TWIN: 0.0})
    now = seen(tmp_path, 1.0, {BURNER: 1.0, TWIN: 0.6})
    (found,) = agent.busiest(before, now, LAUNCHER)
    assert found.cores == pytest.approx(1.6)


Used = dict[int, float]


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        # a new process; one that ended unreaped
        (({IDLE: 0.0}, NOBODY), ({IDLE: 0.0, BURNER: 0.8}, NOBODY), {"a (b) c": 0.8}),
        (({IDLE: 0.0, BURNER: 5.0}, NOBODY), ({IDLE: 0.0}, NOBODY), {}),
        # compilers that live for less than a second are named after make
        (({SHELL: 1.0, MAKE: 1.0, IDLE: 0.0}, {MAKE: 50.0}),
         ({SHELL: 1.0, MAKE: 1.1, IDLE: 0.0}, {MAKE: 50.7}), {"make": 0.8}),
        # a driver and the compiler that it had begun have ended: make was given all that they have used
        (({SHELL: 1.0, MAKE: 1.0, DRIVER: 0.2, COMPILER: 3.0}, {MAKE: 50.0, DRIVER: 4.0}),
         ({SHELL: 1.0, MAKE: 1.0}, {MAKE: 50.0 + 7.2 + 0.6}), {"make": 0.6}),
        # children that are still there
        (({MAKE: 1.0, DRIVER: 0.2, SECOND: 0.4}, {DRIVER: 1.0}),
         ({MAKE: 1.0, DRIVER: 0.2, SECOND: 0.8}, {DRIVER: 1.2}), {"gcc": 0.6}),
        # a driver ended before the compiler, which an ancestor waits for; it had computed for an hour
        (({SHELL: 1.0, MAKE: 1.0, DRIVER: 0.2, COMPILER: 3600.0, IDLE: 0.0}, NOBODY),
         ({SHELL: 1.0, MAKE: 1.0, IDLE: 0.0}, {SHELL: 3600.0, MAKE: 0.2}), {}),
        # children of the launch
        (({LAUNCHER: 1.0, RANK: 1.0}, NOBODY), ({LAUNCHER: 1.0, RANK: 1.0}, {LAUNCHER: 9.0, RANK: 9.0}), {}),
    ],
)  # fmt: skip
def test_the_time_of_processes_that_begin_and_end(
    tmp_path: Path, before: tuple[Used, Used], now: tuple[Used, Used], found: dict[str, float]
) -> None:
    """What each had used, and the children that it had waited for."""
    busiest = agent.busiest(seen(tmp_path, 0.0, *before), seen(tmp_path, 1.0, *now), LAUNCHER)
    assert {one.name: round(one.run_s, 6) for one in busiest} == found


@pytest.mark.parametrize(
    ("title", "program"),
    [
        ("sshd: user@pts/0", "sshd"),
        ("/usr/sbin/nginx", "nginx"),
        ("postgres: user base 10.0.0.1(4711)", "postgres"),
    ],
)
def test_a_title_that_a_server_gives_itself_is_no_path(
    monkeypatch: pytest.MonkeyPatch, title: str, program: str
) -> None:
    monkeypatch.setattr(agent, "_arguments", lambda _pid: [title])
    name = agent._command(1, "comm")
    assert Foreign(name=name, run_s=1.0, over_s=1.0).program == program


def test_a_command_is_told_by_its_program_and_first_arguments() -> None:
    parent = os.getppid()
    program = Path(f"/proc/{parent}/cmdline").read_text().split("\0")[0]
    before = Census(0.0, {parent: agent._Process("x", 1, 0.0)})
    now = Census(1.0, {parent: agent._Process("x", 1, 1.0)})
    (found,) = agent.busiest(before, now, LAUNCHER)
    assert found.name.startswith(Path(program).name)
    assert len(found.name) <= agent.NAME_LENGTH


def test_a_number_that_was_given_again_makes_no_endless_line() -> None:
    """The parent of one ended, and its number went to a child of that one before it was read."""
    before, now = (
        Census(at_s, {BURNER: agent._Process("x", TWIN, at_s), TWIN: agent._Process("y", BURNER, at_s)})
        for at_s in (0.0, 1.0)
    )
    assert len(agent.busiest(before, now, LAUNCHER)) == 2


# ---------------------------------------------------------------- the launch's own


def named(monkeypatch: pytest.MonkeyPatch, parents: dict[int, int], ranks: tuple[int, ...]) -> set[int]:
    """Who is named, where all of these processes were busy; the first of `ranks`, which run one command, is this
    one."""
    monkeypatch.setattr(os, "getpid", lambda: ranks[0])
    monkeypatch.setattr(os, "getppid", lambda: parents[ranks[0]])
    monkeypatch.setattr(agent, "_arguments", lambda pid: ["python", "-m", "scaling.run"] if pid in ranks else [])
    monkeypatch.setattr(agent, "_command", lambda pid, _name: str(pid))
    monkeypatch.setattr(agent, "NAMED", len(parents))
    before, now = (
        Census(at_s, {pid: agent._Process("x", parent, at_s) for pid, parent in parents.items()})
        for at_s in (0.0, 1.0)
    )
    return {int(one.name) for one in agent.busiest(before, now)}


def test_ranks_behind_shells_of_their_own_are_the_launchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `mpirun apptainer exec` starts them; another launch of the same command is none of this one."""
    rank, worker, shell, mpirun, shell_1, rank_1, worker_1, mpirun_2, rank_2, worker_2 = range(BASE, BASE + 10)
    parents = {
        1: 0, mpirun: 1, shell: mpirun, rank: shell, worker: rank, shell_1: mpirun, rank_1: shell_1,
        worker_1: rank_1, mpirun_2: 1, rank_2: mpirun_2, worker_2: rank_2,
    }  # fmt: skip
    found = named(monkeypatch, parents, (rank, rank_1, rank_2))
    assert found.isdisjoint({rank, worker, rank_1, worker_1})
    assert found >= {mpirun_2, rank_2, worker_2}


def test_in_a_container_whose_first_process_is_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, worker, rank_1, worker_1, other = range(BASE, BASE + 5)
    parents = {1: 0, rank: 1, worker: rank, rank_1: 1, worker_1: rank_1, other: 0}
    assert named(monkeypatch, parents, (rank, rank_1)) == {1, other}


def test_in_a_container_whose_first_process_is_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, other = BASE, BASE + 1
    assert named(monkeypatch, {1: 0, worker: 1, other: 0}, (1,)) == {other}
