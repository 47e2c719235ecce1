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
from scaling.report.formats import json as schema
from tests.support.compared_runs import without_noise
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import close, header, point, record, written

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
    assert "8 devices are paid for, 4 used" in text
    assert "p3.16xlarge: price of 2018-02-01" in text
    assert "knee  N=4 up to here added samples cost at most 1.5 times the mean" in text
    assert "without storage, transfers" in " ".join(text.split())


def test_a_million_tokens_are_not_a_million_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text: dict[str, Any] = {"model": "transformer", "data": "text", "unit": "tokens", "sequence_length": 128}
    made = [
        record(point(kind, 1, number, **text), step_s)
        for number in range(2)
        for kind, step_s in (("solo", 0.5), ("exchange", 0.5))
    ]
    run = str(written(tmp_path / "tokens", (header(), made)))
    # 24.48 / 3600 x 1e6 / (32 x 128 / 0.5 s) = 0.830; of sequences, for an epoch of as many: 106.25
    (one,) = [line for line in printed(run, tmp_path, capsys).splitlines() if "p3.16xlarge " in line]
    assert "0.830" in one.split()
    (bill,) = json.loads(printed(run, tmp_path, capsys, "--format", "json"))["costs"]
    assert bill["per_million"]["on_demand"]["mean"] == close(106.25)


def test_without_a_file_the_cost_is_told_of_one_devices(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([run, "--verbose"]) == 0
    text = capsys.readouterr().out
    assert "relative cost N=2 1.03 N=4 1.09" in " ".join(text.split())
    assert "Cost of" not in text


def test_json_has_bills_that_are_in_the_schema(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(run, tmp_path, capsys, "--format", "json", "--epoch-samples", "1281167")
    found = json.loads(text)
    assert json.loads(msgspec.json.encode(msgspec.json.decode(text, type=schema.report_type()))) == found
    bill = found["costs"][2]
    assert (bill["world_size"], bill["machines"], bill["devices_paid"]) == (4, 1, 8)
    million, epoch = (bill[name]["on_demand"]["mean"] for name in ("per_million", "per_epoch"))
    assert epoch == close(million * 1.281167)


def test_rows_without_a_price_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = str(written(tmp_path / "scene", SCENES["cluster"]()))
    text = printed(scene, tmp_path, capsys)
    assert "OVERSUBSCRIBED: ranks share cores" in text
    other = PRICE.replace("Test CPU", "Other CPU")
    assert "no price matches these machines" in printed(scene, tmp_path, capsys, price=other)
    lines = csv.DictReader(io.StringIO(printed(scene, tmp_path, capsys, "--format", "csv")))
    assert "failed" in {line["cost_unknown"] for line in lines}


@pytest.mark.parametrize("scene", SCENES)
def test_every_scene_has_a_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str], scene: str) -> None:
    assert printed(str(written(tmp_path / "scene", SCENES[scene]())), tmp_path, capsys)


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
        (PRICE.replace("24.48", "inf"), "on_demand = inf: must be 0 or more"),
        (PRICE.replace("24.48", '"much"'), "Expected `float`"),
        (PRICE.replace("devices = 8", 'devices = 8\ncurrency = "EUR"'), "unknown field `currency`"),
        (PRICE.replace('currency = "USD"', 'currency = ["USD", "EUR"]'), "Expected `str`"),
        (PRICE.replace('currency = "USD"', 'currency = "USD"\ncurrency = "EUR"'), "overwrite a value"),
        ("no toml", "prices.toml:"),
    ],
)
def test_prices_that_are_refused(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], price: str, said: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(price)
    err = refusal(run, capsys, "--prices", str(path))
    assert err.startswith(f"scaling report: error: --prices {path}") and said in err


def refusal(run: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command.main([run, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_a_file_that_a_variable_names_is_refused_by_the_variable(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALING_PRICES", "nowhere.toml")
    said = "scaling report: error: SCALING_PRICES=nowhere.toml: No such file or directory\n"
    assert refusal(run, capsys) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prices", "nowhere.toml"], "--prices nowhere.toml: No such file"),
        (["--prices", "FOLDER"], "--prices FOLDER: Is a directory"),
        (["--knee", "nan"], "--knee nan: must be 1 or more"),
        (["--knee", "0.5"], "--knee 0.5: must be 1 or more"),
        (["--epoch-samples", "-1"], "--epoch-samples -1: must be a number of samples"),
        (["--base", "fake:c N=1"], "no such row; give one of: fake:a N=1; fake:a N=2; fake:a N=4; fake:b N=1"),
        (["--base", "fake:a N=3"], "no such row; give one of: fake:a N=1"),
        (["--base", "fake:a"], "no such row; give one of: fake:a N=1"),
        (["--base", "<b>\nx"], "--base <b> x: no such row"),
    ],
)
def test_flags_that_are_refused(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    err = refusal(run, capsys, *(word.replace("FOLDER", str(tmp_path)) for word in arguments))
    assert said in err.replace(str(tmp_path), "FOLDER")


# ---------------------------------------------------------------- relative to a row


def test_costs_are_relative_to_a_row(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One machine of eight is paid at any N: a sample on 4 devices costs 0.109 / (4 x 0.1) of one on 1."""
    lines = list(
        csv.DictReader(io.StringIO(printed(run, tmp_path, capsys, "--base", "fake:b N=1", "--format", "csv")))
    )
    by_row = {(line["strategy"], line["world_size"]): line for line in lines}
    assert float(by_row["fake:a", "4"]["cost_relative"]) == close(0.109 / 0.1 / 4)
    assert {line["cost_base"] for line in lines} == {"fake:b N=1"}
    assert (by_row["fake:b", "1"]["cost_relative"], by_row["fake:b", "1"]["cost_relative_low"]) == ("1.0", "")


@pytest.mark.parametrize("format_", ["table", "markdown", "latex", "html"])
def test_without_prices_a_base_needs_no_file(run: str, capsys: pytest.CaptureFixture[str], format_: str) -> None:
    """Every device at one price: 4 of them do 4 / 1.09 times what one does."""
    assert command.main([run, "--base", "fake:a N=1", "--format", format_]) == 0
    text = capsys.readouterr().out
    assert "Cost of fake:b, all devices at one price" in text and "x fake:a N=1" in text and "1.09" in text
    assert "knee" in text or format_ == "latex"


def test_the_base_is_paired_by_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds that are slow for all leave no width."""
    header, records = without_noise()
    slow = [record(one.point, 0.1 * (1 + 0.3 * one.point.round)) for one in records]
    path = str(written(tmp_path / "slow", (header, slow)))
    assert command.main([path, "--base", "fake:a N=1", "--format", "json"]) == 0
    bills = json.loads(capsys.readouterr().out)["costs"]
    (four,) = [one for one in bills if (one["strategy"], one["world_size"]) == ("fake:b", 4)]
    assert [four["relative"][end] for end in ("low", "mean", "high")] == [close(1.0)] * 3
    assert (four["base"], four["price"], four["currency"], four["per_million"]) == ("fake:a N=1", "", "", {})


def test_a_base_must_be_one_row_that_has_a_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    networks = str(written(tmp_path / "networks", SCENES["networks"]()))
    for base, said in (
        ("fake:a N=4", "several rows have this name; give one of: fake:a over"),
        ("fake:a over eth0 N=4", "costs cannot be relative to it: MISLABELLED"),
    ):
        assert command.main([networks, "--base", base]) == 2
        assert said in capsys.readouterr().err
