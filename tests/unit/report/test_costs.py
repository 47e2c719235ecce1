"""`--prices FILE`: what the report says of money, and which files it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scaling.report import __main__ as command
from scaling.report import schema
from tests.support.compared_runs import without_noise
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import close, written

PRICE = """currency = "USD"
[[price]]
name = "p3.16xlarge"
match = { cpu = "Test CPU*" }
devices = 8
per_hour = { on_demand = 24.48, spot = 7.5 }
seen = 2018-02-01
"""


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(written(tmp_path / "run", without_noise()))


def printed(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str, price: str = PRICE
) -> str:
    """The report with these prices."""
    path = tmp_path / "prices.toml"
    path.write_text(price)
    assert command.main([run, "--prices", str(path), *arguments]) == 0
    return capsys.readouterr().out


def test_the_table_tells_machines_prices_the_knee_and_what_is_not_used(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(run, tmp_path, capsys)
    assert "Cost of fake:a, USD" in text and "Cost of fake:b, USD" in text
    cost = text.partition("Cost of fake:a")[2]
    (four,) = [line.split() for line in cost.partition("Cost of")[0].splitlines() if line.startswith("  4 ")]
    # 24.48 / 3600 x 1e6 / (4 x 32 / 0.109 s), one machine whatever N
    assert four[:5] == ["4", "1", "x", "p3.16xlarge", "5.79"] and "1.77" in four and "0.27" in four
    assert "8 devices are paid, 4 used" in text
    assert "p3.16xlarge: price of 2018-02-01" in text
    assert "knee  N=4 added samples cost up to 1.5 times the mean up to here" in text
    assert "without storage, transfers" in " ".join(text.split())


def test_without_a_file_the_cost_is_told_of_one_devices(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([run]) == 0
    text = capsys.readouterr().out
    assert "relative cost N=2 1.03 N=4 1.09" in " ".join(text.split())
    assert "Cost of" not in text


def test_markdown_has_the_table(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(run, tmp_path, capsys, "--format", "markdown")
    assert "### Cost of fake:a, USD" in text and "| 4 | 1 x p3.16xlarge | 5.79" in text


def test_json_has_bills_that_are_in_the_schema(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(run, tmp_path, capsys, "--format", "json", "--epoch-samples", "1281167")
    found = json.loads(text)
    assert json.loads(msgspec.json.encode(msgspec.json.decode(text, type=schema.ReportJson))) == found
    bill = found["costs"][2]
    assert (bill["world_size"], bill["machines"], bill["devices_paid"]) == (4, 1, 8)
    million, epoch = (bill[name]["on_demand"]["mean"] for name in ("per_million", "per_epoch"))
    assert epoch == close(million * 1.281167)


def test_csv_has_columns_behind_the_others(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(csv.DictReader(io.StringIO(printed(run, tmp_path, capsys, "--format", "csv"))))
    assert lines[2]["cost_machines"] == "1" and lines[2]["cost_per_million_on_demand"].startswith("5.79")
    assert list(lines[0])[-1].startswith("cost_")


def test_rows_without_a_price_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = str(written(tmp_path / "scene", SCENES["cluster"]()))
    text = printed(scene, tmp_path, capsys)
    assert "OVERSUBSCRIBED: ranks share cores" in text
    other = PRICE.replace("Test CPU", "Other CPU")
    assert "no price matches these machines" in printed(scene, tmp_path, capsys, price=other)
    lines = csv.DictReader(io.StringIO(printed(scene, tmp_path, capsys, "--format", "csv")))
    assert "failed" in {line["cost_unknown"] for line in lines}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("format_", ["table", "markdown", "csv", "json"])
def test_every_scene_has_a_bill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scene: str, format_: str
) -> None:
    made = str(written(tmp_path / "scene", SCENES[scene]()))
    assert printed(made, tmp_path, capsys, "--format", format_)


def test_emulated_devices_have_the_price_of_what_they_stand_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hardware: dict[str, Any] = {"device": "emulated", "profile": "p100", "shrink": 10.0, "dilate": 4.0}
    run = str(written(tmp_path / "emulated", without_noise(**hardware)))
    price = PRICE.replace('cpu = "Test CPU*"', 'emulated = "p100"')
    assert "Cost of fake:a, USD, of the emulated cluster" in printed(run, tmp_path, capsys, price=price)


def test_the_file_may_be_named_by_the_environment(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PRICE)
    monkeypatch.setenv("SCALING_PRICES", str(path))
    assert command.main([run]) == 0
    assert "Cost of fake:a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (PRICE.replace("devices = 8", "devices = 8\ncolour = 1"), "unknown field `colour`"),
        (PRICE.replace("24.48", "-1.0"), "on_demand = -1: a price is 0 or more"),
        (PRICE.replace("24.48", "nan"), "on_demand = nan: a price is 0 or more"),
        (PRICE.replace("24.48", "inf"), "on_demand = inf: a price is 0 or more"),
        (PRICE.replace("24.48", '"much"'), "Expected `float`"),
        (PRICE.replace("devices = 8", 'devices = 8\ncurrency = "EUR"'), "unknown field `currency`"),
        (PRICE.replace('currency = "USD"', 'currency = ["USD", "EUR"]'), "Expected `str`"),
        (PRICE.replace('currency = "USD"', 'currency = "USD"\ncurrency = "EUR"'), "Cannot overwrite a value"),
        (PRICE.replace('currency = "USD"\n', ""), "missing required field `currency`"),
        (PRICE.replace("devices = 8", "devices = 0"), "devices = 0; 1 or more"),
        (PRICE.replace("on_demand = 24.48, spot = 7.5", ""), "per_hour is empty"),
        ("no toml", "prices.toml:"),
    ],
)
def test_prices_that_are_refused(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], price: str, said: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(price)
    assert command.main([run, "--prices", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"scaling.report: error: --prices {path}") and said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prices", "nowhere.toml"], "--prices nowhere.toml: No such file"),
        (["--prices", "FOLDER"], "--prices FOLDER: Is a directory"),
        (["--knee", "nan"], "--knee nan: how many times"),
        (["--knee", "0.5"], "--knee 0.5: how many times"),
        (["--epoch-samples", "-1"], "--epoch-samples -1: a number of samples"),
    ],
)
def test_flags_that_are_refused(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert command.main([run, *(word.replace("FOLDER", str(tmp_path)) for word in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and said in err.replace(str(tmp_path), "FOLDER")
