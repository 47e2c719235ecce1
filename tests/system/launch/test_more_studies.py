"""The tables of Addfor's and minimaxir's studies, and what a wrong call gets."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from launch.studies import _addfor as addfor
from launch.studies import _minimaxir as minimaxir

FOLDER = Path(__file__).parents[3] / "launch/studies"


def batch(size: int, name: str, seconds: float | None, over: float | None = None) -> dict[str, Any]:
    return {
        "batch_size": size,
        "pass": name,
        "step_s": None if seconds is None else {"mean": seconds},
        "over_smaller": None if over is None else {"mean": over},
        "smaller_batch_size": None if over is None else size // 2,
        "is_worse": over is not None and over > 2,
        "failed": {"cause": "oom"} if seconds is None else None,
    }


def cells(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()[2:]]


def test_both_passes_of_each_network_and_what_ran_out_of_memory() -> None:
    found = [
        ("alexnet", {"minibatches": [batch(64, "forward", 0.1), batch(64, "backward", 0.35)]}),
        ("vgg16", {"minibatches": [batch(64, "forward", 1.5), batch(64, "backward", None)]}),
    ]
    assert cells(addfor.networks(found, 64, "torch:plain")) == [
        ["alexnet", "100.0", "350.0"],
        ["vgg16", "1,500.0", "out", "of", "memory"],
    ]


def test_twice_the_batch_in_more_than_twice_the_time_is_said() -> None:
    """As the GTX 1080 did with VGG."""
    rows = [
        batch(64, "forward", 0.1), batch(64, "backward", 0.42028),
        batch(128, "forward", 0.2, 2.0), batch(128, "backward", 0.89986, 2.14),
    ]  # fmt: skip
    assert cells(addfor.minibatches({"minibatches": rows})) == [
        ["64", "100.0", "420.3", "-"],
        ["128", "200.0", "899.9", "2.14", "more", "than", "twice"],
    ]
    assert cells(addfor.published()) == [
        ["64", "420.28", "-"], ["128", "899.86", "2.14", "more", "than", "twice"],
    ]  # fmt: skip


def test_what_failed_is_no_half() -> None:
    """Of the batch before the one that failed, four times the batch takes four times as long."""
    rows = [batch(2, "backward", 0.1), batch(4, "backward", None), batch(8, "backward", 0.4, 4.0)]
    rows[2]["smaller_batch_size"] = 2
    assert cells(addfor.minibatches({"minibatches": rows}))[2] == ["8", "-", "400.0", "-"]


def row(size: int, rate: float | None, **lost: float) -> dict[str, Any]:
    return {"world_size": size, "samples_per_s": rate and {"mean": rate}, "breakdown": lost}


def test_an_epoch_is_priced_by_the_machine() -> None:
    """60,000 images at 1,000 a second are a minute, and 0.12 dollars an hour 0.002."""
    rows = [row(1, 1000.0), row(2, 1500.0, contention=0.05, waiting=0.2, unexplained=-0.3), row(4, None)]
    assert cells(minimaxir.here({"mnist-mlp": {"rows": rows}}, 0.12)) == [
        ["mnist-mlp", "1", "1,000", "60.0", "1.00", "0.0020"],
        ["mnist-mlp", "2", "1,500", "40.0", "0.67", "0.0013", "waiting", "20", "%"],
        ["mnist-mlp", "4", "failed", "-", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("study", "arguments", "message"),
    [
        ("addfor", ["--batch-size", "0"], "argument --batch-size: 0: at least 1"),
        ("addfor", ["--framework", "caffe"], "argument --framework: invalid choice: 'caffe'"),
        ("minimaxir", ["--price", "nan"], "argument --price: nan: dollars an hour, from 0"),
        ("minimaxir", ["--only", "resnet50"], "argument --only: invalid choice: 'resnet50'"),
        ("minimaxir", ["--ranks", "none"], "argument --ranks: none: at least 1"),
    ],
)
def test_a_wrong_call_measures_nothing(study: str, arguments: list[str], message: str) -> None:
    done = subprocess.run([FOLDER / study, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
