"""`--predict-first`: predictions stand in the run before any of the points that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scaling.errors import UsageError
from scaling.records import store
from scaling.records.run import Prediction, Question
from tests.support.inline import KINDS, Launch, Run

SIZES: dict[str, Any] = {
    "world_sizes": [1, 2, 4], "rounds": 2, "windows": 3, "predict_first": 2, "kinds": [*KINDS, "each"],
}  # fmt: skip


class Oracle:
    """Answers everything with 90 %, at the second look; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Sequence[Question]] = []
        self.stopped = self.looked = 0

    def __call__(self, run: Path, questions: Sequence[Question]) -> Oracle:
        self.known = {one.point.world_size for one in store.load(run)[1]}
        self.asked.append(questions)
        return self

    def answers(self) -> tuple[Prediction, ...] | None:
        self.looked += 1
        if self.looked < 2:
            return None
        return tuple(
            Prediction(
                point=one.point, nodes=one.nodes, registered_unix_s=5.0, up_to=2, efficiency=0.9,
                efficiency_low=0.85, efficiency_high=0.95,
            )
            for one in self.asked[-1]
        )  # fmt: skip

    def stop(self) -> None:
        self.stopped += 1


def lines(run: Run) -> list[str]:
    plain = [msgspec.json.decode(line) for line in (run.folder / store.FILE).read_bytes().splitlines()]
    return [f"{one['type']} {one['point']['kind']} N={one['point']['world_size']}" for one in plain[1:]]


def test_the_prediction_is_written_between_the_smaller_sizes_and_the_larger(tmp_path: Path) -> None:
    oracle = Oracle()
    run = Launch(4).sweep(tmp_path, predictor=oracle, **SIZES)
    found = lines(run)
    at = found.index("prediction exchange N=4")
    assert found.count("prediction exchange N=4") == 1
    assert {line[-1] for line in found[:at]} == {"1", "2"}
    assert {line[-1] for line in found[at + 1 :]} == {"4"}
    assert len(run.of(size=4)) == len(run.of(size=2)) == 2
    assert (oracle.known, oracle.stopped) == ({1, 2}, 1)
    (asked,) = oracle.asked
    assert [(one.point.kind, one.point.world_size, one.point.round, one.nodes) for one in asked] == [
        ("exchange", 4, 0, 1)
    ]
    assert [one.efficiency for one in store.predictions(run.folder)] == [0.9]


def test_without_the_flag_nothing_is_asked(tmp_path: Path) -> None:
    oracle = Oracle()
    run = Launch(4).sweep(tmp_path, predictor=oracle, **{**SIZES, "predict_first": None})
    assert not oracle.asked
    assert not store.predictions(run.folder)


def test_points_side_by_side_are_grouped_by_stage(tmp_path: Path) -> None:
    kinds = [*KINDS, "each"]
    fields = {**SIZES, "rounds": 1, "interleave": True, "kinds": kinds}
    run = Launch(4).sweep(tmp_path, predictor=Oracle(), **fields)
    epochs = {(one.point.world_size > 2, one.point.round, one.epoch) for one in run.records}
    assert len({epoch for later, number, epoch in epochs if number == 0}) == 2
    found = lines(run)
    assert {line[-1] for line in found[: found.index("prediction exchange N=4")]} == {"1", "2"}


def test_nothing_is_predicted_once_a_later_point_was_tried(tmp_path: Path) -> None:
    run = Launch(4).sweep(tmp_path, **SIZES)
    oracle = Oracle()
    kept = (run.folder / store.FILE).read_bytes().splitlines(keepends=True)
    (run.folder / store.FILE).write_bytes(b"".join(kept[:-1]))
    Launch(4).sweep(tmp_path, predictor=oracle, resume=run.folder, **SIZES)
    assert not oracle.asked
    assert not store.predictions(run.folder)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"predict_first": 1}, "--predict-first 1: at least 2"),
        ({"predict_first": 4}, "--predict-first 4: nothing is left to predict of --world-sizes 1,2,4: lower it"),
        (
            {"world_sizes": [1, 2], "predict_first": "half"},
            "--predict-first half: several devices must be measured",
        ),
        ({"target_ci": "1%"}, "--predict-first 2: its rounds are counted beforehand: leave --target-ci out"),
        ({"global_batch_size": 8}, "--predict-first 2: only weak scaling is predicted, not the batch rule"),
        (
            {"kinds": ["exchange", "solo", "comm"]},
            "--predict-first 2: add each to --kinds: one device alone is measured again beside the larger sizes",
        ),
    ],
)
def test_what_cannot_be_predicted_first_is_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Launch(4).sweep(tmp_path, **{**SIZES, **fields})
    assert str(refusal.value).startswith(said)
    assert not list(tmp_path.iterdir())


def test_half_is_of_the_largest(tmp_path: Path) -> None:
    run = Launch(4).sweep(tmp_path, predictor=Oracle(), **{**SIZES, "predict_first": "half"})
    assert run.header.config["predict_first"] == 2


def test_no_process_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    def full(run: Path, questions: Sequence[Question]) -> Oracle:
        raise OSError(28, "No space left on device")

    run = Launch(4).sweep(tmp_path, predictor=full, **SIZES)
    assert len(run.of(size=4)) == 2
    assert not store.predictions(run.folder)
