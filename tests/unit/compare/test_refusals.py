"""What `python -m scaling compare` refuses, and which runs it does not compare."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from pathlib import Path

import pytest

from scaling.tools.compare import __main__ as command
from tests.support.compared_runs import FINE, SLOW, changed, run
from tests.support.scripted_records import host


def refusal(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    """The one line on stderr of a command that exits 2 and prints nothing."""
    assert command.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("scaling compare: error: ") and err.count("\n") == 1
    return err.removeprefix("scaling compare: error: ").rstrip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument 'RUN...'"),
        (["A"], "RUN: 1 without --against: give BASE NEW"),
        (["A", "B", "A"], "RUN: 3 without --against"),
        (["A", "nowhere"], "nowhere: not a run"),
        (["A", "--against", "B", "B/run.jsonl"], "given twice on one side"),
        (["A", "B", "--fail-above", "nan"], "--fail-above nan: give a loss of 0 to below 100 percent, like 2%"),
        (["A", "B", "--fail-above", "inf"], "--fail-above inf: give"),
        (["A", "B", "--fail-above=-1%"], "--fail-above -1%: give"),
        (["A", "B", "--fail-above", "100"], "--fail-above 100: give"),
        (["A", "B", "--fail-above", "two"], "--fail-above two: give"),
        (["A", "B", "--fail-above", ""], "--fail-above : give"),
        (["A", "B", "--metric", "speed"], "'speed' is not one of 'efficiency'"),
        (["A", "B", "--metric", "cost"], "--metric cost: needs --prices FILE"),
        (["A", "B", "--metric", "cost", "--prices", "A"], "--prices A: Is a directory"),
        (["A", "B", "--format", "html"], "'html' is not one of 'table'"),
        (["A", "B", "--output", "A"], "--output A: is a folder; name a file in it"),
        (["A", "B", "--output", "A/none/f"], "--output A/none/f: No such file or directory"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    paths = {name: run(tmp_path, name) for name in ("A", "B")}
    given = [
        paths.get(word, word.replace("A/", f"{paths['A']}/").replace("B/", f"{paths['B']}/")) for word in arguments
    ]
    text = refusal(capsys, given)
    assert said in text.replace(paths["A"], "A").replace(paths["B"], "B")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text.replace('"schema":3', '"schema":99', 1), "schema 99, this version reads up to 3"),
        (lambda text: "no json\n" + text, "run.jsonl:1: not a run's header"),
        (lambda text: text.replace('{"type":"point"', '{"type":"joint"', 1), "run.jsonl:2: not a point record"),
        (lambda text: "", "it has no header line"),
        (lambda text: text.split("\n")[0] + "\n", "neither side has measured an exchange"),
    ],
)
def test_runs_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: object, said: str
) -> None:
    path = run(tmp_path, "a")
    file = Path(path) / "run.jsonl"
    file.write_text(damage(file.read_text()))  # type: ignore[operator]
    assert said in refusal(capsys, [path, path])


def test_a_run_that_is_still_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run(tmp_path, "a"), run(tmp_path, "b")
    with (Path(b) / "run.jsonl").open("ab") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert "is still being written; compare it when its sweep has ended" in refusal(capsys, [a, b])
    assert command.main([a, b]) == 0


def test_a_truncated_last_line_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path, "a")
    file = Path(path) / "run.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    assert command.main([path, path]) == 0
    assert capsys.readouterr().err == ""


def test_runs_of_other_versions_are_not_compared_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a gate that compared nothing is not green."""
    newer = changed(SLOW, lambda one: one, hosts=(host(versions={"torch": "2.14.0"}),))
    paths = [run(tmp_path, "a"), run(tmp_path, "b", newer)]
    assert command.main(paths) == 2
    out, err = capsys.readouterr()
    assert "not comparable" in out and "versions of torch 2.13.0 | 2.14.0" in out
    assert err.count("\n") == 1 and "no cell could be compared" in err
    assert command.main([*paths, "--although-different"]) == 1
    assert "! compared although they differ: versions of torch" in capsys.readouterr().out


def test_other_hosts_and_another_revision_are_what_a_ci_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = changed(FINE, lambda one: one, hosts=(host("runner-2"),), code="beef", version="0.2.0")
    assert command.main([run(tmp_path, "a"), run(tmp_path, "b", newer)]) == 0
    text = capsys.readouterr().out
    assert "! hosts: node1 | runner-2" in text and "! versions of scaling: 0.1.0 | 0.2.0" in text


def test_unlike_runs_on_one_side_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = changed(FINE, lambda one: one, code="beef")
    paths = [run(tmp_path, "a"), run(tmp_path, "b", other), run(tmp_path, "c")]
    said = refusal(capsys, [paths[2], "--against", *paths[:2]])
    assert "BASE: these runs are not alike: revisions of its code differ: c0de | beef" in said
    assert command.main([paths[2], "--against", *paths[:2], "--although-different"]) == 0


def test_older_schemas_are_compared(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "run.jsonl").write_bytes((Path(__file__).parents[2] / "schema" / "schema-1.jsonl").read_bytes())
    assert command.main([str(folder), str(folder)]) in (0, 2)
