"""No text of a record commands a terminal, turns or hides text, or is markup, whatever prints it."""

from __future__ import annotations

import csv as csv_module
import io
import json
from pathlib import Path
from typing import Any

import pytest

from scaling.analysis.table.rows import Row
from scaling.command import complain
from scaling.errors import UsageError
from scaling.report import __main__ as report
from scaling.report import flags
from scaling.sweep.view.live import LiveView
from scaling.sweep.view.plain import PlainView
from scaling.tools.check import __main__ as check_words
from scaling.tools.check.facts import Findings, Verdict
from scaling.tools.compare import __main__ as compare
from scaling.tools.history import __main__ as history
from scaling.tools.predict import __main__ as predict
from tests.support import scripted_points as points
from tests.support.check_facts import facts
from tests.support.gpu_records import gpus_run
from tests.support.report_scenes import default_run
from tests.support.scripted_records import written
from tests.support.spoilt import HOSTILE, mixed, shown, spoil, spoilt

RUNS = {"default": lambda: spoilt(*default_run()), "gpus": lambda: spoilt(*gpus_run())}
FORMATS = ("table", "markdown", "latex", "csv", "json")
COMMANDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "report": (report, FORMATS),
    "compare": (compare, ("table", "markdown", "json", "junit", "github-action-benchmark")),
    "history": (history, ("table", "markdown", "csv", "json")),
}


@pytest.fixture(params=sorted(RUNS))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return written(folder / "run", RUNS[request.param]())


@pytest.mark.parametrize(
    ("name", "format_"), [(name, format_) for name, (_, formats) in COMMANDS.items() for format_ in formats]
)
def test_nothing_that_is_printed_is_hidden_or_obeyed(
    run: Path, capsys: pytest.CaptureFixture[str], name: str, format_: str
) -> None:
    paths = {"report": [run], "compare": [run, run], "history": [run.parent]}
    assert COMMANDS[name][0].main([*map(str, paths[name]), "--format", format_]) in (0, 2)
    told = capsys.readouterr()
    assert told.out and shown(told.out) and shown(told.err)
    if format_ == "markdown":
        assert r"!\[p\](http" in told.out
        assert "![" not in told.out and " <b>" not in told.out


@pytest.mark.parametrize("format_", FORMATS)
def test_nor_is_anything_of_an_import_or_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format_: str
) -> None:
    run = written(tmp_path / "run", mixed(*default_run()))
    assert report.main([str(run), "--format", format_]) == 0
    assert shown(capsys.readouterr().out)


def test_colours_are_the_only_escapes_of_a_terminal(run: Path) -> None:
    asked = flags.parse([str(run)])
    assert asked is not None
    text = str(report.rendered(asked, report.joined([run], although_different=False), color=True))
    for colour in ("0", "1", "2", "31", "32", "33", "1;31"):
        text = text.replace(f"\x1b[{colour}m", "")
    assert shown(text)


def test_json_reads_back_what_it_escapes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(run), "--format", "json"]) == 0
    host = json.loads(capsys.readouterr().out)["run"]["hosts"][0]
    assert host["hostname"] == f"node1{HOSTILE}"


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path / "run", default_run())
    text = (run / "run.jsonl").read_text().replace("fake:a", r"\u200b=fake:a")
    (run / "run.jsonl").write_text(text)
    assert report.main([str(run), "--format", "csv"]) == 0
    rows = list(csv_module.DictReader(io.StringIO(capsys.readouterr().out)))
    assert any(row["strategy"].startswith("'=fake:a") for row in rows)
    assert not any(str(cell).startswith(("=", "@")) for row in rows for cell in row.values())


def test_an_error_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain(UsageError(f"--strategy {HOSTILE}"), "scaling report")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and shown(said)


def test_a_preflight_shows_what_it_found() -> None:
    found = Findings(facts=facts(), verdicts=(Verdict(level="error", topic="mtu", text=HOSTILE),), wall_s=1.0)
    text = check_words.render(spoil(Findings, found))
    assert "31m" in text and shown(text)


def test_a_prediction_has_the_names_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path / "run", spoilt(*default_run()))
    for format_ in ("table", "json"):
        code = predict.main([str(run), "--world-sizes", "4", "--format", format_])
        told = capsys.readouterr()
        assert code in (0, 2) and shown(told.out + told.err) and told.out + told.err


@pytest.mark.parametrize("view", [PlainView, LiveView])
def test_views_show_what_ran(view: Any) -> None:
    stream, clock = io.StringIO(), points.Clock()
    screen = view(stream, clock)
    header, records = spoilt(*default_run())
    screen.opened(header, len(records))
    screen.finished(records[0], [spoil(Row, points.row(2))], 1, len(records), 1.0)
    screen.note(HOSTILE)
    screen.closed()
    text = stream.getvalue()
    assert "31m" in text
    for sign in ("\x1b]52", "\x07", "\x9b", "\u202e", "\u2066", "\u200b", "\u2028"):
        assert sign not in text
