"""Logs of Lightning, and bandwidths in JSON: what is refused, and what a number counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.tools.importers.logs import Given
from tests.support.imported_logs import SAMPLES, imported, only_row, refusal, written

TWO = Given(world_size=2)
NO_TOTAL = (SAMPLES / "lightning_no_total.log").read_text()
RCCL = (SAMPLES / "rccl_tests.json").read_text()


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


# ---------------------------------------------------------------- Lightning's other bars


def test_the_first_epoch_of_a_bar_is_left_out(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, NO_TOTAL), Given(batch_size=16))
    assert row.unit == "samples"
    assert row.rate == pytest.approx(8.1 * 2 * 16)


def test_a_bar_of_lightning_0_of_data_without_a_length(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#3403."""
    bar = "Epoch {}: : {}it [08:13,  {}it/s, loss=0.111, v_num=0]\n"
    bars = bar.format(26, 632, 1.28) + bar.format(27, 634, 1.21)
    assert only_row(written(tmp_path, bars), TWO).rate == pytest.approx(1.21)


def test_a_bar_of_lightning_1_without_a_total(tmp_path: Path) -> None:
    bars = "".join(
        f"Epoch {n}: 200it [00:25, {rate}it/s, loss=2.1, v_num=0]\n" for n, rate in enumerate((5.0, 8.0, 8.2))
    )
    assert only_row(written(tmp_path, bars), TWO).rate == pytest.approx(8.1)


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
        (RCCL.replace('"ranks":8', '"ranks":16'), Given(), "says 16 devices, but its busbw / algbw is of 8"),
        (RCCL, TWO, "--world-size 2: the log says 8"),
        (RCCL.replace("AllReduce", "AllGather", 1), Given(), "has several collectives or numbers of devices"),
        (RCCL.replace('"busBw":', '"busBw":"x'), Given(), "no line of it is of a known tool"),
    ],
)
def test_what_is_refused_of_bandwidths(text: str, given: Given, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text), given)
