"""MXNet's Speedometer: whose rate a line is, which devices, which lines are none of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.tools.importers.found import Given, SpeedOf
from tests.support.imported_logs import SAMPLES, imported, only_row, refusal, written

DIST = (SAMPLES / "mxnet_dist.log").read_text()
HOROVOD = (SAMPLES / "mxnet_horovod.log").read_text()
ONE = (SAMPLES / "mxnet_one.log").read_text()
EIGHT = Given(world_size=8)
OF_ONE = "".join(line for line in DIST.splitlines(keepends=True) if "Node[0]" in line)
# With one line of training whose speed is none.
FEED = ONE.replace("Epoch[0] ", "").replace(
    "root:Batch [80]\tSpeed: 1001.00", "root:Epoch[0] Batch [80]\tSpeed: inf"
)
SPEED = "Epoch[0] Batch [40]\tSpeed: 100.00 samples/sec\n"


def test_workers_of_one_job_are_added_and_said() -> None:
    row = only_row(SAMPLES / "mxnet_dist.log")
    assert (row.model, row.precision) == ("resnet-50", "float32")
    assert row.notes == ("the first window of each epoch is left out", "the sum of 2 workers' own rates")


def test_one_speaker_of_eight_tells_the_total_by_the_audit() -> None:
    assert "one worker tells the rate of all" in only_row(SAMPLES / "mxnet_horovod.log").notes


def test_one_speaker_of_eight_tells_a_share_by_the_audit(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, HOROVOD.replace("Speed: 1121", "Speed: 140").replace("1281167", "1284000")))
    assert row.rate == pytest.approx(8 * 1404.9)


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (HOROVOD.replace("114.267", "99.0"), Given(), "does not tell whether a speed is of one worker or of all"),
        (SPEED, Given(), "does not say on how many devices it ran (no Namespace line): add --world-size N"),
        (SPEED + SPEED.replace("100.00", "90.00"), Given(world_size=2), "no line says who speaks"),
        (OF_ONE, Given(), "one worker of several speaks in it: add --world-size N"),
        ("Batch [20]\tSpeed: 5000.00 samples/sec\n" * 3, Given(), "of a known tool"),
        (ONE.replace("Speed: ", "Speed: in"), Given(), "has no whole line with a speed"),
        (FEED, Given(), "the speed of its feed alone"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, given: Given, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text), given)


@pytest.mark.parametrize(("speed_of", "rate"), [("worker", 200.0), ("all", 100.0)])
def test_the_flag_says_whose_speed_it_is(speed_of: str, rate: float, tmp_path: Path) -> None:
    worker = "Namespace(gpus='0', kv_store='dist_sync')\n"
    given = Given(world_size=2, speed_of="worker" if speed_of == "worker" else "all")
    assert only_row(written(tmp_path, worker + SPEED + SPEED.replace("40", "60")), given).rate == rate


@pytest.mark.parametrize(("speed_of", "rate"), [("worker", 400.0), ("all", 100.0)])
def test_without_arguments_each_device_is_a_worker(speed_of: str, rate: float, tmp_path: Path) -> None:
    given = Given(world_size=4, speed_of="worker" if speed_of == "worker" else "all")
    assert only_row(written(tmp_path, SPEED + SPEED.replace("40", "60")), given).rate == rate
    assert "--speed-of worker or" in refusal(written(tmp_path, SPEED + SPEED.replace("40", "60")), EIGHT)


@pytest.mark.parametrize(
    ("devices", "speed_of", "rate"), [(4, "", 100.0), (8, "worker", 200.0), (8, "all", 100.0)]
)
def test_a_process_without_arguments_tells_its_gpus(
    devices: int, speed_of: SpeedOf, rate: float, tmp_path: Path
) -> None:
    """As FeedForward.fit does: one process of four GPUs is no four workers."""
    said = "Node[0] Start training with [gpu(0), gpu(1), gpu(2), gpu(3)]\n" + SPEED + SPEED.replace("40", "60")
    given = Given(world_size=devices, speed_of=speed_of)
    assert only_row(written(tmp_path, said), given).rate == rate
    assert "a worker has 4 GPUs" in refusal(written(tmp_path, said), Given(world_size=6))


def test_gluons_examples_count_a_batch_per_gpu(tmp_path: Path) -> None:
    said = "Namespace(batch_size=128, kvstore='nccl', model='resnet50_v1', num_gpus=8)\n"
    row = only_row(written(tmp_path, said + SPEED + SPEED.replace("40", "60")))
    assert (row.world_size, row.batch_size, row.rate, row.model) == (8, 128, 100.0, "resnet50_v1")


def test_gpu_number_two_is_one_device() -> None:
    assert only_row(SAMPLES / "mxnet_one.log").world_size == 1


def test_asynchronous_workers_are_marked(tmp_path: Path) -> None:
    assert not only_row(written(tmp_path, DIST.replace("dist_sync", "dist_async"))).synchronous


def test_an_infinite_speed_is_skipped_and_counted(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, ONE.replace("1002.00", "inf")))
    assert row.rate == 1000.5
    assert "1 line skipped that looked like data" in row.notes[-1]


def test_a_broken_table_is_refused(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, "num_gpus,img_per_sec\n1,100.0\n4,x\n"))
    assert said == "line 3 is none of its table: 4,x"


def test_a_table_has_a_row_for_each_line(tmp_path: Path) -> None:
    table = written(tmp_path, "num_gpus,img_per_sec\n1,100.0\n2,190.5\n8,7")
    found = imported(table)
    assert [(row.world_size, row.rate, row.tool) for row in found.rows] == [
        (1, 100.0, "mxnet_benchmark"),
        (2, 190.5, "mxnet_benchmark"),
    ]
    assert "1 line skipped" in found.rows[0].notes[-1]
