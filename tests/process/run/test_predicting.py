"""Rank 0 has a run predicted by a process of its own, which must cost the run nothing."""

from __future__ import annotations

import time
from pathlib import Path

from scaling.records.run import Prediction, Question
from scaling.run.measuring import Asking
from tests.support.predicted_runs import HEADER, question, run
from tests.support.scripted_records import written


def answers(folder: Path, questions: list[Question]) -> tuple[Prediction, ...]:
    asking = Asking(folder, questions)
    try:
        while (found := asking.answers()) is None:
            time.sleep(0.01)
        return found
    finally:
        asking.stop()


def test_a_process_answers_each_question(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", (HEADER, run()))
    asked = [question(8, 4), question(16, 8)]
    found = answers(folder, asked)
    assert [(one.point, one.nodes, one.refused) for one in found] == [(one.point, one.nodes, "") for one in asked]
    assert all(one.efficiency is not None and 0.5 < one.efficiency < 0.85 for one in found)
    assert all(one.up_to == 4 and one.registered_unix_s > 0 for one in found)


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    (found,) = answers(tmp_path / "nowhere", [question(8, 4)])
    assert found.efficiency is None
    assert "nowhere: not a run" in found.refused


def test_a_process_is_ended_that_is_not_waited_for(tmp_path: Path) -> None:
    asking = Asking(tmp_path, [question(8, 4)])
    asking.stop()
    asking.stop()
    assert asking._process.returncode is not None
