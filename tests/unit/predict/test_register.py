"""What is predicted of points before they are measured: each from its own curve, or why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.records.run import Prediction, Question
from scaling.tools.predict import asking, evidence, priors
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.forecast import forecasts, outlook
from scaling.tools.predict.register import __main__
from scaling.tools.predict.register import __main__ as command
from tests.support.predicted_runs import HEADER, question, run
from tests.support.scripted_records import written

BELIEVED = priors.read()


def asked(*questions: Question, **changes: object) -> tuple[Prediction, ...]:
    return __main__.answers(HEADER, run(**changes), questions, BELIEVED, 7.0)  # type: ignore[arg-type]


def test_it_is_what_the_command_predicts_of_the_same_run() -> None:
    (found,) = asked(question(16, 8))
    case = evidence.case(HEADER, run())
    (row,) = forecasts(outlook(case, BELIEVED), asking.world_sizes(Asked(world_sizes="16"), case))
    assert row.at.nodes == 8
    # To rounding: how a library's threads divide a sum is not the same in every process.
    said = (found.efficiency, found.efficiency_low, found.efficiency_high, found.samples_per_s)
    assert said == pytest.approx((row.efficiency, row.low, row.high, row.samples_per_s), rel=1e-12)
    assert (found.claimed, found.up_to) == (row.claimed, 4)
    assert (found.registered_unix_s, found.refused) == (7.0, "")


def test_what_a_prediction_notes_is_written_down_with_it() -> None:
    (found,) = asked(question(16, 8))
    assert found.notes == outlook(evidence.case(HEADER, run()), BELIEVED).doubts
    assert found.notes[0].startswith("the measurements are unlike all published clusters")


def test_the_nodes_are_those_that_the_sweep_will_use() -> None:
    few, many = asked(question(8, 2), question(8, 8))
    assert few.efficiency is not None
    assert many.efficiency is not None
    assert (few.nodes, many.nodes) == (2, 8)
    assert few.efficiency != many.efficiency


def test_each_point_is_of_its_own_curve() -> None:
    (found,) = asked(question(8, 4, options={"wire": "fp16"}))
    assert found.refused.startswith("--strategy fake:a --interconnect auto: the run has no such exchange")


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (question(512, 256), "more than 256, 64 times the largest measured"),
        (question(8, 4, servers=1), "1 parameter servers on 4 nodes: only one per node is predicted"),
    ],
)
def test_what_may_not_be_claimed_is_refused(one: Question, said: str) -> None:
    (found,) = asked(one)
    assert said in found.refused
    assert found.efficiency is None


def test_an_unsound_run_refuses_all_and_says_so_once_each() -> None:
    found = asked(question(8, 4), question(16, 8), step_s={1: 0.1})
    assert ["one usable exchange" in one.refused for one in found] == [True, True]


def test_questions_must_be_json(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", (HEADER, run()))
    with pytest.raises(UsageError, match="standard input: not a JSON array of points and their nodes"):
        command.register(folder, b"nonsense")
