"""References: made of runs, read back, matched, refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.run import Header
from scaling.report import reference
from scaling.report.__main__ import main as report
from scaling.report.material import Material
from scaling.report.reference import Reference
from tests.support.report_scenes import SCENES, default_run
from tests.support.scripted_records import header, host, sweep

RECORDED = Path(__file__).parents[2] / "recorded"


def material(rounds: int = 3, head: Header | None = None) -> Material:
    records = [one for number in range(rounds) for one in sweep(number, 0.1, {1: 0.1, 2: 0.104 + 0.0002 * number})]
    return Material(head or header(launch_size=2), records)


def edited(tmp_path: Path, change: Callable[[str], str]) -> str:
    path = tmp_path / "r.toml"
    path.write_text(change(reference.toml(reference.of(material()))))
    return str(path)


def refused(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        reference.read(name)
    return str(caught.value)


def test_a_reference_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = reference.of(material())
    assert reference.read(edited(tmp_path, str)) == made
    assert [one.world_size for one in made.efficiency] == [1, 2]
    assert made.scaled(2) is not None
    assert made.scaled(4) is None
    assert made.rate.low < made.rate.mean < made.rate.high or made.rate.low == made.rate.high


def test_the_package_has_the_reference_of_an_h200() -> None:
    found = reference.read("h200")
    assert found.machine.device == "NVIDIA H200"
    assert found.work.workload.model == "resnet50"
    assert 4600 < found.rate.low < found.rate.high < 4800


def leaves(of: object, path: str = "") -> dict[str, Any]:
    """The values of a nested table, by their paths."""
    if isinstance(of, dict | list):
        inner = of.items() if isinstance(of, dict) else enumerate(of)
        return {name: value for key, each in inner for name, value in leaves(each, f"{path}.{key}").items()}
    return {path: of}


def test_the_h200s_reference_is_that_of_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.jsonl"
    run.write_bytes((RECORDED / "h200-default.jsonl").read_bytes())
    assert report([str(tmp_path), "--format", "reference"]) == 0
    made = msgspec.toml.decode(capsys.readouterr().out)
    packaged = msgspec.toml.decode((reference.PACKAGED / "h200.toml").read_text())
    assert leaves({**made, "sum": ""}) == pytest.approx(leaves({**packaged, "sum": ""}))  # last digits are SciPy's


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("schema = 1", "schema = 99"), "schema 99, this version reads up to 1"),
        (lambda text: text.replace("schema = 1", "schema = true"), "schema True"),
        (lambda text: text.replace("nodes = 1", "nodes = 2"), "was edited: its sum does not fit"),
        (lambda text: re.sub(r"\nlow = .*", "", text, count=1), "without an interval (low is missing)"),
        (lambda text: text.replace("\nmean = ", "\nmean = -", 1), "not a reference"),
        (lambda text: text[: text.index("[rate]")], "not a reference"),
        (lambda text: text + "more = 1\n", "not a reference"),
        (lambda text: "{" + text, "not TOML"),
        (lambda _: "", "schema None"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, change: Callable[[str], str], words: str) -> None:
    said = refused(edited(tmp_path, change))
    assert said.startswith(f"--reference {tmp_path}")
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize("name", ["nowhere.toml", ".", "/dev/zero", "h100"])
def test_a_missing_reference_is_refused_with_the_names_of_the_package(name: str) -> None:
    assert "in the package: h200" in refused(name)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: material(rounds=1), "measure 2 rounds or more"),
        (lambda: Material(*SCENES["frameworks"]()), "measure one --strategy and --interconnect"),
        (lambda: Material(default_run()[0], []), "has measured no exchange"),
    ],
    ids=["one round", "several exchanges", "no exchange"],
)
def test_a_run_that_is_no_reference_is_refused(made: Callable[[], Material], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        reference.of(made())


# ---------------------------------------------------------------- matching


def differences(made: Reference, head: Header) -> tuple[str, ...]:
    (*_, last) = [one.point for one in material().records if one.point.kind == "exchange"]
    return reference.differences(made, head, last)


MADE = reference.of(material())
WORK = MADE.work
LIKE = header(launch_size=2)
OTHER_WORK = replace(WORK, workload=replace(WORK.workload, batch_size=7, precision="bf16"))
OTHER_EXCHANGE = replace(MADE, work=replace(WORK, strategy="torch:other"))


@pytest.mark.parametrize(
    ("made", "head", "named"),
    [
        (MADE, LIKE, []),
        (MADE, header([host(cpu_model="Other CPU")], launch_size=2), ["device"]),
        (replace(MADE, work=OTHER_WORK), LIKE, ["batch size", "precision"]),
        (OTHER_EXCHANGE, LIKE, ["strategy"]),
        (replace(OTHER_EXCHANGE, efficiency=()), LIKE, []),  # it counts only at a world size of the reference
        (replace(MADE, software={**MADE.software, "torch": "0.1"}), LIKE, []),
    ],
    ids=["the same", "another device", "another work", "another exchange", "no exchange", "other software"],
)
def test_what_sets_a_launch_apart_is_named(made: Reference, head: Header, named: list[str]) -> None:
    assert [one.partition(":")[0] for one in differences(made, head)] == named


def test_toml_keeps_names_and_texts(tmp_path: Path) -> None:
    odd = replace(MADE, command='a "b" \\ c é', software={"NVIDIA driver": "1", "x.y": "2"})
    path = tmp_path / "r.toml"
    path.write_text(reference.toml(replace(odd, sum=odd.digest)))
    assert msgspec.toml.decode(path.read_bytes())["command"] == odd.command
    assert reference.read(str(path)).software == odd.software
