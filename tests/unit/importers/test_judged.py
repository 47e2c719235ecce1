"""Logs of forms that further judges found unread or misread: two trainings, old tables, late bars."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaling.tools.importers.logs import Given
from tests.support.imported_logs import SAMPLES, imported, only_row, refusal, written

ONE, TWO, EIGHT = (Given(world_size=count) for count in (1, 2, 8))


# ---------------------------------------------------------------- several runs without a first line


def bar(epoch: int, rate: float, more: str = "") -> str:
    return f"Epoch {epoch}: 100%|####| 500/500 [01:00<00:00, {rate:.2f}it/s, v_num=0{more}]\n"


def test_a_first_epoch_that_comes_again_later_is_another_training(tmp_path: Path) -> None:
    first = bar(0, 8.0) + bar(1, 8.4) + bar(2, 8.4)
    assert only_row(written(tmp_path, first), ONE).rate == 8.4
    assert "several rates of step 500" in refusal(written(tmp_path, first + bar(0, 7.0)), ONE)
    interleaved = bar(0, 8.0) + bar(0, 7.0) + bar(1, 8.4) + bar(1, 8.4)
    assert only_row(written(tmp_path, interleaved), TWO).rate == 8.4


def test_tables_of_nccl_tests_that_differ_are_several_runs(tmp_path: Path) -> None:
    text = (SAMPLES / "nccl_tests.log").read_text()
    table = "".join(line for line in text.splitlines(keepends=True) if "Rank" not in line)
    lines = table.splitlines()
    slower = "\n".join(slowed(line) if line.split()[:1] and line.split()[0].isdigit() else line for line in lines)
    devices = Given(world_size=imported(SAMPLES / "nccl_tests.log").bandwidths[0].world_size)
    assert imported(written(tmp_path, table + table), devices).bandwidths
    assert "of several runs: split it" in refusal(written(tmp_path, table + slower), devices)


def slowed(line: str) -> str:
    """The row with a longer time; its bandwidths stay."""
    words = line.split()
    time = next(place for place, word in enumerate(words) if place > 1 and "." in word)
    return "  ".join([*words[:time], f"{2 * float(words[time]):.2f}", *words[time + 1 :]])


# ---------------------------------------------------------------- others

OLD_SHARES = """all_gather_perf -g 8 -b 4G -e 4G
       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  4294967296     134217728   float    30000  125.50  125.50  0e+00    30010  125.40  125.40  0e+00
"""


def test_old_tables_of_shares_have_one_bandwidth(tmp_path: Path) -> None:
    found = imported(written(tmp_path, OLD_SHARES), EIGHT).bandwidths
    assert [(one.collective, one.world_size, one.busbw_gbytes_per_s) for one in found] == [
        ("all_gather", 8, 125.5), ("all_gather", 8, 125.4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        ", val_loss=0.5",
        "Epoch 0, global step 250: 'val_acc' reached 0.1 (best 0.1), saving model to 'a.ckpt'",
    ],
)
def test_a_bar_with_a_metric_of_validation_has_its_seconds(more: str, tmp_path: Path) -> None:
    late = bar(0, 5.0, more)
    assert "before a validation" in refusal(written(tmp_path, late), ONE)
    shown = bar(1, 8.3).replace("500/500", "250/500") + bar(1, 8.4, ", val_loss=0.5")
    assert only_row(written(tmp_path, late + shown), ONE).rate == 8.4


SAGEMAKER = """[1,mpirank:0,algo-1]<stdout>:#015Epoch 0:   0% 0/40 [00:00<?, ?it/s]
[1,mpirank:0,algo-1]<stdout>:#015Epoch 0:  50% 20/40 [00:04<00:04,  5.10it/s, loss=2.29, v_num=0]
[1,mpirank:0,algo-1]<stdout>:#015Validation DataLoader 0:   0% 0/20 [00:00<?, ?it/s]#033[A
[1,mpirank:0,algo-1]<stdout>:#015Epoch 0: 100% 40/40 [00:04<00:00,  9.20it/s, loss=2.29, v_num=0, val_acc=0.1]
[1,mpirank:0,algo-1]<stdout>:#015Epoch 1:  50% 20/40 [00:04<00:04,  5.40it/s, loss=2.2, v_num=0, val_acc=0.1]
[1,mpirank:0,algo-1]<stdout>:#015Validation DataLoader 0: 100% 20/20 [00:00<00:00, 99.73it/s]#033[A
[1,mpirank:0,algo-1]<stdout>:#015Epoch 1: 100% 40/40 [00:04<00:00,  9.40it/s, loss=2.2, v_num=0, val_acc=0.2]
"""


def test_bars_of_sagemaker(tmp_path: Path) -> None:
    assert only_row(written(tmp_path, SAGEMAKER), TWO).rate == 5.4


def test_an_empty_log_and_stdin(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, "")) == "is empty"
    assert "save it first" in refusal(Path("-"))


@pytest.mark.parametrize(
    ("given", "name"), [("fp16", "float16"), ("Float16", "float16"), ("bfloat16", "bf16"), ("fp32", "float32")]
)
def test_a_precision_has_one_name(given: str, name: str, tmp_path: Path) -> None:
    text = (SAMPLES / "maxtext.log").read_text()
    text = re.sub("param dtype: .*", f"param dtype: {name}", text)
    row = only_row(written(tmp_path, text), Given(precision=given))
    assert row.precision == {"float16": "fp16", "float32": "fp32"}.get(name, name)
    assert "--precision fp8: the log says" in refusal(written(tmp_path, text), Given(precision="fp8"))
