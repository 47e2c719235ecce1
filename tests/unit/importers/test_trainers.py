"""torchtitan, the Hugging Face Trainer, Lightning, AWS' FSDP: units, several ranks, what cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.tools.importers.found import Given
from tests.support.imported_logs import SAMPLES, only_row, refusal, written

TITAN = (SAMPLES / "torchtitan.log").read_text()
HF = (SAMPLES / "hf_trainer.log").read_text()
BAR = (SAMPLES / "lightning_bar.log").read_bytes().decode()
AWS = (SAMPLES / "aws_fsdp.log").read_text()
MONITOR = (SAMPLES / "lightning_monitor.log").read_text()
RESUMED = "  Continuing training from global step 288\n"
OLDER = "Building 1-D device mesh with ['dp_shard'], [8]"
NEWER = "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1"


def test_every_rank_of_torchtitan_prints_the_same_step(tmp_path: Path) -> None:
    """Neither ranks nor steps are added; the first step holds the start."""
    one_rank = "\n".join(line for line in TITAN.splitlines() if "rank1" not in line) + "\n"
    assert only_row(written(tmp_path, one_rank)).rate == 8 * 7286


def test_newer_torchtitan_tells_its_mesh_by_names(tmp_path: Path) -> None:
    assert only_row(written(tmp_path, TITAN.replace(OLDER, NEWER))).world_size == 16


@pytest.mark.parametrize(
    ("mesh", "devices"),
    [
        ("Building 0-D device mesh with [], []", 1),
        (f"{OLDER}    [rank0]:[titan] 2025-01-01 10:00:01,000 - root - INFO - Applied FSDP", 8),
        ("Building 2-D device mesh with ('dp', 'tp'), [4, 2]", 8),
    ],
)
def test_a_mesh_of_one_device_and_one_with_more_behind_it(mesh: str, devices: int, tmp_path: Path) -> None:
    assert only_row(written(tmp_path, TITAN.replace(OLDER, mesh))).world_size == devices


def test_two_trainings_of_the_hugging_face_trainer_are_not_their_middle(tmp_path: Path) -> None:
    faster = HF.replace("267.4", "367.4").replace("2.089", "2.870")
    assert faster != HF
    assert "several trainings, of 267.4 to 367.4 samples/s" in refusal(written(tmp_path, HF + faster))
    node = HF.replace("267.4", "267.9")
    assert only_row(written(tmp_path, HF + node, "nodes.log")).rate == pytest.approx(267.65)


def test_validation_of_torchtitan_is_no_training(tmp_path: Path) -> None:
    more = "[titan] validate step: 30  loss: 12.1  memory: 4.0GiB(4%)  tps: 90,000\n"
    assert only_row(written(tmp_path, TITAN + more)).rate == 58288


def test_samples_that_were_steps_are_refused(tmp_path: Path) -> None:
    """transformers#11818."""
    older = "{'train_runtime': 61.2, 'train_samples_per_second': 2.09, 'epoch': 3.0}\n"
    assert "before transformers 4.7" in refusal(written(tmp_path, older), Given(world_size=4))


def test_the_trainers_metrics_as_a_block(tmp_path: Path) -> None:
    block = """***** train metrics *****
  epoch                    =        3.0
  train_samples_per_second =    1,267.3
  train_steps_per_second   =      2.09
"""
    assert only_row(written(tmp_path, block), Given(world_size=4)).rate == 1267.3


def test_several_ranks_of_the_trainer_are_one(tmp_path: Path) -> None:
    assert only_row(written(tmp_path, HF + HF.splitlines()[-1].replace("267.4", "267.6") + "\n")).rate == 267.5


def test_a_bar_counts_samples_with_a_batch(tmp_path: Path) -> None:
    row = only_row(SAMPLES / "lightning_bar.log", Given(batch_size=32))
    assert (row.unit, row.batch_size) == ("samples", 32)
    assert row.rate == pytest.approx(0.8 * 32 * 4)


def test_a_bar_of_older_versions_has_no_epoch(tmp_path: Path) -> None:
    bar = "Training:  17%|#    | 3/18 [00:14<01:13,  4.87s/it, loss=2.3]\n"
    assert only_row(written(tmp_path, bar), Given(world_size=2)).rate == pytest.approx(1 / 4.87)


def test_devices_of_a_monitor_follow_from_its_two_rates(tmp_path: Path) -> None:
    text = (SAMPLES / "lightning_monitor.log").read_text().partition("\n")[2]
    assert only_row(written(tmp_path, text)).world_size == 4


@pytest.mark.parametrize("stage", ["validate", "test", "predict", "sanity_check"])
def test_a_monitor_of_another_stage_is_no_training(stage: str, tmp_path: Path) -> None:
    other = MONITOR.partition("\n")[2].replace("train|", f"{stage}|").replace("6", "9")
    assert only_row(written(tmp_path, MONITOR + other)).rate == 246.0
    assert "no whole bar" in refusal(written(tmp_path, other))


@pytest.mark.parametrize(
    ("before", "after"), [("train|", ""), ("train|", "train/"), ("train|device/", "train|device|")]
)
def test_a_monitor_has_no_stage_or_another_separator(before: str, after: str, tmp_path: Path) -> None:
    row = only_row(written(tmp_path, MONITOR.replace(before, after)))
    assert (row.rate, row.world_size) == (246.0, 4)


def epochs(*bars: str) -> str:
    """Two epochs of the same bars; `E` is the number of an epoch."""
    return "Starting with 2 processes\n" + "".join(
        bar.replace("E:", f"{epoch}:") + "\n" for epoch in (0, 1) for bar in bars
    )


OLD_BARS = (
    "Epoch E:  82%|##### | 82/100 [01:22<00:18,  1.00it/s, loss=0.3, v_num=0]",
    "Validating:  50%|###   | 9/18 [00:00<00:00, 50.0it/s]",
    "Epoch E: 100%|######| 100/100 [01:23<00:00,  1.20it/s, loss=0.3, v_num=0]",
)
NEW_BARS = (
    "Epoch E: 100%|######| 100/100 [01:40<00:00,  1.00it/s, v_num=0]",
    "Validation DataLoader 0: 100%|######| 50/50 [01:00<00:00,  0.83it/s]",
    "Epoch E: 100%|######| 100/100 [02:40<00:00,  0.62it/s, v_num=0, val_loss=1.0]",
)


@pytest.mark.parametrize("bars", [OLD_BARS, NEW_BARS, (NEW_BARS[0], NEW_BARS[2])])
def test_seconds_and_batches_of_validation_are_no_training(bars: tuple[str, ...], tmp_path: Path) -> None:
    assert only_row(written(tmp_path, epochs(*bars)), Given(batch_size=32)).rate == pytest.approx(64)


def test_a_bar_that_first_shows_after_its_validation_is_refused(tmp_path: Path) -> None:
    begun = "Epoch E:   0%|      | 0/100 [00:00<?, ?it/s]"
    said = "says no rate of epoch 0 before its validation"
    assert said in refusal(written(tmp_path, epochs(begun, *OLD_BARS[1:])))


def test_a_sanity_check_is_no_validation(tmp_path: Path) -> None:
    check = "Validation sanity check:  50%|###   | 1/2 [00:00<00:00,  2.0it/s]"
    assert only_row(written(tmp_path, epochs(check, *OLD_BARS))).rate == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HF.replace("  Gradient", RESUMED + "  Gradient"), "was resumed from global step 288"),
        (HF.replace("Num Epochs = 3", "Num Epochs = 30"), "was stopped early, at epoch 3 of 30"),
        (HF.replace("Num Epochs = 3", "Num Epochs = 4"), "was stopped early, at epoch 3 of 4"),
        (HF.replace("| 384/384", "| 128/384"), "was stopped early, at step 128 of 384"),
    ],
)
def test_the_trainers_rates_of_steps_that_were_not_run_are_refused(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("'epoch': 3.0", "'epoch': 2.53"),
        ("Num Epochs = 3", "Num Epochs = 9,223,372,036,854,775,807"),
        ("  Gradient", "  Continuing training from global step 0\n  Gradient"),
        ("100%|##########| 384/384", "100%|##########| 12/12"),
        ("Num Epochs = 3", "Num Epochs = ,"),
        ("100%|##########| 384/384", f"100%|##########| 1/{'9' * 5000}"),
    ],
)
def test_a_part_of_the_last_epoch_is_a_whole_training(before: str, after: str, tmp_path: Path) -> None:
    """With max_steps, with data that have no length, from step 0 on, with other bars, with no numbers."""
    assert before in HF
    assert only_row(written(tmp_path, HF.replace(before, after))).rate == 267.4


def test_speed_of_all_as_awss_code_counts_it_or_of_a_worker() -> None:
    own = Given(world_size=16, speed_of="worker")
    assert only_row(SAMPLES / "aws_fsdp.log", own).rate == pytest.approx(16 * 9.43)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TITAN.replace("device mesh", "mesh"), "add --world-size N"),
        (TITAN.replace(OLDER, NEWER.replace("shard=4", "shard=-1")), "add --world-size N"),
        ("\n".join(TITAN.splitlines()[:5]) + "\n", "has its first step alone"),
        (TITAN.replace("tps: ", "tps: x"), "no line of it is of a known tool"),
        (HF.replace("Total train", "Total of train"), "add --world-size N"),
        (
            HF.replace("'train_samples_per_second': 267.4", "'train_samples_per_second': 21.4"),
            "contradicts itself",
        ),
        (BAR.replace("processes", "process"), "add --world-size N"),
        (AWS, "add --world-size N"),
        (AWS.partition("\n")[0] + "\n", "add --world-size N"),
    ],
)
def test_what_is_refused(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text))


@pytest.mark.parametrize(("text", "loss"), [(TITAN, "12.220"), (AWS, "7.220")])
def test_a_loss_that_is_no_number_is_a_failure(text: str, loss: str, tmp_path: Path) -> None:
    assert loss in text
    row = only_row(written(tmp_path, text.replace(loss, "nan")), Given(world_size=8))
    assert (row.rate, row.failed) == (None, "the loss is no number")
