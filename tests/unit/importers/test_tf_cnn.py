"""tf_cnn_benchmarks: one total of many processes, inference, asynchronous servers, cut totals."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.tools.importers.found import Given
from scaling.tools.importers.tools import read_all
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


def test_processes_that_the_header_leaves_out_are_told_by_the_flag(tmp_path: Path) -> None:
    """benchmarks#84: 8 x 6.0 = 48.05."""
    text = (SAMPLES / "tf_cnn_8.log").read_text().replace("256 global", "32 global")
    assert "--world-size N must count devices" in refusal(written(tmp_path, text))
    assert only_row(written(tmp_path, text), Given(world_size=8)).world_size == 8
    assert "the log says 1" in refusal(written(tmp_path, text), Given(world_size=4))


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
    with pytest.raises(UsageError, match=r"w1\.log: is of worker 1, .*w0\.log of worker 0.*give one worker's log"):
        read_all(logs, None, Given())
    both = imported(written(tmp_path, of_worker(0) + of_worker(1))).rows
    assert [(row.world_size, row.rate) for row in both] == [(2, 204.7)]


def test_one_worker_of_each_launch_and_size_is_read(tmp_path: Path) -> None:
    logs = [
        written(tmp_path, of_worker(0), "a.log"),
        written(tmp_path, of_worker(0, launch=1), "b.log"),
        written(tmp_path, of_worker(1, global_batch=128), "c.log"),
    ]
    found = [row for one in read_all(logs, None, Given()) for row in one.rows]
    assert [(row.world_size, row.rate) for row in found] == [(2, 204.7), (2, 204.71), (4, 204.8)]


def test_totals_of_several_launches_without_headers_are_not_their_middle(tmp_path: Path) -> None:
    """As of `grep total *.log`."""
    totals = "total images/sec: 204.75\ntotal images/sec: 991.92\n"
    said = refusal(written(tmp_path, totals), Given(world_size=4))
    assert said == "tells of totals from 204.75 to 991.92 images/sec, of several launches: split it"
    alike = written(tmp_path, totals.replace("204.75", "990.02"), "alike.log")
    assert only_row(alike, Given(world_size=4)).rate == 990.97
