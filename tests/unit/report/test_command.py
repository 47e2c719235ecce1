"""`python -m scaling report`: what it prints, and what it refuses."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.records import store
from scaling.records.run import Header
from scaling.records.store import FILE
from scaling.report import __main__ as command
from tests.support.report_scenes import cluster_run, default_run
from tests.support.scripted_records import host, written

GOLDEN = Path(__file__).parents[2] / "golden"


def refusal(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    assert command.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("scaling report: error: ") and err.count("\n") == 1
    return err.removeprefix("scaling report: error: ").rstrip()


@pytest.mark.parametrize(("kind", "golden"), [("table", "cluster.txt"), ("csv", "cluster.csv")])
def test_output_goes_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, golden: str
) -> None:
    run = written(tmp_path / "run", cluster_run())
    target = tmp_path / "report"
    assert command.main([str(run), "--format", kind, "--output", str(target)]) == 0
    assert target.read_bytes() == (GOLDEN / golden).read_bytes()
    assert capsys.readouterr() == ("", "")


def test_a_runs_records_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 points once takes a third of a report's time."""
    read: list[str] = []
    of = store._read_header

    def counted(path: Path, line: bytes) -> Header:
        read.append(path.parent.name)
        return of(path, line)

    monkeypatch.setattr(store, "_read_header", counted)
    runs = [str(written(tmp_path / name, default_run())) for name in ("a", "b")]
    assert command.main([*runs, "--output", str(tmp_path / "table")]) == 0
    assert read == ["a", "b"]


def test_like_runs_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(written(tmp_path / name, default_run())) for name in ("a", "b")]
    assert command.main([*runs, "--format", "json"]) == 0
    found = json_module.loads(capsys.readouterr().out)
    assert found["joined"] == ["2 runs in one table: a, b"]
    assert [row["rounds"] for row in found["rows"]] == [6, 6]


def test_names_in_another_encoding_are_joined(tmp_path: Path) -> None:
    runs = [str(written(tmp_path / os.fsdecode(name), default_run())) for name in (b"a\xfe", b"b\xff")]
    for format_ in ("table", "json", "csv", "latex", "markdown"):
        assert command.main([*runs, "--format", format_, "-o", str(tmp_path / "out")]) == 0
        assert (tmp_path / "out").read_text("utf-8")


def test_unlike_runs_are_refused_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, records = default_run()
    other = replace(made, hosts=(host("node9"),), code="beef")
    runs = [str(written(tmp_path / "a", (made, records))), str(written(tmp_path / "b", (other, records)))]
    said = refusal(capsys, runs)
    assert "hosts differ: node1 | node9; revisions of its code differ: c0de | beef; --join" in said
    assert command.main([*runs, "--join"]) == 0
    text = capsys.readouterr().out
    assert "! 2 runs in one table: a, b" in text
    assert "! joined although hosts differ: node1 | node9" in text
    assert "node1 node9 (2 hosts" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument 'RUN'"),
        (["nowhere"], "nowhere: not a run"),
        (["RUN", "RUN/run.jsonl"], "the same run is given twice"),
        (["RUN", "--format", "pptx"], "'pptx' is not one of 'table', 'markdown', 'csv', 'json', 'html', 'svg'"),
        (["RUN", "--format", "svg"], "--format svg: which figure? Add --figure, one of speedup, efficiency, loss"),
        (["RUN", "--figure", "loss"], "--figure loss: only with --format svg, png, pdf; html has all of them"),
        (["RUN", "--format", "png", "--figure", "loss", "--scale", "nan"], "--scale nan: not from 0.1 to 10"),
        (["RUN", "--theme", "dark"], "--theme dark: only with --format svg, png, pdf"),
        (["RUN", "--format", "svg", "--figure", "loss", "--scale", "3"], "--scale 3: only with --format png"),
        (["RUN", "--epoch-samples", "9"], "--epoch-samples 9: for the price of an epoch; add --prices FILE"),
        (["RUN", "--knee", "2"], "--knee 2: of costs; add --prices FILE or --base"),
        (["RUN", "--format", "csv", "--output", "RUN"], "/run: is a folder; name a file in it"),
        (["RUN", "--colour"], "--colour"),
        (["RUN", "--output", "RUN/none/report"], "--output RUN/none/report: No such file or directory"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    run = str(written(tmp_path / "run", default_run()))
    text = refusal(capsys, [argument.replace("RUN", run) for argument in arguments])
    assert said.replace("RUN/", f"{run}/") in text


@pytest.mark.parametrize("format_", ["table", "html", "csv"])
def test_a_runs_own_file_is_never_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format_: str
) -> None:
    """Also by another name of it: what was measured is not brought back."""
    file = written(tmp_path / "run", default_run()) / FILE
    whole = file.read_bytes()
    link = tmp_path / "page.html"
    link.symlink_to(file)
    for output in (file, link):
        asked = [str(file.parent), "--format", format_, "--output", str(output)]
        assert f"--output {output}: is what a run is kept in; name another file" in refusal(capsys, asked)
    assert file.read_bytes() == whole


def test_a_newer_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, records = default_run()
    run = written(tmp_path / "run", (replace(made, schema=made.schema + 1), records))
    assert "run.jsonl:1: schema" in refusal(capsys, [str(run)])
