"""DLLogger, MLPerf, DLBS and TensorFlow's models: units that come late, inference, starts that count in means."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from scaling.tools.importers.found import Given
from tests.support.imported_logs import SAMPLES, only_row, refusal, written

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
    """As Hydra marks them with -prepend-rank."""
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
