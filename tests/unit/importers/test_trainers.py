"""Logs of other trainers, of SuperBench, and bandwidths in JSON: what is refused, and what a number counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaling.tools.importers.logs import Given
from tests.support.imported_logs import SAID, SAMPLES, imported, only_row, refusal, written

TWO = Given(world_size=2)
COMPOSER, TIMM, ORBIT = ((SAMPLES / f"{name}.log").read_text() for name in ("composer", "timm", "tf_orbit"))
NO_TOTAL, RICH = ((SAMPLES / f"lightning_{name}.log").read_text() for name in ("no_total", "rich"))
NODE = (SAMPLES / "superbench.jsonl").read_text()
RCCL = (SAMPLES / "rccl_tests.json").read_text()
DUMPS = (SAMPLES / "nccl_inspector.log").read_text()


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("composer", "[Eval batch=1/10] Eval on eval data:\n\t Eval metrics/eval/MulticlassAccuracy: 0.4500\n"),
        ("timm", "Test: [   0/48]  Time: 1.234 (1.234)  Loss:   6.911 ( 6.911)  Acc@1:   0.195 (  0.195)\n"),
        (
            "tf_orbit",
            " eval | step:    200 | steps/sec:   60.0 | eval time:    0.8 sec | output: {'accuracy': 0.1}\n",
        ),
        ("superbench", '{"model-benchmarks:resnet/pytorch-resnet50/fp16_inference_throughput:0": 3000.0}\n'),
    ],
)
def test_an_evaluation_is_no_training(tool: str, text: str, tmp_path: Path) -> None:
    assert "no line of it is of a known tool" in refusal(written(tmp_path, text), TWO)
    assert refusal(written(tmp_path, text), TWO, tool).startswith("has no ")


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("composer.log", "[epoch=1][batch=12"),
        ("timm.log", "Train: 0 [  50"),
        ("tf_orbit.log", "train | step:    200"),
    ],
)
def test_the_start_alone_is_refused(name: str, second: str, tmp_path: Path) -> None:
    first = (SAMPLES / name).read_text().partition(second)[0]
    assert "has only " in refusal(written(tmp_path, first), SAID[name].given)


@pytest.mark.parametrize("name", ["composer.log", "timm.log"])
def test_another_batch_is_refused(name: str) -> None:
    assert "--batch-size 63: the log says" in refusal(SAMPLES / name, Given(batch_size=63))


@pytest.mark.parametrize(
    ("text", "mark", "again"),
    [
        (COMPOSER, "[epoch=1][batch=12", ("1280.0000", "640.0000")),
        (TIMM, "Train: 0 [ 100", ("2000.00/s", "1000.00/s")),
        (ORBIT, "train | step:    300", ("25.1", "50.1")),
    ],
)
def test_a_place_that_is_repeated_at_another_rate_is_another_training(
    text: str, mark: str, again: tuple[str, str], tmp_path: Path
) -> None:
    block = text[text.index(mark) :].partition("device/batches_per_sec")[0]
    assert "split it by launch" in refusal(written(tmp_path, text + "\n" + block.replace(*again)))


# ---------------------------------------------------------------- Composer


def test_digits_tell_the_devices_of_composer(tmp_path: Path) -> None:
    text = COMPOSER.replace("num_nodes", "nodes")
    assert only_row(written(tmp_path, text)).world_size == 16
    few = text.replace("device/samples_per_sec: 80", "device/samples_per_sec: 0")
    assert "add --world-size N" in refusal(written(tmp_path, few.replace("per_sec: 0.0625", "per_sec: 0.0001")))


def test_four_digits_of_small_rates_tell_the_devices(tmp_path: Path) -> None:
    window = "Train throughput/samples_per_sec: 2.7330\nTrain throughput/device/samples_per_sec: 0.1708\n"
    assert only_row(written(tmp_path, window + window)).world_size == 16


def test_batches_that_were_not_full_tell_no_batch(tmp_path: Path) -> None:
    assert only_row(written(tmp_path, COMPOSER.replace("sample: 6656", "sample: 6650"))).batch_size == 0


# ---------------------------------------------------------------- Lightning's bars

BAR = "Epoch {}: {}%|####| {}/90 [00:10<00:00, {}it/s, v_num=1{}]\n"
VALIDATION = "Validation DataLoader 0:  50%|##  | 5/10 [00:01<00:01, 5.00it/s]\n"
LATE = "has no whole bar of an epoch with its rate before a validation, whose seconds are in later bars"


def test_a_full_bar_with_a_result_of_the_validation_includes_its_seconds(tmp_path: Path) -> None:
    """It is the last state, which a terminal keeps alone."""
    last = BAR.format(3, 100, 90, "8.00", ", val_loss=1.2")
    assert refusal(written(tmp_path, last), TWO) == LATE
    shown = BAR.format(3, 50, 45, "9.00", "") + last
    assert only_row(written(tmp_path, shown), TWO).rate == 8.0
    started = "Epoch 3:   0%|    | 0/90 [00:00<?, ?it/s]\n" + last
    assert only_row(written(tmp_path, started), TWO).rate == 8.0
    assert only_row(written(tmp_path, last.replace("val_loss", "train_loss")), TWO).rate == 8.0


def test_a_log_that_begins_within_a_validation_has_no_rate_of_its_epoch(tmp_path: Path) -> None:
    bar = BAR.format(3, 90, 81, "8.00", "")
    assert refusal(written(tmp_path, VALIDATION + bar), TWO) == LATE
    fit = "Epoch 3:   0%|    | 0/90 [00:00<?, ?it/s]\n"
    assert only_row(written(tmp_path, VALIDATION + fit + bar), TWO).rate == 8.0


def test_a_sanity_check_is_no_skipped_line(tmp_path: Path) -> None:
    check = "Sanity Checking DataLoader 0: 100%|####| 2/2 [00:00<00:00, 9.00it/s] INFO Epoch 0: loss 1.0\n"
    row = only_row(written(tmp_path, check + BAR.format(0, 50, 45, "8.00", "")), TWO)
    assert not any("skipped" in note for note in row.notes)


# ---------------------------------------------------------------- timm


def test_timm_says_model_and_precision(tmp_path: Path) -> None:
    row = only_row(SAMPLES / "timm.log")
    assert (row.model, row.precision) == ("resnet50", "AMP")
    text = TIMM.replace(
        "Using native Torch AMP. Training in mixed precision.", "AMP not enabled. Training in float32."
    )
    assert only_row(written(tmp_path, text)).precision == "fp32"


def test_images_of_an_update_are_a_multiple_of_the_devices(tmp_path: Path) -> None:
    text = re.sub("total 4,", "total 3,", TIMM)
    assert refusal(written(tmp_path, text)) == "has 1024 images per update, no multiple of 3 devices"


def updates(*of: tuple[int, int, float, float]) -> str:
    """Lines of epoch, update, seconds, images per second."""
    return "".join(
        f"Train: {epoch} [{step:>4d}/312 ( 16%)]  Loss: 6.95 (6.96)  "
        f"Time: {seconds:.3f}s, {rate:>7.2f}/s  (0.900s, 900.00/s)\n"
        for epoch, step, seconds, rate in of
    )


def test_each_epochs_first_update_is_left_out(tmp_path: Path) -> None:
    text = updates((0, 0, 2.0, 64.0), (0, 50, 0.064, 2000.0), (1, 0, 2.0, 64.0), (1, 50, 0.061, 2100.0))
    assert only_row(written(tmp_path, text), TWO).rate == 2050


def test_all_lines_together_tell_the_batch(tmp_path: Path) -> None:
    """0.063 s x 2016/s may be 126 to 128, 0.065 s x 1984/s 128 or 129."""
    text = updates((0, 0, 2.0, 64.0), (0, 50, 0.065, 1984.0), (0, 100, 0.063, 2016.0))
    assert only_row(written(tmp_path, text), Given(world_size=1)).batch_size == 128


def test_digits_that_leave_several_batches_tell_none(tmp_path: Path) -> None:
    text = updates((0, 0, 0.012, 500.0), (0, 50, 0.012, 10000.0), (0, 100, 0.012, 10100.0))
    row = only_row(written(tmp_path, text), TWO)
    assert (row.rate, row.batch_size) == (10050.0, 0)


# ---------------------------------------------------------------- Orbit


def test_examples_per_second_are_better_than_rounded_steps(tmp_path: Path) -> None:
    """TensorFlow's models print both."""
    text = (
        ORBIT.replace("INFO:tensorflow:Using MirroredStrategy", "Using")
        + (SAMPLES / "tf_official.log").read_text()
    )
    assert only_row(written(tmp_path, text), SAID["tf_official.log"].given).tool == "tf_official"


def test_the_devices_of_one_worker_of_several_are_not_all(tmp_path: Path) -> None:
    text = ORBIT.replace("/job:localhost/", "/job:worker/")
    assert refusal(written(tmp_path, text)) == "does not say on how many devices it ran: add --world-size N"


def test_a_batch_makes_samples_of_steps() -> None:
    row = only_row(SAMPLES / "tf_orbit.log", Given(batch_size=32))
    assert (row.rate, row.unit, row.batch_size) == (25.0 * 2 * 32, "samples", 32)


def test_steps_with_one_digit_are_refused(tmp_path: Path) -> None:
    """0.1 may be 0.05."""
    text = ORBIT.replace("  24.9", "   0.1").replace("  25.1", "   0.1").replace("  25.0", "   0.1")
    assert refusal(written(tmp_path, text)) == "says 0.1 steps/sec with one decimal: the rounding is over 5 %"


# ---------------------------------------------------------------- Lightning's other bars


@pytest.mark.parametrize("text", [NO_TOTAL, RICH])
def test_the_first_epoch_of_a_bar_is_left_out(text: str, tmp_path: Path) -> None:
    row = only_row(written(tmp_path, text), Given(batch_size=16))
    assert row.unit == "samples"
    assert row.rate == pytest.approx(8.1 * 2 * 16)


def test_a_bar_of_lightning_1_without_a_total(tmp_path: Path) -> None:
    bars = "".join(f"Epoch {n}: 200it [00:25, {rate}it/s, loss=2.1]\n" for n, rate in enumerate((5.0, 8.0, 8.2)))
    assert only_row(written(tmp_path, bars), TWO).rate == pytest.approx(8.1)


def test_rich_without_a_total(tmp_path: Path) -> None:
    text = RICH.replace("/200 ", "/-- ").replace("0:00:00 ", "-:--:-- ").replace("/2 ", "/-2 ")
    assert only_row(written(tmp_path, text)).rate == pytest.approx(8.1)


# ---------------------------------------------------------------- SuperBench


def test_superbench_does_not_say_how_many_trained_together() -> None:
    assert "(SuperBench does not write it): add --world-size N" in refusal(SAMPLES / "superbench_summary.json")


def test_each_model_and_precision_is_a_row_and_nodes_are_launches(tmp_path: Path) -> None:
    other = NODE.replace("resnet/pytorch-resnet50", "gpt/pytorch-gpt2-small").replace("fp16_train", "bf16_train")
    rows = imported(written(tmp_path, NODE + other)).rows
    assert [(row.model, row.precision, row.rate) for row in rows] == [
        ("resnet50", "fp16", 700.5),
        ("gpt2-small", "bf16", 700.5),
    ]


def test_superbench_of_2021_ends_in_throughput_train(tmp_path: Path) -> None:
    text = '{"node": "a", "bert_models/pytorch-bert-large/throughput_train_float16": 154.84}\n'
    row = only_row(written(tmp_path, text), TWO)
    assert (row.model, row.precision, row.rate) == ("bert-large", "fp16", 309.68)


# ---------------------------------------------------------------- bandwidths


@pytest.mark.parametrize("name", ["rccl_tests.json", "rccl_tests_lines.json"])
def test_rccl_tests_writes_a_list_or_lines(name: str) -> None:
    found = imported(SAMPLES / name).bandwidths
    assert [(one.size_bytes, one.in_place, round(one.busbw_gbytes_per_s, 1)) for one in found] == [
        (8388608, False, 146.8),
        (8388608, True, 145.3),
        (16777216, False, 183.5),
        (16777216, True, 182.4),
    ]
    assert {(one.collective, one.world_size, one.dtype, one.redop, one.wrong) for one in found} == {
        ("all_reduce", 8, "float", "sum", 0)
    }


def test_wrong_values_of_rccl_tests_are_kept(tmp_path: Path) -> None:
    found = imported(written(tmp_path, RCCL.replace('"wrong":"0"', '"wrong":"3"', 1))).bandwidths
    assert [one.wrong for one in found] == [3, 0, 0, 0]
    found = imported(written(tmp_path, RCCL.replace('"wrong":"0"', '"wrong":"N/A"'))).bandwidths
    assert {one.wrong for one in found} == {None}


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (RCCL.replace('"ranks":8', '"ranks":16'), Given(), "busbw / algbw of an all-reduce on 16 devices is 1.88"),
        (RCCL, TWO, "--world-size 2: the log says 8"),
        (RCCL.replace("AllReduce", "AllGather", 1), Given(), "has several collectives or numbers of devices"),
        (RCCL.replace('"busBw":', '"busBw":"x'), Given(), "no line of it is of a known tool"),
        (DUMPS.replace('"n_ranks":4', '"n_ranks":2'), Given(), "is 1.00, not 1.50"),
        (DUMPS, TWO, "--world-size 2: the log says 4"),
        (DUMPS.replace("kernel_gpu", "collective_cpu"), Given(), "has times of the host (collective_cpu)"),
        (DUMPS.replace("}\n", "\n"), Given(), "has no line that is whole"),
    ],
)
def test_what_is_refused_of_bandwidths(text: str, given: Given, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text), given)


def test_the_dump_with_the_lower_median_stands_for_a_size(tmp_path: Path) -> None:
    more = DUMPS.replace('"coll_msg_size_bytes":268435456', '"coll_msg_size_bytes":1024')
    found = imported(written(tmp_path, more + DUMPS)).bandwidths
    assert [(one.size_bytes, one.time_s, one.world_size) for one in found] == [
        (1024, 0.001, 4),
        (268435456, 0.001, 4),
    ]


def test_a_cut_dump_is_skipped_and_counted(tmp_path: Path) -> None:
    found = imported(written(tmp_path, DUMPS[: len(DUMPS) - 20]))
    assert len(found.bandwidths) == 1
    assert "1 line skipped that looked like data" in found.notes[-1]
