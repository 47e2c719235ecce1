"""tf_cnn_benchmarks: one total of many processes, inference, asynchronous servers, cut totals."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.importers.found import Given
from tests.support.imported_logs import SAMPLES, imported, only_row, refusal, written

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
def test_what_is_refused(before: str, after: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, TEXT.replace(before, after)))


def test_asynchronous_servers_are_marked(tmp_path: Path) -> None:
    assert not only_row(written(tmp_path, TEXT.replace("==========", "Sync:        False"))).synchronous


def test_a_loss_that_is_no_number_is_a_failure(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, TEXT.replace("8.815", "nan")))
    assert (row.rate, row.failed) == (None, "the loss is no number")


def test_a_total_whose_line_has_no_end_is_taken_where_steps_confirm_it(tmp_path: Path) -> None:
    cut = TEXT[: TEXT.index("204.75") + 5]
    assert only_row(written(tmp_path, cut)).rate == 204.7
    assert "ends in the middle" in refusal(written(tmp_path, "total images/sec: 204.7"), Given(world_size=2))


def test_launches_in_one_file_are_rows_of_their_own(tmp_path: Path) -> None:
    alone = TEXT.replace("64 global", "32 global").replace("20", "10")
    found = imported(written(tmp_path, alone + TEXT)).rows
    assert [(row.world_size, row.rate) for row in found] == [(1, 104.75), (2, 204.75)]
