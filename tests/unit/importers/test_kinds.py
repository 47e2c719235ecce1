"""Logs that independent judges found misread: several trainings, wrong flags, cut numbers, lost launches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.tools.importers.logs import Given
from tests.support.imported_logs import SAID, SAMPLES, imported, is_near, only_row, refusal, written

SAMPLE = {path.name: path.read_text() for path in SAMPLES.iterdir()}
TF_CNN, HOROVOD, TITAN = SAMPLE["tf_cnn_2.log"], SAMPLE["horovod_n1.log"], SAMPLE["torchtitan.log"]
SIXTEEN, EIGHT = Given(world_size=16), Given(world_size=8)

# ---------------------------------------------------------------- several trainings in one file

# what stands before and after a rate, or the seconds of a step, in some sample
BEFORE = (
    "[Ss]peed: ", "[tw]ps: ", r"\(s\): ", "per [GC]PU: ", "images/sec: ", "_per_second': ", "_per_second': '",
    "samples_per_sec': ", "samples_per_sec: ", 'ips": ', "ips : ", 'throughput": ', "throughput__=",
    r'_throughput:\d": ', r"iteration \(ms\): ", "timing in s: ", ", seconds: ", "SamplesPerSec=",
    "Tokens/s/device: ", "steps/sec:   ", "samples/sec: ", "tok/sec: ", "tokens_per_sec: ", "_per_gpu:",
    "_second=", "wps=", "iter time: ", "Throughput: ", "tok/s=", r"FSDP=\d \| ", "\n1,",
)  # fmt: skip
AFTER = (
    " img/sec", " examples/second", "it/s", "s/it", r" ms \|", "ms, mfu", "/s  ", " tok/s", r"\)\tData", "  data",
    "  last_time", "ms/step", " images/sec",
)  # fmt: skip
RATE = re.compile("|".join([*(rf"(?<={text})[\d.,]*\d" for text in BEFORE), rf"[\d.]+(?={'|'.join(AFTER)})"]))


def halved(number: re.Match[str]) -> str:
    decimals = len(number[0].partition(".")[2])
    return f"{float(number[0].replace(',', '')) / 2:.{decimals}f}"


@pytest.mark.parametrize("name", SAID)
def test_a_second_training_at_half_the_rate(name: str, tmp_path: Path) -> None:
    said, text = SAID[name], SAMPLE[name].replace("\r", "\n").replace("\x1b", "")
    slower = RATE.sub(halved, text)
    assert slower != text
    try:
        rows = imported(written(tmp_path, re.sub(r"\[\d\dm", "", text + slower)), said.given).rows
    except UsageError:
        return
    first, second = (row.rate or 0.0 for row in rows)
    assert is_near(first, said.rate) and (is_near(second, said.rate / 2) or is_near(second, said.rate * 2))


def test_a_second_start_line_opens_a_launch(tmp_path: Path) -> None:
    smaller = TITAN.replace("[8]", "[4]").replace(" 7,28", " 7,48").replace(" 7,290", " 7,490")
    found = imported(written(tmp_path, TITAN + smaller)).rows
    assert [(row.world_size, row.rate) for row in found] == [(8, 58288.0), (4, 4 * 7486.0)]


def test_launches_of_a_cell_that_differ_little_have_a_note(tmp_path: Path) -> None:
    faster = TITAN.replace(" 7,28", " 7,38").replace(" 7,290", " 7,390")
    row = only_row(written(tmp_path, TITAN + faster))
    assert row.rate == 58288
    assert "the lower median of 2 launches in this log" in row.notes[-1]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("tf_cnn_2.log", "resnet50", "vgg16"),
    ],
)
def test_two_models_are_two_rows(name: str, before: str, after: str, tmp_path: Path) -> None:
    text = SAMPLE[name]
    found = imported(written(tmp_path, text + text.replace(before, after)), SAID[name].given).rows
    assert [row.model for row in found] == [
        before.rpartition(": ")[2].strip('"'),
        after.rpartition(": ")[2].strip('"'),
    ]


def test_ranks_that_print_nearly_the_same_step_are_one_training(tmp_path: Path) -> None:
    ranks = re.sub(r"\[rank\d\]:", "", TITAN)
    other = re.sub(r"( 7,2)(\d)(\d)  ", r"\g<1>\g<2>9  ", ranks)
    lines = "".join(f"{one}\n{two}\n" for one, two in zip(ranks.splitlines(), other.splitlines(), strict=True))
    assert is_near(only_row(written(tmp_path, lines)).rate, 58288)


# ---------------------------------------------------------------- flags against the log

RANK_7 = "".join(f"[rank7]: step: {step}  loss: 7.24  tps: 9.41  mfu: 1%\n" for step in range(3))


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        (
            "--num_gpus=8\n" + RANK_7,
            Given(world_size=12),
            "12: the log says 8 of a node (line 1: --num_gpus",
        ),
        ("num_processes: 8\n" + RANK_7, Given(world_size=16), "--world-size 16: the log says 8 (line 1"),
        (
            "train_batch_size: 256\n" + RANK_7,
            Given(world_size=8, batch_size=100),
            "--batch-size 100: the log says 256",
        ),
        (
            "GBS=256\n" + RANK_7,
            Given(world_size=8, batch_size=24),
            "--batch-size 24: the log says 256 (line 1: GBS",
        ),
        (RANK_7, Given(world_size=4), "has rates of rank 7 on 4 devices"),
        (
            SAMPLE["hf_trainer.log"].splitlines()[-1] + "\n",
            Given(world_size=4, batch_size=64),
            "267.4 samples/s and 2.089 steps/s with a batch of 256 in all",
        ),
    ],
)
def test_a_flag_that_disagrees_is_refused(text: str, given: Given, said: str, tmp_path: Path) -> None:
    assert said in refusal(written(tmp_path, text), given)


def test_accumulated_batches_agree_with_the_flags(tmp_path: Path) -> None:
    text = SAMPLE["hf_trainer.log"].splitlines()[-1] + "\n"
    assert only_row(written(tmp_path, text), Given(world_size=4, batch_size=16)).rate == 267.4


# ---------------------------------------------------------------- cut numbers, lost launches

WRAPPED = """{'train_runtime': 169.6, 'train_samples_per_second': 25
2.02, 'train_steps_per_second': 15.768}
"""


def test_a_wrapped_rate_is_not_its_first_digits(tmp_path: Path) -> None:
    assert "has no whole line with a rate" in refusal(written(tmp_path, WRAPPED), EIGHT)


@pytest.mark.parametrize("after", ["Batch size: 3\n2\n", "Model: resnet\n50\n"])
def test_a_wrapped_fact_is_unknown(after: str, tmp_path: Path) -> None:
    name = after.partition(":")[0]
    text = "".join(line for line in HOROVOD.splitlines(keepends=True) if not line.startswith(name))
    row = only_row(written(tmp_path, after + text))
    assert row.batch_size in (0, 32) and row.model in ("resnet", "resnet50")


def test_a_launch_of_another_mode_after_the_total_is_refused(tmp_path: Path) -> None:
    forward = TF_CNN.replace("training\nSing", "forward-only\nSing").partition("total images")[0]
    assert "is of mode forward-only: nothing was trained (line 27)" in refusal(written(tmp_path, TF_CNN + forward))


@pytest.mark.parametrize(
    ("text", "rate"), [(TF_CNN, 204.75), (HOROVOD, 112.2), (SAMPLE["hf_trainer.log"], 267.4), (TITAN, 58288.0)]
)
def test_a_launch_that_broke_off_is_named(text: str, rate: float, tmp_path: Path) -> None:
    lines = text.splitlines(keepends=True)
    broken = "".join(lines[:-3] if text is not TITAN else lines[:4]).partition("total images")[0]
    for log in (text + broken, broken + text):
        row = only_row(written(tmp_path, log))
        assert row.rate == rate
        if text is not SAMPLE["hf_trainer.log"]:
            assert any(note.startswith("not counted: the launch from line") for note in row.notes)


# ---------------------------------------------------------------- facts that tell cells apart

MESH = "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=2, cp=1, tp=2, ep=1"


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        (SAMPLE["horovod_keras.log"], "device_kind", "cpu"),
        (SAMPLE["tf_cnn_8.log"], "device_kind", "gpu"),
        (TF_CNN.replace("/gpu:", "/cpu:"), "device_kind", "cpu"),
        (TF_CNN, "variables", "parameter_server"),
        (SAMPLE["lightning_bar.log"] + "Using 16bit Automatic Mixed Precision (AMP)\n", "precision", "16bit"),
        (TITAN, "parallelism", "tp=1"),
        (TITAN.replace("Building 1-D device mesh with ['dp_shard'], [8]", MESH), "parallelism", "tp=2,pp=2"),
        (SAMPLE["horovod_n1.log"], "parallelism", ""),
    ],
)
def test_a_row_has_the_facts_of_its_cell(text: str, field: str, value: str, tmp_path: Path) -> None:
    assert getattr(only_row(written(tmp_path, text)), field) == value
