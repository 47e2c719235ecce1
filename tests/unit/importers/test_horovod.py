"""Horovod's synthetic benchmarks: totals, several launches in a file, contradictions, what was broken off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.imported_logs import SAMPLES, imported, only_row, refusal, written

TEXT = (SAMPLES / "horovod_n1.log").read_text()


def test_the_total_alone_is_enough(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, "Total img/sec on 16 GPU(s): 1500.3 +-12.9"))
    assert (row.world_size, row.rate, row.batch_size, row.model) == (16, 1500.3, 0, "")


def test_two_launches_in_a_file_are_two_rows(tmp_path: Path) -> None:
    both = TEXT + (SAMPLES / "horovod_n4.log").read_text()
    assert [(row.world_size, row.rate) for row in imported(written(tmp_path, both)).rows] == [
        (1, 112.2),
        (4, 432.8),
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("Total img/sec on 1 GPU(s): 112.2", "Total img/sec on 1 GPU(s): 912.2", "contradicts itself: 1 x 112.2"),
        ("Iter #1: 112.4", "Iter #1: 912.4", "its iterations are"),
        ("Number of GPUs: 1", "Number of GPUs: 2", "several numbers of devices: 1, 2"),
        ("Total img/sec on 1 GPU(s): 112.2 +-0.4\n", "", "it was broken off"),
        ("112.2 +-0.4\n", "112.", "it was broken off"),
        ("Batch size: 32", "Batch size: 32\nBatch size: 64", "several batch sizes: 32, 64"),
    ],
)
def test_what_contradicts_itself_is_refused(before: str, after: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, TEXT.replace(before, after)))


def test_lines_that_only_look_like_data_are_shown(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, TEXT.replace("#1: 112.4 img", "#1: 1l2.4 img") + "Img/sec per GPU\n"))
    assert row.notes == (
        "2 lines skipped that looked like data: the first is line 7: Iter #1: 1l2.4 img/sec per GPU",
    )
