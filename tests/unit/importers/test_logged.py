"""DLLogger, MLPerf, DLBS and TensorFlow's models: units that come late, inference, starts that count in means."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from scaling.errors import UsageError
from scaling.tools.importers.logs import Given
from scaling.tools.importers.tools import read_all
from tests.support.imported_logs import SAMPLES, imported, only_row, refusal, written

# ---------------------------------------------------------------- test tf cnn


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


# ---------------------------------------------------------------- test logged

FILE = (SAMPLES / "dllogger_file.log").read_text()
STDOUT = (SAMPLES / "dllogger_stdout.log").read_text()
DLBS = (SAMPLES / "dlbs.log").read_text()
MLPERF = (SAMPLES / "mlperf.log").read_text()
HISTORY = (SAMPLES / "tf_official.log").read_text()
TWO, EIGHT = Given(world_size=2), Given(world_size=8)


def test_without_metadata_nobody_knows_what_is_counted(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, FILE.replace("METADATA", "X")))
    assert (row.unit, row.rate) == ("samples", 2901.0)


def test_steps_as_tuples_and_between_bars(tmp_path: Path) -> None:
    tuples = "".join(f"DLL 2021-03-23 11:48:38.82 - (0, {step}) total_ips : {rate} \n"
                     for step, rate in enumerate((90.5, 2879.1, 2888.2, 2894.2)))  # fmt: skip
    assert only_row(written(tmp_path, tuples), TWO).rate == 2888.2
    bars = STDOUT.replace("  train.total_ips", " | train.total_ips")
    assert only_row(written(tmp_path, bars), TWO).rate == 267.94


def test_compute_alone_says_that_the_wait_for_data_is_not_in_it(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, STDOUT.replace("train.total_ips", "train.compute_ips")), TWO)
    assert "compute_ips: without the wait for data" in row.notes


def test_a_broken_line_is_a_gap_that_is_told(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, STDOUT.replace("DLL 2020-10-05 12:00:03", "LL 2020-10-05 12:00:03")), TWO)
    assert row.notes[-1].startswith("1 line skipped that looked like data: line 3: LL 2020-10-05")


def test_the_last_value_of_a_key_wins(tmp_path: Path) -> None:
    again = "__results.time__= 92.75\n__results.throughput__= 2760\n"
    assert only_row(written(tmp_path, DLBS + again)).rate == 2760


def test_the_start_is_in_no_window_that_counts(tmp_path: Path) -> None:
    row = only_row(SAMPLES / "tf_official.log", EIGHT)
    assert (row.batch_size, row.notes) == (256, ("the median of windows after the first",))


def test_gpt3_of_mlperf_counts_tokens(tmp_path: Path) -> None:
    """5154997.27 on 10752 GPUs, as NVIDIA's log of v3.1 says: no sequences of 2048."""
    row = only_row(written(tmp_path, MLPERF.replace('"resnet"', '"gpt3"')), EIGHT)
    assert (row.unit, row.rate) == ("tokens", 20101.0)


@pytest.mark.parametrize("benchmark", ["dlrm", "dlrm_dcnv2"])
def test_dlrm_of_mlperf_says_one_average_of_all(benchmark: str, tmp_path: Path) -> None:
    one = "\n".join(MLPERF.replace("resnet", benchmark).splitlines()[:3]) + "\n"
    row = only_row(written(tmp_path, one), EIGHT)
    assert (row.rate, row.notes) == (9000.5, ("of the whole training",))


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (STDOUT, Given(), "add --world-size N"),
        (STDOUT.replace("train.total_ips", "val.total_ips"), TWO, "has no total_ips or compute_ips of a training"),
        (STDOUT.partition("\n")[0] + "\n", TWO, "has its first iteration alone"),
        (STDOUT.replace("267.44 img/s", "267.44 tokens/s"), TWO, "says several units: images, tokens"),
        (DLBS.replace('"training"', '"inference"'), Given(), "is of phase inference: nothing was trained"),
        (DLBS.replace("throughput__=1380", "throughput__=2380"), Given(), "contradicts itself"),
        (
            DLBS.replace("effective_batch__= 256", "effective_batch__= 250"),
            Given(),
            "250 in all with 64 per replica",
        ),
        (DLBS.replace("__results.throughput", "__result.throughput"), Given(), "has no results.throughput"),
        (DLBS.replace("effective", "eff") + "__exp.num_nodes__= 2\n", Given(), "add --world-size N"),
        (MLPERF, Given(), "add --world-size N"),
        (MLPERF.replace('"resnet"', '"hello"'), EIGHT, "is of no known benchmark (hello)"),
        (
            MLPERF.replace('"resnet"', '"llama31_405b"'),
            EIGHT,
            "is of llama31_405b: whether its throughput counts sequences or tokens cannot be told",
        ),
        ("\n".join(MLPERF.splitlines()[:3]) + "\n", EIGHT, "has its first throughput alone"),
        (MLPERF.replace("tracked_stats", "stats"), EIGHT, "has no tracked_stats with a throughput"),
        (HISTORY, Given(), "add --world-size N"),
        (HISTORY.partition("\n")[0] + "\n", EIGHT, "has its first window alone"),
    ],
)
def test_what_is_refused(text: str, given: Given, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text), given)


@pytest.mark.parametrize("benchmark", ["llama2_70b_lora", "llama31_8b"])
def test_llama_counts_sequences(benchmark: str, tmp_path: Path) -> None:
    row = only_row(written(tmp_path, MLPERF.replace('"resnet"', f'"{benchmark}"')), EIGHT)
    assert (row.unit, row.model) == ("sequences", benchmark)


def of_two_processes() -> str:
    return "".join(f"[{rank}] {line}\n" for line in HISTORY.splitlines() for rank in (1, 0))


@pytest.mark.parametrize(
    ("text", "whose", "rate", "batch"),
    [
        (of_two_processes(), "worker", 2 * 4865.76, 512),
        (of_two_processes(), "all", 4865.76, 256),
        (HISTORY, "worker", 8 * 4865.76, 2048),
        (HISTORY, "all", 4865.76, 256),
    ],
)
def test_whose_speed_several_processes_tell(
    text: str, whose: Literal["worker", "all"], rate: float, batch: int, tmp_path: Path
) -> None:
    row = only_row(written(tmp_path, text), Given(world_size=8, speed_of=whose))
    assert row.rate == pytest.approx(rate)
    assert row.batch_size == batch


def test_of_several_processes_nobody_guesses_whose_speed_it_is(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, of_two_processes()), EIGHT)
    assert said.startswith("has windows of 2 processes") and "--speed-of worker" in said
