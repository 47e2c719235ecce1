"""How studies start runs: a point that fails costs its cell and not the study's table; Ctrl-C is the run's too."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.studies import _addfor as addfor
from launch.studies import _beeva as beeva
from launch.studies import _study as study

QUICK = ("--strategy", "fake:a", "--rounds", "1", "--windows", "3", "--window-s", "0.02", "--no-page")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    return tmp_path


def test_a_failed_point_is_a_row_of_the_report(results: Path) -> None:
    (results / "fails" / "older").mkdir(parents=True)
    found = study.sweep("fails", *QUICK, "--option", "fail=oom")
    assert found["exit_code"] == 1
    assert [row["failed"]["cause"] for row in found["rows"]] == ["oom"]
    assert study.worst([study.sweep("fails", *QUICK), found]) == 1


def test_a_run_that_never_began_is_no_older_one(results: Path) -> None:
    (results / "wrong" / "older").mkdir(parents=True)
    with pytest.raises(study.Failed) as failed:
        study.sweep("wrong", *QUICK, "--windows", "1")
    assert failed.value.args == (2,)


def test_what_runs_out_of_memory_is_a_cell_of_addfors_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = [
        {"batch_size": 2, "pass": name, "step_s": None, "over_smaller": None, "failed": {"cause": "oom"}}
        for name in ("forward", "backward")
    ]
    monkeypatch.setattr(addfor, "sweep", lambda *_flags: {"minibatches": batches, "exit_code": 1})
    assert addfor.main([]) == 1
    assert capsys.readouterr().out.count("out of memory") == 10


def test_fine_tuning_needs_weights_that_were_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beeva, "sweep", lambda *_flags: {"trainings": [], "exit_code": 1})
    assert beeva.main([]) == 1


# Longer than subprocess.run leaves a child before it kills it.
OBEYS = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGINT)
time.sleep(1)
open(sys.argv[1], "w").close()
"""


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """As in the foreground: a shell's background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_ctrl_c_is_obeyed_by_the_run_first(tmp_path: Path) -> None:
    with pytest.raises(study.Failed) as failed:
        study.obeyed([sys.executable, "-c", OBEYS, str(tmp_path / "table")])
    assert failed.value.args == (128 + signal.SIGINT,)
    assert (tmp_path / "table").exists()
