"""Other processes' use of the CPUs, from what /proc says of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scaling.hosts import foreign
from scaling.hosts.foreign import TICKS_PER_S, Census

# More than any kernel gives: their commands are unknown.
BASE = 1 << 23
LAUNCHER, RANK, BURNER, TWIN, IDLE = range(BASE, BASE + 5)
PARENTS = {LAUNCHER: 1, RANK: LAUNCHER, BURNER: 1, TWIN: BURNER, IDLE: 1}
NAMES = {LAUNCHER: "mpirun", RANK: "rank", BURNER: "a (b) c", TWIN: "a (b) c", IDLE: "idle"}


def seen(root: Path, at_s: float, used_s: dict[int, float]) -> Census:
    """Processes that have used so many seconds, half of them in the kernel."""
    for pid, seconds in used_s.items():
        (root / str(pid)).mkdir(exist_ok=True, parents=True)
        half = int(seconds * TICKS_PER_S / 2)
        fields = ["S", str(PARENTS[pid]), *["0"] * 9, str(half), str(half), *["0"] * 30]
        (root / str(pid) / "stat").write_text(f"{pid} ({NAMES[pid]}) {' '.join(fields)}\n")
    (root / "uptime").write_text("1.0 1.0\n")
    return foreign.census(root)._replace(at_s=at_s)


def test_who_is_none_of_the_launch_and_was_busy(tmp_path: Path) -> None:
    before = seen(tmp_path, 100.0, {LAUNCHER: 5.0, RANK: 50.0, BURNER: 7.0, IDLE: 3.0})
    now = seen(tmp_path, 102.0, {LAUNCHER: 5.0, RANK: 52.0, BURNER: 9.0, IDLE: 3.1})
    (found,) = foreign.busiest(before, now, LAUNCHER)
    assert (found.name, found.over_s) == ("a (b) c", 2.0)
    assert found.run_s == pytest.approx(2.0)


def test_processes_of_one_name_are_one(tmp_path: Path) -> None:
    before = seen(tmp_path, 0.0, {BURNER: 0.0, TWIN: 0.0})
    now = seen(tmp_path, 1.0, {BURNER: 1.0, TWIN: 0.6})
    (found,) = foreign.busiest(before, now, LAUNCHER)
    assert found.cores == pytest.approx(1.6)


def test_who_came_meanwhile_is_unknown(tmp_path: Path) -> None:
    before = seen(tmp_path, 0.0, {IDLE: 0.0})
    assert foreign.busiest(before, seen(tmp_path, 1.0, {BURNER: 9.0}), LAUNCHER) == ()


def test_a_command_is_told_by_its_program_and_first_arguments() -> None:
    own = Path(f"/proc/{os.getpid()}/cmdline").read_text().split("\0")
    before = Census(0.0, {os.getpid(): foreign._Process("x", 1, 0.0)})
    now = Census(1.0, {os.getpid(): foreign._Process("x", 1, 1.0)})
    (found,) = foreign.busiest(before, now, LAUNCHER)
    assert found.name.startswith(Path(own[0]).name)
    assert len(found.name) <= foreign.NAME_LENGTH
