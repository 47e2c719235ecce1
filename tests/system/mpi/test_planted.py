"""Planted for real under mpirun: what costs efficiency, or disturbs the measurement, is named in the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaling.hosts import proc
from scaling.quiet.canary import Canary
from scaling.records import store
from scaling.records.run import PointRecord
from tests.support import sleepy
from tests.support.burner import burning, confined
from tests.support.mpis import MPIS, mpirun

RUN = (
    "-m", "scaling.run", "--device", "cpu", "--rounds", "1", "--windows", "3", "--window-s", "0.1",
    "--soak-s", "0",
)  # fmt: skip
PLACE = Path(__file__).parents[3]
# Notes name the program of a burner without its arguments.
PROGRAM = Path(sys.executable).name


def measured(folder: Path, *flags: str, ranks: int = 2) -> tuple[dict[str, Any], tuple[PointRecord, ...]]:
    done = mpirun(MPIS[1], ranks, *RUN, *flags, "--results", str(folder), cwd=PLACE, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = folder.iterdir()
    command = [sys.executable, "-m", "scaling", "report", str(run), "--format", "json"]
    report = subprocess.run(command, capture_output=True, check=True, cwd=PLACE, timeout=60)
    return json.loads(report.stdout), store.load(run)[1]


def notes(report: dict[str, Any]) -> list[str]:
    return [note for row in (*report["rows"], *report["baselines"]) for note in row["footnotes"]]


def foreign(records: tuple[PointRecord, ...], rank: int) -> set[str]:
    ranks = (one for record in records for one in record.ranks if one.launch_rank == rank)
    return {process.name for one in ranks for process in one.telemetry.foreign}


@pytest.fixture
def two_cpus() -> Iterator[tuple[int, int]]:
    """The CPUs of ranks 0 and 1: one each of two cores, and this machine has no others."""
    cores = proc.physical_cores(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    cpus = cores[0][0], cores[1][0]
    with confined(cpus):
        yield cpus


def test_two_workers_on_one_core_claim_no_efficiency_and_no_rank(
    tmp_path: Path, two_cpus: tuple[int, int]
) -> None:
    with confined(two_cpus[:1]):
        report, records = measured(tmp_path, "--strategy", "fake:a,fake:b", "--kinds", "exchange,each")
    assert len(report["rows"]) == 4
    for row in report["rows"]:
        crowded = row["world_size"] == 2
        assert ("OVERSUBSCRIBED" in row["flags"]) == crowded
        assert [note.startswith("OVERSUBSCRIBED") for note in row["footnotes"]].count(True) == crowded
        claimed = {name for name in ("speedup", "efficiency", "breakdown", "standing") if row[name] is not None}
        assert len(claimed) == (0 if crowded else 4)
    # One by one ranks do not crowd each other.
    assert not any("control is OVERSUBSCRIBED" in note for note in notes(report))
    assert {record.point.kind for record in records if record.oversubscribed} == {"exchange"}


def test_a_rank_with_half_a_core_is_named_and_who_has_the_other_half(
    tmp_path: Path, two_cpus: tuple[int, int]
) -> None:
    with burning(two_cpus[1]) as burner:
        flags = ("--strategy", "torch:gloo", "--world-sizes", "2", "--kinds", "exchange,each")
        report, records = measured(tmp_path, *flags)
    (row,) = report["rows"]
    (of_controls,) = (note for note in row["footnotes"] if note.startswith("its each control: foreign load"))
    assert PROGRAM in of_controls
    # In a plain loop alone there is nobody else whom it could wait for.
    assert "rank 1 " in of_controls.rpartition("; ")[2]
    assert any(burner in name for name in foreign(records, rank=1))


def test_what_a_feed_sleeps_is_waiting(tmp_path: Path, two_cpus: tuple[int, int]) -> None:
    flags = ("--strategy", sleepy.NAME, "--batch-size", "2", "--world-sizes", "2")
    report, _ = measured(tmp_path, *flags, "--kinds", "exchange,each,together")
    (row,) = report["rows"]
    causes = {cause: abs(part or 0.0) for cause, part in row["breakdown"].items()}
    assert causes["waiting"] == max(causes.values()), causes
    assert causes["waiting"] > 2 * max(causes["exchange_cpu"], causes["unexplained"]), causes


def test_windows_that_a_burner_disturbs_now_and_then_are_measured_again(
    tmp_path: Path, two_cpus: tuple[int, int]
) -> None:
    with burning(two_cpus[1], busy_s=1, idle_s=3) as burner:
        report, records = measured(tmp_path, "--strategy", "fake:a", "--windows", "10")
    assert any(rank.disturbed for record in records for rank in record.ranks)
    assert all(len(rank.windows) == 10 for record in records for rank in record.ranks)
    assert any(burner in name for name in foreign(records, rank=1))
    assert any("repeated" in note and PROGRAM in note for note in notes(report)), notes(report)


def test_whoever_has_the_second_core_of_a_rank_is_named_though_its_processes_live_briefly(
    tmp_path: Path, two_cpus: tuple[int, int]
) -> None:
    with burning(two_cpus[1], lives_s=0.02) as burner:
        report, records = measured(tmp_path, "--strategy", "fake:a", "--cpus-per-rank", "2", ranks=1)
    assert {len(rank.cpus) for record in records for rank in record.ranks} == {2}
    windows = [window for record in records for rank in record.ranks for window in rank.windows]
    shared = [Canary(one.canary_s, one.canary_queued_s).is_shared for one in windows if one.canary_s is not None]
    assert sum(shared) > len(shared) / 2, shared
    assert any(burner in name for name in foreign(records, rank=0))
    assert any(note.startswith("foreign load") and PROGRAM in note for note in notes(report)), notes(report)
