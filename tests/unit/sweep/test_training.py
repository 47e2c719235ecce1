"""Trainings to an accuracy in a sweep, and predictions before points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import analyse
from scaling.plan import config
from scaling.records.events import Failed, Finished
from scaling.records.task import Evaluate, Finish, Train
from scaling.report.material import Material
from scaling.workloads import models, weights
from tests.support.inline import Launch, Run

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
    said = dict(Material(run.header, run.records).doc.facts)
    assert "on 256 of 1,437 samples, held-out top-1 on 100 of 360 samples" in said["trained"]


def test_rank_0_saves_what_was_learnt_once_and_for_all(tmp_path: Path) -> None:
    file = tmp_path / "learnt.npz"
    run = trained(tmp_path, epochs=1, save_weights=str(file))
    (record,) = run.records
    results = [rank.result for rank in record.ranks]
    assert [one.saved for one in results if one] == [str(file), ""]
    spec = replace(models.of(record.point.workload), weights=str(file))
    assert [name for name, _ in weights.draw(spec, seed=5)] == weights.names(spec)
    said = dict(Material(run.header, run.records).doc.facts)
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
