"""Rates of text are told, and asked for, in tokens; records count sequences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.records.point import Workload
from scaling.records.run import PointRecord
from scaling.tools.predict import __main__ as command
from tests.support.predicted_runs import HEADER, run
from tests.support.scripted_records import written

PRICES = """
currency = "USD"
[[price]]
name = "box"
match = { cpu = "*" }
devices = 2
per_hour = { on_demand = 3.6 }
network = "tcp:10"
"""


def of(records: Sequence[PointRecord], **work: Any) -> list[PointRecord]:
    return [_of(one, replace(one.point.workload, **work)) for one in records]


def _of(one: PointRecord, work: Workload) -> PointRecord:
    """Gradients that 10 Gb/s carry in the 0.05 s that the exchange alone takes."""
    ranks = tuple(
        replace(
            rank,
            windows=tuple(replace(w, samples=w.steps * work.batch_size) for w in rank.windows),
            ready=rank.ready and replace(rank.ready, gradient_bytes=40_000_000),
        )
        for rank in one.ranks
    )
    return replace(one, point=replace(one.point, workload=work), ranks=ranks)


def predicted(tmp_path: Path, *argv: str) -> str:
    if not (folder := tmp_path / "run").exists():
        written(folder, (HEADER, of(run(), unit="tokens", sequence_length=64)))
    assert command.main([str(folder), "--output", str(tmp_path / "out"), *argv]) == 0
    return (tmp_path / "out").read_text()


def test_a_run_of_tokens_is_predicted_in_tokens(tmp_path: Path) -> None:
    """One device does 32 sequences of 64 tokens in 0.1 s."""
    lines = [line.split() for line in predicted(tmp_path, "--world-sizes", "8").splitlines()]
    assert "tokens/s" in next(line for line in lines if line[0] == "N")
    rates = {line[0]: (line[2], line[3]) for line in lines if line[2:3] in (["measured"], ["PREDICTED"])}
    assert rates["1"] == ("measured", "20,480")
    assert 8 * 20480 * 0.5 < float(rates["8"][1].replace(",", "")) < 8 * 20480
    found = json.loads(predicted(tmp_path, "--world-sizes", "8", "--format", "json"))
    assert (found["unit"], found["units_per_sample"]) == ("tokens", 64)
    assert found["measured"][0]["samples_per_s"] == pytest.approx(320)


def test_a_rate_is_given_in_tokens(tmp_path: Path) -> None:
    told = predicted(tmp_path, "--world-sizes", "8", "--rate", "20480")
    assert "what if: 20480 tokens/s on one device, as --rate says" in told
    rate = next(line.split()[3] for line in told.splitlines() if line.split()[2:3] == ["PREDICTED"])
    assert 8 * 20480 * 0.5 < float(rate.replace(",", "")) < 8 * 20480


def test_a_target_is_in_tokens(tmp_path: Path) -> None:
    (tmp_path / "prices").write_text(PRICES)
    asked = ("--target", "100000", "--prices", str(tmp_path / "prices"))
    (line,) = [line for line in predicted(tmp_path, *asked).splitlines() if line.startswith("PREDICTED  ")]
    plan = json.loads(predicted(tmp_path, *asked, "--format", "json"))["plans"][0]
    assert 100_000 / 20_480 <= plan["devices"] < 12
    assert plan["lower"] * 64 >= 100_000
    assert f"{plan['samples_per_s'] * 64:,.0f} tokens/s" in line
    hour = plan["machines"] * 3.6
    assert f"{hour / 3600 * 1e6 / (64 * plan['samples_per_s']):,.2f} USD a million tokens" in line


@pytest.mark.parametrize(
    "flags",
    [("--batch-size", "64"), ("--model", "vgg16"), ("--rate", "9"), ("--without", "n"), ("--world-sizes", "8"),
     ("--devices-per-node", "8")],
)  # fmt: skip
def test_the_planner_drops_no_flag_silently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    (tmp_path / "prices").write_text(PRICES)
    folder = written(tmp_path / "run", (HEADER, run()))
    assert command.main([str(folder), "--target", "900", "--prices", str(tmp_path / "prices"), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"leave {flags[0]} out" in line


def test_a_batch_that_was_measured_is_predicted_from_its_own_curve(tmp_path: Path) -> None:
    """Of a run with --batch-sizes, not what if from the fastest."""
    small = of(run({1: 0.1, 2: 0.12, 4: 0.14}), batch_size=16)
    folder = written(tmp_path / "run", (HEADER, [*run(), *small]))
    assert command.main([str(folder), "--batch-size", "16", "--output", str(tmp_path / "out")]) == 0
    said = (tmp_path / "out").read_text()
    assert "batch 16 per device" in said.splitlines()[0]
    assert "what if" not in said


@pytest.mark.parametrize("name", [r"\1", r"a\gb"])
def test_a_model_of_any_name_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder = written(tmp_path / "run", (HEADER, run()))
    assert command.main([str(folder), "--model", name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_mending_commands_measure_the_same_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run", (HEADER, of(run({1: 0.1}), batch_size=16)))
    assert command.main([str(folder)]) == 2
    assert "--model digits-cnn --device cpu --batch-size 16 --world-sizes 1,2" in capsys.readouterr().err
