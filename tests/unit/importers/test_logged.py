"""Logs of benchmarks and trainers: units, starts, several ranks, refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.tools.importers.logs import Given
from scaling.tools.importers.tools import read_all
from tests.support.imported_logs import SAMPLES, imported, only_row, refusal, written

# Totals of several launches.

TEXT = (SAMPLES / "tf_cnn_2.log").read_text()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("training", "forward-only", "is of mode forward-only: nothing was trained"),
        ("training", "BenchmarkMode.EVAL", "nothing was trained"),
        ("total images/sec: 204.75", "total images/sec: 5", "a total of 5 images/sec, steps of 204.9 on 2"),
        ("total images/sec", "total images/s", "it was broken off"),
        ("32 per device", "48 per device", "a global batch of 64 with 48 per device"),
        ("32 per device", "32 per device\n  16 per device", "several batch sizes"),
        ("32 per device\n", "\n", "does not say on how many devices it ran: add --world-size N"),
    ],
)
def test_what_is_refused_tf_cnn(before: str, after: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, TEXT.replace(before, after)))


def test_processes_that_the_header_leaves_out_are_told_by_the_flag(tmp_path: Path) -> None:
    """benchmarks#84: 8 x 6.0 = 48.05."""
    text = (SAMPLES / "tf_cnn_8.log").read_text().replace("256 global", "32 global")
    assert "--world-size N must count devices" in refusal(written(tmp_path, text))
    assert only_row(written(tmp_path, text), Given(world_size=8)).world_size == 8
    assert "the log says 1" in refusal(written(tmp_path, text), Given(world_size=4))


def test_a_header_that_lists_all_ranks_of_horovod_contradicts_the_flag(tmp_path: Path) -> None:
    """kubeflow/mpi-operator, whose steps are of one process: 2 x 102.4 images/sec are 204.75."""
    text = re.sub(r"sec: 20[45]\.[389] ", "sec: 102.4 ", TEXT.replace("'/gpu:", "'horovod/gpu:"))
    assert text.count("102.4") == 3
    assert only_row(written(tmp_path, text)).world_size == 2
    assert "--world-size 4: the log says 2" in refusal(written(tmp_path, text), Given(world_size=4))


def test_asynchronous_servers_are_marked(tmp_path: Path) -> None:
    assert not only_row(written(tmp_path, TEXT.replace("==========", "Sync:        False"))).synchronous


def test_a_loss_that_is_no_number_is_a_failure(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, TEXT.replace("8.815", "nan")))
    assert (row.rate, row.failed) == (None, "the loss is no number")


def test_launches_in_one_file_are_rows_of_their_own(tmp_path: Path) -> None:
    alone = TEXT.replace("64 global", "32 global").replace("20", "10")
    found = imported(written(tmp_path, alone + TEXT)).rows
    assert [(row.world_size, row.rate) for row in found] == [(1, 104.75), (2, 204.75)]


def of_worker(task: int, global_batch: int = 64, launch: int = 0) -> str:
    """What one of two workers prints: the total of both, nearly the same."""
    return (
        TEXT.replace("['/gpu:0', '/gpu:1']", f"['/job:worker/replica:0/task:{task}/gpu:0']")
        .replace("64 global", f"{global_batch} global")
        .replace("204.75", f"204.{7 + task}{launch}")
    )


def test_workers_of_one_launch_are_no_launches(tmp_path: Path) -> None:
    """Their totals differ by a rounding: an interval of them would be invented."""
    logs = [written(tmp_path, of_worker(task), f"w{task}.log") for task in (0, 1)]
    with pytest.raises(
        UsageError, match=r"w1\.log: is of worker 1, .*w0\.log of worker 0.*give one log of each launch"
    ):
        read_all((log, Given()) for log in logs)
    both = imported(written(tmp_path, of_worker(0) + of_worker(1))).rows
    assert [(row.world_size, row.rate) for row in both] == [(2, 204.7)]


def test_one_worker_of_each_launch_and_size_is_read(tmp_path: Path) -> None:
    logs = [
        written(tmp_path, of_worker(0), "a.log"),
        written(tmp_path, of_worker(0, launch=1), "b.log"),
        written(tmp_path, of_worker(1, global_batch=128), "c.log"),
    ]
    found = [row for one in read_all((log, Given()) for log in logs) for row in one.rows]
    assert [(row.world_size, row.rate) for row in found] == [(2, 204.7), (2, 204.71), (4, 204.8)]


def test_totals_of_several_launches_without_headers_are_not_their_middle(tmp_path: Path) -> None:
    """As of `grep total *.log`."""
    totals = "total images/sec: 204.75\ntotal images/sec: 991.92\n"
    said = refusal(written(tmp_path, totals), Given(world_size=4))
    assert said == "has totals from 204.75 to 991.92, of several launches: split it"
    alike = written(tmp_path, totals.replace("204.75", "990.02"), "alike.log")
    assert only_row(alike, Given(world_size=4)).rate == 990.97


TWO, EIGHT = Given(world_size=2), Given(world_size=8)


# torchtitan, the Hugging Face Trainer, Lightning, AWS' FSDP: units, several ranks, what cannot be told.

TRAINERS_TEXT = (SAMPLES / "horovod_n1.log").read_text()


def test_the_total_alone_is_enough(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, "Total img/sec on 16 GPU(s): 1500.3 +-12.9"))
    assert (row.world_size, row.rate, row.batch_size, row.model) == (16, 1500.3, 0, "")


def test_two_launches_in_a_file_are_two_rows(tmp_path: Path) -> None:
    both = TRAINERS_TEXT + (SAMPLES / "horovod_n4.log").read_text()
    assert [(row.world_size, row.rate) for row in imported(written(tmp_path, both)).rows] == [
        (1, 112.2),
        (4, 432.8),
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("Total img/sec on 1 GPU(s): 112.2", "Total img/sec on 1 GPU(s): 912.2", "contradicts itself: 1 x 112.2"),
        ("Iter #1: 112.4", "Iter #1: 912.4", "its iterations are"),
        ("Number of GPUs: 1", "Number of GPUs: 2", "several numbers of devices: 1 (line 9), 2 (line 3)"),
        ("Total img/sec on 1 GPU(s): 112.2 +-0.4\n", "", "it was broken off"),
        ("112.2 +-0.4\n", "112.", "it was broken off"),
        ("Batch size: 32", "Batch size: 32\nBatch size: 64", "several batch sizes: 32 (line 2), 64 (line 3)"),
    ],
)
def test_what_contradicts_itself_is_refused(before: str, after: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, TRAINERS_TEXT.replace(before, after)))


def test_lines_that_only_look_like_data_are_shown(tmp_path: Path) -> None:
    row = only_row(
        written(tmp_path, TRAINERS_TEXT.replace("#1: 112.4 img", "#1: 1l2.4 img") + "Img/sec per GPU\n")
    )
    assert row.notes[1:] == (
        "2 lines skipped that looked like data: the first is line 7: Iter #1: 1l2.4 img/sec per GPU",
    )


TITAN = (SAMPLES / "torchtitan.log").read_text()
HF = (SAMPLES / "hf_trainer.log").read_text()
BAR = (SAMPLES / "lightning_bar.log").read_bytes().decode()
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
    one_rank = "".join(line for line in TITAN.splitlines(keepends=True) if "rank1" not in line)
    assert only_row(written(tmp_path, one_rank.replace(OLDER, mesh))).world_size == devices


def test_a_rank_above_the_number_of_devices_is_refused(tmp_path: Path) -> None:
    one = TITAN.replace(OLDER, "Building 0-D device mesh with [], []")
    assert "has rates of rank 1 on 1 devices" in refusal(written(tmp_path, one))


def test_two_trainings_of_the_hugging_face_trainer_are_not_their_middle(tmp_path: Path) -> None:
    faster = HF.replace("267.4", "367.4").replace("2.089", "2.870")
    assert faster != HF
    assert "has launches from 267.4 to 367.4 samples/s of one cell: split it" in refusal(
        written(tmp_path, HF + faster)
    )
    node = HF.replace("267.4", "267.9")
    row = only_row(written(tmp_path, HF + node, "nodes.log"))
    assert (row.rate, row.notes[-1]) == (
        267.4,
        "the lower median of 2 launches in this log, 267.4 to 267.9 samples/s",
    )


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
    bar = "Training:  17%|#    | 3/18 [00:14<01:13,  4.87s/it, loss=2.3, v_num=0]\n"
    assert only_row(written(tmp_path, bar), Given(world_size=2)).rate == pytest.approx(1 / 4.87)


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
    said = "has no whole bar of an epoch with its rate before a validation"
    assert said in refusal(written(tmp_path, epochs(begun, *OLD_BARS[1:])))


def test_a_second_training_whose_epochs_were_validated_is_refused(tmp_path: Path) -> None:
    slower = [bar.replace("1.00it/s", "0.50it/s") for bar in NEW_BARS]
    both = epochs(*NEW_BARS) + epochs(*slower).partition("\n")[2]
    assert "several rates of step 100 of epoch 1" in refusal(written(tmp_path, both))


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TITAN.replace("device mesh", "mesh"), "add --world-size N"),
        (TITAN.replace(OLDER, NEWER.replace("shard=4", "shard=-1")), "add --world-size N"),
        ("\n".join(TITAN.splitlines()[:5]) + "\n", "has only its first step"),
        (TITAN.replace("tps: ", "tps: x"), "no line of it is of a known tool"),
        (HF.replace("Total train", "Total of train"), "add --world-size N"),
        (
            HF.replace("'train_samples_per_second': 267.4", "'train_samples_per_second': 21.4"),
            "contradicts itself",
        ),
        (BAR.replace("processes", "process"), "add --world-size N"),
    ],
)
def test_trainers_what_is_refused(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text))


@pytest.mark.parametrize(("text", "loss"), [(TITAN, "12.220")])
def test_trainers_a_loss_that_is_no_number_is_a_failure(text: str, loss: str, tmp_path: Path) -> None:
    assert loss in text
    row = only_row(written(tmp_path, text.replace(loss, "nan")), Given(world_size=8))
    assert (row.rate, row.failed) == (None, "the loss is no number")
