"""Published studies beside what came out here: the table, and what a wrong call gets."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from launch.studies import _dell_p100 as study

COMMAND = Path(__file__).parents[3] / "launch/studies/dell-p100"


def row(word: str, size: int, rate: float | None, verdict: str | None = "VERIFIED") -> dict[str, Any]:
    return {
        "interconnect": word,
        "world_size": size,
        "samples_per_s": None if rate is None else {"mean": rate},
        "speedup": None if rate is None else {"mean": rate / 220},
        "receipt": verdict and {"verdict": verdict},
    }


def test_published_and_measured_stand_side_by_side() -> None:
    rows = [
        row("ib", 1, 219.9, None),
        row("ib", 8, 1755.0),
        row("ethernet", 8, 1600.0, "MISLABELLED"),
        row("ethernet", 16, None),
    ]
    lines = study.beside("googlenet", rows).splitlines()
    assert [line.split() for line in lines[3:]] == [
        ["1", "220", "1.00", "220", "1.00", "-", "-"],
        ["2", "411", "1.87", "-", "-", "-", "-"],
        ["4", "730", "3.32", "-", "-", "-", "-"],
        ["8", "1472", "6.69", "1755", "7.98", "MISLABELLED", "1600", "7.27"],
        ["12", "2227", "10.12", "-", "-", "-", "-"],
        ["16", "2955", "13.43", "-", "-", "failed", "-", "-"],
    ]
    assert {len(line) for line in lines[3:]} == {91}


def test_each_row_says_what_it_cannot_know() -> None:
    """What its devices were told is no finding, and what nobody emulates is not in it."""
    last = {
        **row("ib", 16, 2857.0),
        "emulation": {"error_fraction": 0.005},
        "footnotes": ["FITTED: at batch 36", "not emulated: PCIe 3.0 x16 inside a node", "no comm control"],
    }
    lines = study.unknown("googlenet", [row("ib", 1, 220.0, None), last]).splitlines()
    by_size = {line.split()[0]: line for line in lines if line[:4].strip()}
    assert set(map(str, study.SIZES)) <= set(by_size)
    assert "the published rate" in by_size["1"]
    assert "could have failed" in by_size["2"]
    assert "fitted to this row" in by_size["4"]
    assert "parameter server" in by_size["16"]
    assert [line.strip() for line in lines[-3:]] == [
        "InfiniBand 100 Gb/s: the emulator is up to 0.5 % of a step too slow",
        "FITTED: at batch 36",
        "not emulated: PCIe 3.0 x16 inside a node",
    ]


@pytest.mark.parametrize(
    ("rate", "percent", "bounded"), [(1600.0, 79.0, True), (1600.0, 81.0, False), (None, None, False)]
)
def test_a_row_that_failed_or_whose_machine_was_busy_claims_no_bound(
    rate: float | None, percent: float | None, bounded: bool
) -> None:
    found = {
        **row("ethernet", 8, rate),
        "emulation": {"error_fraction": 0.005},
        "machine_cpu_percent": percent,
        "footnotes": ["CPUs were over 80 % busy while they emulated"],
    }
    text = study.unknown("googlenet", [found])
    assert ("the emulator is up to 0.5 %" in text) == bounded
    assert "CPUs were over 80 % busy" in text


def test_of_inception_speedups_alone_were_published() -> None:
    lines = study.beside("inception_v3", []).splitlines()
    assert lines[-1].split() == ["16", "-", "14.70", "-", "-", "-", "-"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "argument --rounds: 0: at least 1"),
        (["--only", "resnet50"], "argument --only: invalid choice: 'resnet50'"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_a_wrong_call_makes_no_lab(arguments: list[str], message: str) -> None:
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
