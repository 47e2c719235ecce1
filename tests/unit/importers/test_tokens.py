"""Logs of trainers that print tokens/s, of GPT-NeoX, of notebooks, and of launches whose ranks print apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scaling.tools.importers.logs import Given
from tests.support.imported_logs import SAID, SAMPLES, only_row, refusal, written

TOOLS = ("gpt_neox",)
SAMPLE = {name: (SAMPLES / f"{name}.log").read_text() for name in (*TOOLS, "megatron", "maxtext", "nemo")}
FOUR = Given(world_size=4)


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        (
            "megatron",
            " validation results at iteration 20 | lm_loss value: 6.9E+00 | lm_loss_ppl value: 9.9E+02 |\n",
        ),
    ],
)
def test_an_evaluation_is_no_training(tool: str, text: str, tmp_path: Path) -> None:
    assert "no line of it is of a known tool" in refusal(written(tmp_path, text), FOUR)
    assert refusal(written(tmp_path, text), FOUR, tool).startswith("has no ")


@pytest.mark.parametrize(
    ("name", "third"),
    [
        ("gpt_neox", " samples/sec: 8.000"),
    ],
)
def test_the_first_rate_alone_is_refused(name: str, third: str, tmp_path: Path) -> None:
    first = SAMPLE[name].partition(third)[0]
    assert "has only its first" in refusal(written(tmp_path, first), SAID[f"{name}.log"].given)


@pytest.mark.parametrize("name", TOOLS)
def test_every_line_of_a_sample_is_understood(name: str) -> None:
    assert not any(
        "skipped" in note for note in only_row(SAMPLES / f"{name}.log", SAID[f"{name}.log"].given).notes
    )


# ---------------------------------------------------------------- forms


def test_metrics_of_the_trainer_in_a_comment(tmp_path: Path) -> None:
    metrics = "#  train_samples_per_second =     16.5\nINFO train_steps_per_second   =       2.0\n"
    assert only_row(written(tmp_path, metrics), FOUR).rate == 16.5


def test_a_split_of_sequences_is_one_of_the_model(tmp_path: Path) -> None:
    text = SAMPLE["megatron"].replace("size: 4, context-parallel size: 1", "size: 2, sequence-parallel size: 2")
    row = only_row(written(tmp_path, text.replace("  context_parallel_size ........................... 1\n", "")))
    assert (row.parallelism, row.batch_size) == ("tp=2,cp=2", 32)


# ---------------------------------------------------------------- notebooks, and ranks that print apart


def notebook(text: str) -> str:
    lines = text.splitlines(keepends=True)
    cells = [
        {"cell_type": "code", "source": ["print('iter 900: loss 1.0, time 1.00ms, mfu 1.00%')\n"]},
        {"cell_type": "code", "outputs": [{"output_type": "stream", "text": lines[:4]}, {"output_type": "error"}]},
        {
            "cell_type": "code",
            "outputs": [{"output_type": "result", "data": {"text/plain": "".join(lines[4:-1])}}],
        },
        {"cell_type": "markdown", "source": lines[-1:]},
    ]
    return json.dumps({"cells": cells, "nbformat": 4})


@pytest.mark.parametrize("name", ["maxtext", "nemo"])
def test_outputs_of_a_notebook_are_read(name: str, tmp_path: Path) -> None:
    said = SAID[f"{name}.log"]
    row = only_row(written(tmp_path, notebook(SAMPLE[name]), "a.ipynb"), said.given)
    assert (row.rate, row.batch_size) == (said.rate, said.batch_size)


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 100_000, '{"cells": 1}', '{"cells": [{"outputs": [{"text": 3}]}]}']
)
def test_a_damaged_notebook_is_refused(text: str, tmp_path: Path) -> None:
    assert "is no notebook with outputs" in refusal(written(tmp_path, text, "a.ipynb"))


def test_launches_are_split_where_the_first_rank_says_it_again(tmp_path: Path) -> None:
    """srun -l: rank 0 prints the arguments, the last rank the iterations."""
    tagged = "".join(f"{7 if 'iteration ' in line else 0}: {line}\n" for line in SAMPLE["megatron"].splitlines())
    slower = tagged.replace("(ms): 32", "(ms): 64").replace("(ms): 3199", "(ms): 6399")
    assert only_row(written(tmp_path, tagged)).rate == 20.0
    assert refusal(written(tmp_path, tagged + slower)).startswith("has launches from 10")


def test_a_launch_that_broke_off_has_no_line(tmp_path: Path) -> None:
    first = SAMPLE["megatron"].partition(" [2026")[0]
    (note,) = (
        note for note in only_row(written(tmp_path, SAMPLE["megatron"] + first)).notes if "not counted" in note
    )
    assert (
        note == "not counted: the launch from line 22 on has no whole line with a time and its global batch size"
    )
