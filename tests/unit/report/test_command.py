"""`python -m scaling report`: refusals, the schema, layouts, LaTeX, hostile texts."""

from __future__ import annotations

import csv as csv_module
import io
import json
import json as json_module
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.table.catalogue import CAUSES
from scaling.analysis.table.rows import Column, Row
from scaling.command import complain
from scaling.errors import UsageError
from scaling.records import store
from scaling.records.run import Header
from scaling.records.store import FILE
from scaling.report import __main__ as command
from scaling.report import flags
from scaling.report.formats import json as json_format
from scaling.report.formats import latex
from scaling.report.formats.terminal import WIDTH, fitted
from scaling.report.material import Material
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
from tests.support.inline_child import Clock
from tests.support.report_scenes import SCENES, cluster_run, default_run
from tests.support.scripted_records import host, written
from tests.support.spoilt import HOSTILE, mixed, shown, spoil, spoilt

# `python -m scaling report`: what it prints, and what it refuses.

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
    assert "hosts differ: node1 | node9; revisions of its code differ: c0de | beef; add --join" in said
    assert command.main([*runs, "--join"]) == 0
    text = capsys.readouterr().out
    assert "! 2 runs in one table: a, b" in text
    assert "! joined although hosts differ: node1 | node9" in text
    assert "hosts node1 node9 ·" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "RUN...: missing; usage: python -m scaling report [FLAG]... RUN..."),
        (["nowhere"], "nowhere: not a run: nowhere/run.jsonl: No such file or directory"),
        (["RUN/.."], "/run/..: not a run: its newest one is "),
        (["RUN/page.html"], "/run/page.html: not a run: give its folder: "),
        (["RUN", "RUN/run.jsonl"], "the same run is given twice"),
        (["RUN", "--format", "pptx"], "--format: 'pptx' is not one of table, markdown, csv, json, html, svg"),
        (["RUN", "--format", "svg"], "--format svg: --figure is missing; give one of speedup, efficiency, loss"),
        (["RUN", "--format", "html", "--column"], "--column: only with --format svg, png, pdf, and not with"),
        (["RUN", "--format", "pdf", "--figure", "screen"], "--figure screen: only with --format svg, not pdf"),
        (["RUN", "--figure", "loss"], "--figure loss: only with --format svg, png, pdf; html has all figures"),
        (["RUN", "--format", "png", "--figure", "loss", "--scale", "nan"], "--scale nan: must be from 0.1 to 10"),
        (["RUN", "--theme", "dark"], "--theme dark: only with --format svg, png, pdf"),
        (["RUN", "--format", "svg", "--figure", "loss", "--scale", "3"], "--scale 3: only with --format png"),
        (["RUN", "--epoch-samples", "9"], "--epoch-samples 9: only for the price of an epoch; add --prices FILE"),
        (["RUN", "--knee", "2"], "--knee 2: only for costs; add --prices FILE or --base"),
        (["RUN", "--format", "csv", "--output", "RUN"], "/run: is a folder; name a file in it"),
        (["RUN", "--colour"], "--colour"),
        (["RUN", "RUN", "--format", "archive"], "--format archive: packs one RUN, 2 are given"),
        (
            ["RUN", "--format", "archive", "--base", "x N=1"],
            "--base x N=1: not with --format archive, which has no",
        ),
        (
            ["RUN", "--format", "openmetrics", "--base", "x N=1"],
            "--base x N=1: not with --format openmetrics, which",
        ),
        (["RUN", "--format", "archive", "-o", "RUN"], "/run: is a folder; name a file in it"),
        (
            ["RUN", "--format", "archive", "-o", "RUN/run.jsonl"],
            "/run.jsonl: is what a run is kept in; name another",
        ),
        (["nowhere.tgz", "--format", "csv"], "nowhere.tgz: cannot be unpacked: No such file or directory"),
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


# The JSON of a report is what its schema says, today's and that of older versions; the package keeps it.

KEPT = Path(flags.__file__).with_name("schema.json")
OLD = sorted((Path(__file__).parents[2] / "schema").glob("report-*.json"))
assert OLD


def told(text: str) -> Any:
    return json.loads(msgspec.json.encode(msgspec.json.decode(text, type=json_format.report_type())))


def test_the_package_keeps_the_schema() -> None:
    """Else: python -m scaling report --schema > scaling/report/schema.json."""
    assert KEPT.read_text() == json_format.schema()


def test_the_command_prints_it_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--schema"]) == 0
    assert capsys.readouterr().out == KEPT.read_text()


@pytest.mark.parametrize("name", SCENES)
def test_what_is_printed_is_of_the_type_and_of_nothing_else(name: str) -> None:
    text = json_format.render(Material(*SCENES[name]()))
    assert told(text) == json.loads(text)


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name)
def test_reports_of_older_versions_are_still_valid(path: Path) -> None:
    """Fields are only ever added, and what was printed comes out again."""
    text = path.read_text()
    assert _without_new(told(text), json.loads(text)) == json.loads(text)


def _without_new(found: Any, printed: Any) -> Any:
    if isinstance(found, dict) and isinstance(printed, dict):
        return {name: _without_new(value, printed[name]) for name, value in found.items() if name in printed}
    if isinstance(found, list) and isinstance(printed, list):
        return [_without_new(one, other) for one, other in zip(found, printed, strict=True)]
    return found


# Tables that are wider than a terminal: their names give way, and no number does.

NAMES = ("mxnet:dist_async", "tensorflow:ring")
LOSSES = ("contention", "straggling", "exchange_cpu", "servers", "waiting", "unexplained")


def table(within: str) -> tuple[list[Column], list[tuple[str, ...]]]:
    columns = [
        Column(key="name", short=("", ""), is_text=True),
        Column(key="rate", title="images/s"),
        Column(key="within", title="within its framework", is_text=True),
        Column(key="efficiency", title="efficiency"),
        *(column for column in CAUSES if column.key in LOSSES),
    ]
    losses = ("(12.3)", "(-5.8)", "(-27.9)", "(11.8)", "(-10.5)", "-0.2")
    return columns, [(name, "1,989.8", within, "not comparable", *losses) for name in NAMES]


@pytest.mark.parametrize("within", ["-", "leading, -11.1 ± 21.4 %"])
def test_names_give_way_to_numbers(within: str) -> None:
    """The last column, the rest, was cut off where a comparison has both servers and exchange's CPU."""
    layout = fitted(*table(within))
    assert layout.end <= WIDTH
    assert all(width >= len(cell) for width, cell in zip(layout.widths[1:], table(within)[1][0][1:], strict=True))


# LaTeX: nothing of a run is a command, every table is whole.


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_tables_have_as_many_cells_as_columns(scene: str) -> None:
    text = latex.render(Material(*SCENES[scene]()).doc)
    for kinds, body in re.findall(r"\\begin{tabular}{(\w+)}\n(.*?)\\end{tabular}", text, flags=re.DOTALL):
        for line in body.splitlines():
            if line.endswith(r"\\") and "multicolumn" not in line:
                assert len(re.findall(r"(?<!\\)&", line)) == len(kinds) - 1, line
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == len(Material(*SCENES[scene]()).doc.tables)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            r"\input{/etc/passwd} 5 % & $x_1$ ~^#",
            r"\textbackslash{}input\{/etc/passwd\} 5 \% \& \$x\_1\$ \textasciitilde{}\textasciicircum{}\#",
        ),
        # In OT1, which a document has without fontenc, a straight quotation mark is no command.
        ('open "libnccl.so" at 80 °', "open ''libnccl.so'' at 80 $^\\circ$"),
        # A minus is no hyphen.
        ("-2.1 ± 3.2, (-1 to 2)", r"$-$2.1 $\pm$ 3.2, ($-$1 to 2)"),
        ("2026-11-28 --batch-size 64 x-1", "2026-11-28 --batch-size 64 x-1"),
    ],
)
def test_signs_of_latex_are_printed_as_they_are(text: str, shown: str) -> None:
    assert latex.escaped(text) == shown


# No text of a record commands a terminal, turns or hides text, or is markup, whatever prints it.

RUNS = {"default": lambda: spoilt(*default_run()), "gpus": lambda: spoilt(*gpus_run())}
FORMATS = ("table", "markdown", "latex", "csv", "json", "openmetrics")
COMMANDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "report": (command, FORMATS),
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


@pytest.mark.parametrize("format_", [name for name in FORMATS if name != "openmetrics"])
def test_nor_is_anything_of_an_import_or_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format_: str
) -> None:
    run = written(tmp_path / "run", mixed(*default_run()))
    assert command.main([str(run), "--format", format_]) == 0
    assert shown(capsys.readouterr().out)


def test_colours_are_the_only_escapes_of_a_terminal(run: Path) -> None:
    asked = flags.parse([str(run)])
    assert asked is not None
    text = str(command.rendered(asked, command.joined([run], although_different=False), color=True))
    for colour in ("0", "1", "2", "31", "32", "33", "1;31"):
        text = text.replace(f"\x1b[{colour}m", "")
    assert shown(text)


def test_json_reads_back_what_it_escapes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(run), "--format", "json"]) == 0
    host = json.loads(capsys.readouterr().out)["run"]["hosts"][0]
    assert host["hostname"] == f"node1{HOSTILE}"


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path / "run", default_run())
    text = (run / "run.jsonl").read_text().replace("fake:a", r"\u200b=fake:a")
    (run / "run.jsonl").write_text(text)
    assert command.main([str(run), "--format", "csv"]) == 0
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
    stream, clock = io.StringIO(), Clock(1000.0)
    screen = view(stream, clock)
    header, records = spoilt(*default_run())
    screen.opened(header, len(records))
    screen.finished(records[0], [spoil(Row, points.row(2))], 1, len(records))
    screen.note(HOSTILE)
    screen.closed()
    text = stream.getvalue()
    assert "31m" in text
    for sign in ("\x1b]52", "\x07", "\x9b", "\u202e", "\u2066", "\u200b", "\u2028"):
        assert sign not in text
