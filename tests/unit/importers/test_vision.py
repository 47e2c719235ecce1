"""Logs of trainers of images: the forms of their versions, and lines that are no rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.tools.importers.logs import Given
from tests.support.imported_logs import SAMPLES, only_row, refusal, written

ONE, TWO, EIGHT = (Given(world_size=count) for count in (1, 2, 8))
ONE_OF_64 = Given(world_size=1, batch_size=64)


# ---------------------------------------------------------------- examples/imagenet


def step(at: int, now: float, mean: float, epoch: int = 0) -> str:
    return f"Epoch: [{epoch}][{at}/5005]\tTime {now:.3f} ({mean:.3f})\tData 0.001 (0.1)\tLoss 6.9 (6.9)\n"


def test_older_versions_count_from_0(tmp_path: Path) -> None:
    """The step after 20 s and 99 more take 69.5 s."""
    log = written(tmp_path, step(0, 20.0, 20.0) + step(99, 0.3, 0.695))
    assert only_row(log, ONE).rate == pytest.approx(99 / 49.5)
    assert only_row(log, ONE_OF_64).rate == pytest.approx(64 * 99 / 49.5)


def test_later_versions_count_from_1(tmp_path: Path) -> None:
    log = written(tmp_path, step(1, 20.0, 20.0) + step(100, 0.3, 0.695))
    assert only_row(log, ONE).rate == pytest.approx(99 / 49.5)


def test_lines_of_swin_transformer(tmp_path: Path) -> None:
    line = "INFO Train: [0/300][{}/2859]\teta 1:28:53 lr 0.1\ttime 0.3000 ({:.4f})\tloss 1.9 (1.9)\tmem 1MB\n"
    log = written(tmp_path, line.format(0, 20.0) + line.format(99, 0.695))
    assert only_row(log, ONE).rate == pytest.approx(99 / 49.5)


def test_a_wait_for_data_between_two_lines_counts(tmp_path: Path) -> None:
    log = written(tmp_path, step(1760, 0.3, 2.648) + step(1770, 0.2, 2.654) + step(2760, 0.2, 2.654))
    assert only_row(log, ONE).rate == pytest.approx(1 / 2.6646, rel=0.001)


def test_means_with_too_few_digits_are_refused(tmp_path: Path) -> None:
    log = written(tmp_path, step(4000, 0.2, 0.201) + step(4010, 0.2, 0.201))
    assert "enough digits" in refusal(log, ONE)
    assert "enough digits" in refusal(written(tmp_path, step(0, 20.0, 20.0), "b.log"), ONE)


def test_speed_of_apex_counts_all_devices(tmp_path: Path) -> None:
    line = "Epoch: [0][{}/5004]\tTime 0.303 (0.400)\tSpeed {} (700.0)\tLoss 6.9 (6.9)\tPrec@1 0.1 (0.2)\n"
    speeds = ((0, 20.512), (10, 840.512), (20, 846.512), (30, 844.884))
    log = written(tmp_path, "".join(line.format(at, speed) for at, speed in speeds))
    row = only_row(log, EIGHT)
    assert (row.unit, row.rate) == ("samples", 844.884)


def test_ranks_without_a_name_are_refused(tmp_path: Path) -> None:
    text = step(0, 20.0, 20.0) + step(0, 20.0, 20.0) + step(10, 0.3, 2.0) + step(10, 0.3, 4.0)
    assert "several rates of step 10" in refusal(written(tmp_path, text), TWO)


# ---------------------------------------------------------------- MetricLogger


def test_the_first_window_of_an_epoch_includes_its_start(tmp_path: Path) -> None:
    text = (SAMPLES / "metric_logger.log").read_text()
    start = "".join(
        line for line in text.splitlines(keepends=True) if "50/1251" not in line and "0/1251" not in line
    )
    first = text.partition("Epoch: [0]  [  20/")[0]
    assert "whose means include the start" in refusal(written(tmp_path, first), EIGHT)
    assert "no line of it is of a known tool" in refusal(written(tmp_path, start), EIGHT)


# ---------------------------------------------------------------- OpenMMLab

MMCV = """2021-07-14 13:52:26,135 - mmcls - INFO - Epoch [1][10/35]\tlr: 1.0e-02, eta: 0:10:35, time: 0.611, data_time: 0.2, loss: 1.4
2021-07-14 13:52:30,150 - mmcls - INFO - Epoch [1][20/35]\tlr: 1.0e-02, eta: 0:08:41, time: 0.400, data_time: 0.02, loss: 0.4
2021-07-14 13:52:37,151 - mmcls - INFO - Epoch(val) [1][20/35]\teta: 0:08:41, time: 0.100, data_time: 0.02, loss: 0.4
2021-07-14 13:52:43,027 - mmcls - INFO - Epoch [2][10/35]\tlr: 1.0e-02, eta: 0:07:28, time: 0.592, data_time: 0.2, loss: 0.3
2021-07-14 13:52:47,053 - mmcls - INFO - Epoch [2][20/35]\tlr: 1.0e-02, eta: 0:07:15, time: 0.400, data_time: 0.02, loss: 0.3
"""  # noqa: E501


def test_each_epoch_of_openmmlab_starts_its_loader(tmp_path: Path) -> None:
    assert only_row(written(tmp_path, MMCV), ONE).rate == 2.5
    batch = "data = dict(\n    samples_per_gpu=16,\n    val=dict(\n        samples_per_gpu=1,\n"
    row = only_row(written(tmp_path, batch + MMCV), EIGHT)
    assert (row.unit, row.batch_size, row.rate) == ("samples", 16, 320.0)


def test_epochs_with_one_window(tmp_path: Path) -> None:
    """The first epoch is left out."""
    text = "".join(line for line in MMCV.splitlines(keepends=True) if "[10/35]" in line)
    assert only_row(written(tmp_path, text), ONE).rate == pytest.approx(1 / 0.592)


def test_iterations_of_openmmlab(tmp_path: Path) -> None:
    text = MMCV.replace("Epoch [1]", "Iter ").replace("[20/35]", "[30/35]").partition("2021-07-14 13:52:43")[0]
    assert only_row(written(tmp_path, text), ONE).rate == 2.5


# ---------------------------------------------------------------- Detectron2


def test_older_lines_of_detectron2(tmp_path: Path) -> None:
    line = "[11/01 11:27:{}4 d2.utils.events]: eta: 8:05  iter: 1{}59  total_loss: 1.0  time: 0.5{}00  data_time: "
    text = "".join(line.format(at, at, at) + "0\n" for at in (1, 2, 0))
    assert only_row(written(tmp_path, text.replace("iter: 1059", "iter: 1359")), EIGHT).rate == 2.0


def test_detectron2_with_the_logger_of_a_program(tmp_path: Path) -> None:
    """facebookresearch/detectron2#2993."""
    text = (
        "2021-04-29 23:20:27,823 - INFO - detectron2.utils.events  -  eta: 0:08:24  iter: 719  total_loss: 0.84  "
        "loss_cls: 0.139  loss_mask: 0.5817  time: 1.8043  data_time: 0.0030  lr: 0.006  max_mem: 5216M\n"
        "Data time: 0.00s (0.19%), forward time: 0.920s (52.18%), backward time: 0.292s (16.56%)\n"
    )
    assert only_row(written(tmp_path, text), ONE).rate == pytest.approx(1 / 1.8043)


def test_a_scaled_batch_of_detectron2_is_refused(tmp_path: Path) -> None:
    text = (SAMPLES / "detectron2.log").read_text()
    scaled = "Auto-scaling the config to batch_size=32, learning_rate=0.04, max_iter=45000.\n"
    assert "several values of global batch" in refusal(written(tmp_path, text + scaled))


# ---------------------------------------------------------------- Ultralytics


def test_bars_of_later_versions(tmp_path: Path) -> None:
    old = "      {0}/3      10.4G     0.4     0.2    1578        640: 100%|████| 99/99 [01:52<00:00,  1.25s/it]\n"
    new = "      {0}/3      10.4G     0.4     0.2    1578        640: 100% ━━━━━━━━━━━━ 99/99 0.8it/s 1:52\n"
    validation = (
        "                 Class     Images      Box(P          R): 100%|████| 32/32 [00:16<00:00,  9.93it/s]\n"
    )
    for line in (old, new):
        text = "".join(line.format(epoch) + validation for epoch in (1, 2, 3))
        row = only_row(written(tmp_path, text), TWO)
        assert (row.tool, row.unit, row.rate) == ("ultralytics", "steps", 0.8)


def test_batches_of_yolo_are_of_all_devices_or_of_one(tmp_path: Path) -> None:
    text = "      0/3      4.3G     0.4     0.2    1578        640: 100%|████| 99/99 [01:52<00:00,  2.00it/s]\n"
    five = "train: weights=yolov5s.pt, cfg=, epochs=3, batch_size=64, imgsz=640, device=0,1, workers=8\n"
    seven = (
        "Namespace(adam=False, batch_size=32, epochs=3, total_batch_size=64, weights='yolov7.pt', world_size=2)\n"
    )
    row = only_row(written(tmp_path, five + text))
    assert (row.world_size, row.batch_size, row.rate) == (2, 32, 128.0)
    assert only_row(written(tmp_path, seven + text), TWO).unit == "steps"
