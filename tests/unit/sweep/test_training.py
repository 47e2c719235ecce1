"""Trainings to an accuracy in a sweep, and predictions before points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import analyse
from scaling.errors import UsageError
from scaling.plan import config
from scaling.records import store
from scaling.records.events import Failed, Finished
from scaling.records.run import Prediction, Question
from scaling.records.task import Evaluate, Finish, Train
from scaling.report.document import document
from scaling.workloads import models, weights
from tests.support.inline import KINDS, Launch, Run

# Trainings to an accuracy inside this process: which commands in which order, what is counted, when it ends.

# What the fake strategy takes every held-out digit for: 29 of 360 are a nought.
NOUGHTS = 29 / 360


def trained(folder: Path, *, size: int = 2, launch: Launch | None = None, **fields: Any) -> Run:
    asked = {"rounds": None, "kinds": config.KINDS, "epochs": 3, "image_size": 16, "batch_size": 64}
    return (launch or Launch(size)).sweep(
        folder, world_sizes=fields.pop("world_sizes", [size]), **{**asked, **fields}
    )


def test_epochs_and_evaluations_follow_each_other(tmp_path: Path) -> None:
    launch = Launch(2)
    run = trained(tmp_path, launch=launch)
    told = [told.command for told in launch.told if told.task.rank == 0]
    # 719 digits in the longest shard: 1437 / 2 rounded up; in batches of 64 these end within steps 12, 23 and 34.
    assert told == [
        Train(number=0, steps=12), Evaluate(number=0),
        Train(number=1, steps=11), Evaluate(number=1),
        Train(number=2, steps=11), Evaluate(number=2),
        Finish(),
    ]  # fmt: skip
    (record,) = run.records
    assert isinstance(record.outcome, Finished)
    assert [len(rank.windows) for rank in record.ranks] == [3, 3]
    assert [rank.warmup for rank in record.ranks] == [(), ()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_held_out_digit_is_counted_once(tmp_path: Path, size: int) -> None:
    run = trained(tmp_path, size=size, epochs=1)
    (row,) = analyse(run.records).trainings
    assert row.held_out == 360
    assert row.top1 == pytest.approx([NOUGHTS])
    assert sum(map(sum, row.confusion)) == 360
    assert [sum(column) for column in zip(*row.confusion, strict=True)] == [360, *[0] * 9]


def test_a_part_of_the_data_is_an_epoch_and_the_report_says_so(tmp_path: Path) -> None:
    launch = Launch(2)
    run = trained(tmp_path, launch=launch, epochs=1, train_samples=256, test_samples=100)
    assert next(told.command for told in launch.told if told.task.rank == 0) == Train(number=0, steps=2)
    (row,) = analyse(run.records).trainings
    assert (row.held_out, row.data_samples) == (100, {"train": 1437, "test": 360})
    said = {entry.label: "".join(map(str, entry.phrase)) for entry in document(run.header, run.records).facts}
    assert "on 256 of 1,437 samples, held-out top-1 on 100 of 360 samples" in said["trained"]


def test_rank_0_saves_what_was_learnt_once_and_for_all(tmp_path: Path) -> None:
    file = tmp_path / "learnt.npz"
    run = trained(tmp_path, epochs=1, save_weights=str(file))
    (record,) = run.records
    results = [rank.result for rank in record.ranks]
    assert [one.saved for one in results if one] == [str(file), ""]
    spec = replace(models.of(record.point.workload), weights=str(file))
    assert [name for name, _ in weights.draw(spec, seed=5)] == weights.names(spec)
    said = {entry.label: "".join(map(str, entry.phrase)) for entry in document(run.header, run.records).facts}
    assert said["weights"] == f"saved to {file}"


def test_a_file_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    run = trained(tmp_path, epochs=1, save_weights=str(tmp_path / "none/learnt.npz"))
    (record,) = run.records
    assert isinstance(record.outcome, Finished)
    (row,) = analyse(run.records).trainings
    assert row.top1
    (warning,) = record.warnings
    assert "the weights are not saved" in warning.text
    assert "none/learnt.npz: No such file or directory" in warning.text


def test_it_ends_once_the_target_is_reached(tmp_path: Path) -> None:
    run = trained(tmp_path, target_top1=5.0)
    (row,) = analyse(run.records).trainings
    assert (len(row.top1), row.reached) == (1, 1)
    assert row.target_s == pytest.approx(row.train_s)


def test_a_target_that_is_not_reached_takes_all_epochs(tmp_path: Path) -> None:
    (row,) = analyse(trained(tmp_path, target_top1=50.0).records).trainings
    assert (len(row.top1), row.reached, row.target_s) == (3, 0, None)


def test_seeds_and_rules_are_points_of_their_own_and_one_device_needs_no_rule(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "seeds": [0, 1],
        "lr_scale": ["linear", "none"],
        "world_sizes": [1, 2],
        "lr": 0.1,
        "epochs": 1,
    }
    run = trained(tmp_path, **fields)
    assert sorted(
        (record.point.world_size, record.point.regime.rate, record.point.regime.seed)
        for record in run.records
        if record.point.regime
    ) == [(1, 0.1, 0), (1, 0.1, 1), (2, 0.1, 0), (2, 0.1, 1), (2, 0.2, 0), (2, 0.2, 1)]
    rows = analyse(run.records).trainings
    assert [(row.world_size, row.regime.lr_scale, row.seeds) for row in rows] == [
        (1, "none", (0, 1)), (2, "none", (0, 1)), (2, "linear", (0, 1)),
    ]  # fmt: skip
    assert analyse(run.records).rows == ()


def test_a_loss_that_is_no_number_ends_the_training_and_says_so(tmp_path: Path) -> None:
    run = trained(tmp_path, option=["fail=nan", "fail_kind=train", "fail_step=15"])
    (record,) = run.records
    assert isinstance(record.outcome, Failed)
    assert record.outcome.cause == "nan-loss"
    assert [len(rank.evaluations) for rank in record.ranks] == [1, 1]


def test_a_resumed_run_trains_what_lacks(tmp_path: Path) -> None:
    first = trained(tmp_path, seeds=[0], epochs=1)
    whole = trained(tmp_path, seeds=[0, 1], epochs=1, resume=first.folder)
    assert whole.records[0] == first.records[0]
    assert [record.point.regime.seed for record in whole.records if record.point.regime] == [0, 1]


# `--predict-first`: predictions stand in the run before any of the points that they are about.

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
            "--predict-first half: no size above 1 of --world-sizes",
        ),
        ({"target_ci": "1%"}, "--predict-first 2: its number of rounds is fixed: leave --target-ci out"),
        ({"global_batch_size": 8}, "--predict-first 2: only weak scaling is predicted, not the batch rule"),
        (
            {"kinds": ["exchange", "solo", "comm"]},
            "--predict-first 2: add each to --kinds: its baselines are repeated with the larger sizes",
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
