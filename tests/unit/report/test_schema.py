"""The JSON of a report is what its schema says, today's and that of older versions; the package keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scaling.report import __main__ as command
from scaling.report import schema
from scaling.report.formats import json as json_format
from tests.support.report_scenes import SCENES

KEPT = Path(schema.__file__).with_name("schema.json")
OLD = sorted((Path(__file__).parents[2] / "schema").glob("report-*.json"))


def told(text: str) -> Any:
    return json.loads(msgspec.json.encode(msgspec.json.decode(text, type=schema.ReportJson)))


def test_the_package_keeps_the_schema() -> None:
    """Else: python -m scaling report --schema > scaling/report/schema.json."""
    assert KEPT.read_text() == schema.text()


def test_the_command_prints_it_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--schema"]) == 0
    assert capsys.readouterr().out == KEPT.read_text()


@pytest.mark.parametrize("name", SCENES)
def test_what_is_printed_is_of_the_type_and_of_nothing_else(name: str) -> None:
    text = json_format.render(*SCENES[name]())
    assert told(text) == json.loads(text)


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_reports_of_older_versions_are_still_valid(path: Path) -> None:
    """Fields are only ever added, and what was printed comes out again."""
    text = path.read_text()
    assert _without_new(told(text), json.loads(text)) == json.loads(text)


def test_there_is_an_older_report() -> None:
    assert OLD


def _without_new(found: Any, printed: Any) -> Any:
    if isinstance(found, dict) and isinstance(printed, dict):
        return {name: _without_new(value, printed[name]) for name, value in found.items() if name in printed}
    if isinstance(found, list) and isinstance(printed, list):
        return [_without_new(one, other) for one, other in zip(found, printed, strict=True)]
    return found


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda report: report["rows"][0].pop("strategy"), "strategy"),
        (lambda report: report["rows"][0].update(world_size="two"), "world_size"),
        (lambda report: report["rows"][1]["efficiency"].update(mean=None), "mean"),
        (lambda report: report.pop("run"), "run"),
        (lambda report: report["comparisons"].append({}), "comparisons"),
    ],
)
def test_what_is_not_valid_is_found(change: Any, path: str) -> None:
    report = json.loads(json_format.render(*SCENES["default"]()))
    change(report)
    with pytest.raises(msgspec.ValidationError, match=path):
        told(json.dumps(report))
