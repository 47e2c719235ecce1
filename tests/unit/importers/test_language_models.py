"""Logs of trainers of language models: forms of versions, what is no training, and one efficiency per split."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaling.analysis.table.imported import cells
from scaling.tools.importers.logs import Given
from scaling.tools.importers.tools import read_all
from tests.support.imported_logs import SAID, SAMPLES, only_row, refusal, written

EIGHT = Given(world_size=8)
MEGATRON, DEEPSPEED, NEMO, MAXTEXT = (
    (SAMPLES / f"{name}.log").read_text() for name in ("megatron", "deepspeed", "nemo", "maxtext")
)
TOOLS = ("megatron", "primus", "nemo", "maxtext", "deepspeed")


# ---------------------------------------------------------------- what holds for each tool


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("megatron", " validation loss at iteration 20 | lm loss value: 9.9E+00 | lm loss PPL: 1.99E+04 | \n"),
        ("nemo", "Validation: iteration 1/10 | global_batch_size: 32 | val_loss: 9.861\n"),
        ("maxtext", "Completed eval step: 0, seconds: 0.700, running loss=11.000, running perplexity=5.1\n"),
        ("deepspeed", "[INFO] [config.py:1001:print]   world_size ................... 4\n"),
    ],
)
def test_an_evaluation_is_no_training(tool: str, text: str, tmp_path: Path) -> None:
    assert "no line of it is of a known tool" in refusal(written(tmp_path, text), EIGHT)
    assert refusal(written(tmp_path, text), EIGHT, tool).startswith("has no ")


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("megatron.log", " [2026-01-05 10:01"),
        ("primus.log", "[20260105 12:00:02]"),
        ("nemo.log", "Training epoch 0, iteration 2/"),
        ("maxtext.log", "completed step: 1,"),
    ],
)
def test_the_first_step_alone_is_refused(name: str, second: str, tmp_path: Path) -> None:
    first = (SAMPLES / name).read_text().partition(second)[0]
    assert "has only its first" in refusal(written(tmp_path, first), SAID[name].given)


@pytest.mark.parametrize("name", [f"{tool}.log" for tool in TOOLS])
def test_every_line_of_a_sample_is_understood(name: str) -> None:
    assert not any("skipped" in note for note in only_row(SAMPLES / name, SAID[name].given).notes)


@pytest.mark.parametrize("name", [f"{tool}.log" for tool in TOOLS])
def test_another_batch_is_refused(name: str) -> None:
    given = Given(world_size=SAID[name].given.world_size, batch_size=63)
    assert "--batch-size 63: the log says" in refusal(SAMPLES / name, given)


@pytest.mark.parametrize(
    ("text", "mark", "again"),
    [
        (MEGATRON, "iteration       20/", ("3199.0", "1599.0")),
        (NEMO, "iteration 2/", ("in s: 0.4 ", "in s: 0.2 ")),
        (MAXTEXT, "completed step: 2,", ("4096.000", "8192.000")),
    ],
)
def test_a_step_that_is_repeated_at_another_rate_is_another_training(
    text: str, mark: str, again: tuple[str, str], tmp_path: Path
) -> None:
    (line,) = (line for line in text.splitlines(keepends=True) if mark in line)
    said = refusal(written(tmp_path, text + line.replace(*again)))
    assert said.startswith("says several rates of step ")
    assert "split it by launch" in said


# ---------------------------------------------------------------- Megatron-LM


def test_megatron_says_how_its_model_is_split() -> None:
    row = only_row(SAMPLES / "megatron.log")
    assert (row.precision, row.parallelism, row.model) == ("bf16", "tp=2", "")


def test_megatron_without_a_split_says_so(tmp_path: Path) -> None:
    text = MEGATRON.replace("tensor-model-parallel size: 2", "tensor-model-parallel size: 1")
    row = only_row(written(tmp_path, text.replace(f"{'.' * 22} 2\n", f"{'.' * 22} 1\n")))
    assert (row.parallelism, row.batch_size) == ("tp=1", 8)


def test_megatron_says_its_split_in_words(tmp_path: Path) -> None:
    """megatron/megatron-lm/slurm/gpt3/README.md of aws-samples/awsome-distributed-training."""
    line = (
        " iteration        {}/  508626 | consumed samples:          {} | elapsed time per iteration (ms): {} | "
        "learning rate: 0.000E+00 | global batch size:   288 | loss scale: 4294967296.0 |\n"
    )
    text = "> initialized tensor model parallel with size 8\n> initialized pipeline model parallel with size 1\n"
    text += line.format(1, 288, 255940.5) + line.format(2, 576, 243438.3) + line.format(3, 864, 243344.4)
    row = only_row(written(tmp_path, text), Given(world_size=64))
    assert (row.parallelism, row.batch_size) == ("tp=8", 36)
    assert row.rate == pytest.approx(1.18328, rel=1e-4)
    assert "splits its model over 8 devices: 63" in refusal(written(tmp_path, text), Given(world_size=63))


def test_fp8_is_another_precision(tmp_path: Path) -> None:
    fp8 = f"  fp8 {'.' * 45} hybrid\n"
    assert only_row(written(tmp_path, fp8 + MEGATRON)).precision == "hybrid"
    assert only_row(written(tmp_path, fp8.replace("hybrid", "None") + MEGATRON)).precision == "bf16"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("| global batch size:    64 | lm loss: 1.000000E+01", "| global batch size:    32 | lm loss: 1.0E+01",
         "says several values of global batch: 32"),
        ("using world size: 8", "using world size: 16", "several numbers of devices: 8 (line 14), 16 (line 1)"),
        (" | global batch size:", " | batch size:", "has no whole line with a time and its global batch size"),
    ],
)  # fmt: skip
def test_what_is_refused_of_megatron(before: str, after: str, said: str, tmp_path: Path) -> None:
    assert before in MEGATRON
    assert said in refusal(written(tmp_path, MEGATRON.replace(before, after)), tool="megatron")


def test_iterations_that_are_no_number_are_a_failure(tmp_path: Path) -> None:
    text = MEGATRON.replace("nan iterations:   0 |\n validation", "nan iterations:   2 |\n validation")
    assert only_row(written(tmp_path, text)).failed == "the loss is no number"


# ---------------------------------------------------------------- the others


def test_nemo_may_print_consumed_samples_first(tmp_path: Path) -> None:
    lines = [line.partition(" | consumed_samples: ") for line in NEMO.splitlines()]
    first = "".join(f"{a.replace(' | lr', f' | consumed_samples: {b} | lr')}{' | val_loss: 9.8' if b else ''}\n"
                    for a, _, b in lines)  # fmt: skip
    assert only_row(written(tmp_path, first)).rate == pytest.approx(SAID["nemo.log"].rate)
    cut = written(tmp_path, first.replace(" | val_loss: 9.8", ""))
    assert refusal(cut, tool="nemo") == "has no whole line with a rate"


def test_deepspeed_that_trains_on_its_own_samples_is_refused(tmp_path: Path) -> None:
    chat = (
        "|E2E latency=4.00s |Generate time=3.00s (75.00%) |Training time=0.90s (22.50%) |AvgSamplesPerSec=16.00\n"
    )
    assert "leave out the generation (line 1)" in refusal(written(tmp_path, chat + DEEPSPEED))


def test_deepspeed_says_its_ranks_before_its_engine(tmp_path: Path) -> None:
    timer = DEEPSPEED[DEEPSPEED.index("[2026-01-05 11:00:00,123] [INFO] [timer") :]
    log = written(tmp_path, f"[INFO] [config.py:733:__init__] Config mesh_device None world_size = 4\n{timer}")
    assert only_row(log).world_size == 4
    assert "--world-size 8: the log says 4" in refusal(log, EIGHT)


def test_deepspeed_on_more_devices_than_ranks_with_data_is_refused(tmp_path: Path) -> None:
    """The launcher counts devices, the engine data-parallel ranks."""
    launcher = "[INFO] [launch.py:164:main] dist_world_size={}\n"
    assert only_row(written(tmp_path, launcher.format(4) + DEEPSPEED)).world_size == 4
    assert "several numbers of devices: 4 (line" in refusal(written(tmp_path, launcher.format(8) + DEEPSPEED))


def test_what_ray_adds_to_a_line_hides_no_step(tmp_path: Path) -> None:
    repeated = re.sub(r"(completed step: [1-9].*)", r"(main pid=7) \1 [repeated 3x across cluster]", MAXTEXT)
    assert repeated != MAXTEXT
    assert only_row(written(tmp_path, repeated)).rate == SAID["maxtext.log"].rate


def test_deepspeed_of_2020_prints_one_average(tmp_path: Path) -> None:
    lines = "".join(f"[INFO] [timer.py:157:stop] 0/{10 * n}, SamplesPerSec=23{n}.5312345\n" for n in (1, 2))
    assert only_row(written(tmp_path, lines), EIGHT).rate == 232.5312345
    cut = written(tmp_path, "[stop] 0/10, SamplesPerSec=23\n1.5\n")
    assert refusal(cut, EIGHT, "deepspeed") == "has no whole line with a rate"


def test_deepspeed_must_agree_with_its_batches(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, DEEPSPEED.replace("world_size ................... 4", "world_size ... 8")))
    assert said == "says several numbers of devices: 4 (line 3), 8 (line 5); split the log by launch"


@pytest.mark.parametrize("trainer", ["megatron.log", "hf_trainer.log"])
def test_a_trainer_on_deepspeed_says_its_own_rate(trainer: str, tmp_path: Path) -> None:
    timer = DEEPSPEED[DEEPSPEED.index("[2026-01-05 11:00:00,123] [INFO] [timer") :]
    row = only_row(written(tmp_path, timer + (SAMPLES / trainer).read_text()))
    assert row.tool == SAID[trainer].tool
    assert row.rate == pytest.approx(SAID[trainer].rate)


def test_maxtext_without_tokens_is_refused_with_the_reason(tmp_path: Path) -> None:
    text = MAXTEXT.replace("Tokens/s/device", "Words/s/device")
    assert "has no line with Tokens/s/device" in refusal(written(tmp_path, text), tool="maxtext")


def test_maxtext_split_over_slices_is_refused(tmp_path: Path) -> None:
    text = MAXTEXT.replace("dcn_tensor_parallelism: 1", "dcn_tensor_parallelism: 4")
    assert "splits its model by dcn_tensor_parallelism=4" in refusal(written(tmp_path, text))


def test_half_a_sample_per_device_is_no_batch(tmp_path: Path) -> None:
    row = only_row(written(tmp_path, MAXTEXT.replace("batch_size: 2.0", "batch_size: 0.25")))
    assert (row.batch_size, row.rate) == (0, 65536.0)


# ---------------------------------------------------------------- a model that is split


def of_nemo(devices: int, seconds: float) -> str:
    """The lines of steps alone, as people paste them."""
    return "".join(
        f"Training epoch 0, iteration {step}/9 | global_batch_size: {4 * devices} | train_step_timing in s: "
        f"{seconds} | consumed_samples: {4 * devices * (step + 1)}\n"
        for step in range(1, 4)
    )


def test_a_log_that_does_not_say_its_split_has_no_efficiency_without_the_flag(tmp_path: Path) -> None:
    logs = {
        devices: written(tmp_path, of_nemo(devices, seconds), f"{devices}.log")
        for devices, seconds in ((1, 0.4), (8, 0.5))
    }

    def told(split: str) -> list[tuple[int, str, float | None]]:
        of_log = {
            log: Given(world_size=devices, model="8B", precision="bf16", parallelism=split if devices > 1 else "")
            for devices, log in logs.items()
        }
        rows = [row for found in read_all(of_log.items()) for row in found.rows]
        return [
            (cell.batch_size, cell.parallelism, cell.efficiency and round(cell.efficiency, 3))
            for cell in cells(rows)
        ]

    assert told("") == [(4, "", 1.0), (0, "unknown", None)]
    assert told("tp=1") == [(4, "", 1.0), (4, "", 0.8)]
    assert told("tp=2")[1:] == [(8, "tp=2", None)]


def test_a_global_batch_is_a_multiple_of_the_ranks(tmp_path: Path) -> None:
    log = written(tmp_path, of_nemo(8, 0.5))
    said = refusal(log, Given(world_size=3, parallelism="tp=1"))
    assert said == "has a global batch of 32, no multiple of 3 data-parallel ranks"
    assert only_row(log, Given(world_size=4, parallelism="tp=1")).batch_size == 8


def test_a_split_that_the_log_contradicts_is_refused(tmp_path: Path) -> None:
    said = refusal(SAMPLES / "megatron.log", Given(parallelism="tp=4"))
    assert said == "--parallelism tp=4: the log says tp=2"
    said = refusal(written(tmp_path, of_nemo(8, 0.5)), Given(world_size=10, parallelism="tp=3"))
    assert said == "splits its model over 3 devices: 10 are no multiple of them"
    said = refusal(SAMPLES / "horovod_n4.log", Given(parallelism="tp=8"))
    assert said == "splits its model over 8 devices: 4 are no multiple of them"
