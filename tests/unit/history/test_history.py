"""`python -m scaling history`: a line per run, letters for those that are comparable, and what it refuses."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.report.labels import headline as of_report
from scaling.tools.history import __main__ as command
from scaling.tools.history.lines import Headline, letter, line, read
from tests.support.compared_runs import Run, changed, without_noise
from tests.support.golden import check_golden
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import UNIX_S, close, failed, host, mean, written

DAY_S = 86400.0


def folder(tmp_path: Path, **runs: Run) -> Path:
    results = tmp_path / "results"
    results.mkdir()
    for day, (name, (header, records)) in enumerate(runs.items()):
        made = replace(header, created_unix_s=UNIX_S + day * DAY_S)
        written(results / f"20260725-17200{day}-{name}", (made, records))
    return results


def listed(results: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert command.main([str(results), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def headline(run: Run) -> Headline:
    found = line(Path("run"), *run).headline
    assert found is not None
    return found


# ---------------------------------------------------------------- a line


@pytest.mark.parametrize("name", ["default", "cluster", "strong", "frameworks", "servers", "networks"])
def test_the_headline_is_the_reports(name: str) -> None:
    run = SCENES[name]()
    found, row = headline(run), of_report(rows(run[1]))
    assert row is not None
    names = ("strategy", "interconnect", "world_size")
    assert [getattr(found, name) for name in names] == [getattr(row, name) for name in names]
    assert found.samples_per_s == close(mean(row.samples_per_s))
    assert found.efficiency == (None if row.efficiency is None else close(mean(row.efficiency)))
    assert set(found.flags) == set(row.flags) - {"SUPERLINEAR", "DRIFTING"}
    # 4 ranks over eth0 are faster, but their bytes went over ib0: MISLABELLED.
    assert name != "networks" or found.interconnect == "ib0"


def test_a_line_costs_little_for_each_point() -> None:
    """Calls, which no other work on the machine changes: 1,300 a point made 13 s of 1,000 runs, a bar of 5 s."""
    run = without_noise(rounds=5)
    line(Path("r"), *run)
    calls = 0

    def count(frame: object, event: str, about: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        line(Path("r"), *run)
    finally:
        sys.setprofile(before)
    assert calls < 400 * len(run[1])


# ---------------------------------------------------------------- all runs


def listing() -> dict[str, Run]:
    """All scenes, and runs that have failures, other settings, or emulated devices."""
    hardware: dict[str, Any] = {"device": "emulated", "profile": "p100", "shrink": 10.0, "dilate": 4.0}
    return {
        **{name: of() for name, of in SCENES.items()},
        "slower": without_noise(lost=0.1),
        "large": changed(without_noise(precision="bf16", batch_size=64), lambda one: one, git="1234abc"),
        "broken": changed(without_noise(), lambda one: failed(one.point) if one.point.world_size == 4 else one),
        "emulated": without_noise(**hardware),
    }


@pytest.mark.parametrize("format_", ["table", "markdown", "csv"])
def test_the_runs_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    results = folder(tmp_path, **listing())
    (results / "20260725-172000-default").rename(results / "=HYPERLINK(1)")
    monkeypatch.chdir(tmp_path)
    assert command.main(["results", "--format", format_]) == 0
    text = capsys.readouterr().out
    check_golden(f"history-{format_}.txt", text)
    assert text.count("EMULATED") == 1
    assert len(listed(results, capsys)["runs"]) == len(listing())


@pytest.mark.parametrize(
    ("other", "like"),
    [
        (without_noise(lost=0.2), "A"),
        (changed(without_noise(), lambda one: one, hosts=(host("node7"),), code="beef", version="9"), "A"),
        (without_noise(batch_size=64), "B"),
        (without_noise(model="resnet50"), "B"),
        (without_noise(placement="spread"), "B"),
        (changed(without_noise(), lambda one: one, mpi="MPICH 4"), "B"),
        (changed(without_noise(), lambda one: one, hosts=(host(cpu_model="Other CPU"),)), "B"),
        (changed(without_noise(), lambda one: one, hosts=(host(versions={"torch": "2.14.0"}),)), "B"),
    ],
)
def test_runs_of_one_letter_are_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Run, like: str
) -> None:
    found = listed(folder(tmp_path, a=without_noise(), b=other), capsys)["runs"]
    assert [run["like"] for run in found] == ["A", like]


def test_letters_go_on_behind_z() -> None:
    assert [letter(place) for place in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]


# ---------------------------------------------------------------- what cannot be read


def test_a_run_that_is_still_written_is_listed_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = folder(tmp_path, a=without_noise())
    with (results / "20260725-172000-a" / "run.jsonl").open("ab") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert command.main([str(results)]) == 0
        assert "still being written" in capsys.readouterr().out
    assert listed(results, capsys)["runs"][0]["is_running"] is False


def test_one_run_that_cannot_be_read_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = folder(tmp_path, a=without_noise(), newer=without_noise(), damaged=without_noise())
    for name, old, new in (
        ("1-newer", '"schema":3', '"schema":99'),
        ("2-damaged", '{"type":"point"', '{"type":3'),
    ):
        path = results / f"20260725-17200{name}" / "run.jsonl"
        path.write_text(path.read_text().replace(old, new, 1))
    (results / "notes.txt").write_text("no run")
    (results / "empty").mkdir()
    found = listed(results, capsys)
    assert [run["run"] for run in found["runs"]] == ["20260725-172000-a"]
    newer, damaged = (one["reason"] for one in found["unreadable"])
    assert "schema 99" in newer and "run.jsonl:2: not a point record" in damaged
    assert command.main([str(results)]) == 0
    assert "! 20260725-172001-newer: cannot be read" in capsys.readouterr().out


def test_another_users_folder_hides_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder of results that several share; root, who may look into all, runs this test as well."""
    results = folder(tmp_path, a=without_noise(), private=without_noise())

    def denied(of: Callable[..., Any]) -> Callable[..., Any]:
        def act(path: Path, *args: Any, **given: Any) -> Any:
            if "private" in path.parent.name:
                raise PermissionError(errno.EACCES, "Permission denied")
            return of(path, *args, **given)

        return act

    monkeypatch.setattr(Path, "stat", denied(Path.stat))
    monkeypatch.setattr(Path, "read_bytes", denied(Path.read_bytes))
    found = listed(results, capsys)
    assert [run["run"] for run in found["runs"]] == ["20260725-172000-a"]
    (one,) = found["unreadable"]
    assert one["run"] == "20260725-172001-private" and "Permission denied" in one["reason"]


@pytest.mark.parametrize("format_", ["table", "json", "csv", "markdown", "html"])
def test_a_name_in_another_encoding_hides_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format_: str
) -> None:
    results = folder(tmp_path, a=without_noise(), b=without_noise())
    for name, bad in (("0-a", b"\xfe"), ("1-b", b"\xff")):
        (results / f"20260725-17200{name}").rename(results / os.fsdecode(b"run-" + bad))
    (results / os.fsdecode(b"run-\xff") / "run.jsonl").write_text("no run\n")
    out = tmp_path / "out"
    assert command.main([str(results), "--format", format_, "-o", str(out)]) == 0
    assert "run-" in out.read_text("utf-8") and "udcfe" in out.read_text("utf-8")
    (results / os.fsdecode(b"run-\xfe") / "run.jsonl").write_text("no run\n")
    assert command.main([str(results), "--format", format_, "-o", str(out)]) == 0  # nothing can be read


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "RESULTS_DIR nowhere: No such file or directory; give the folder with the runs"),
        (["FILE"], "RESULTS_DIR FILE: Not a directory"),
        (["EMPTY"], "RESULTS_DIR EMPTY: it has no run"),
        (["RUN"], "RESULTS_DIR RUN: it is a run itself: give RESULTS"),
        (["RESULTS", "--format", "pdf"], "--format: 'pdf' is not one of table"),
        (["RESULTS", "--output", "RESULTS"], "--output RESULTS: is a folder; name a file in it"),
        (["RESULTS", "more"], "more: unexpected; usage: python -m scaling history [FLAG]... [RESULTS_DIR]"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], said: str
) -> None:
    results = folder(tmp_path, a=without_noise())
    (tmp_path / "empty").mkdir()
    places = {
        "RUN": results / "20260725-172000-a",
        "FILE": results / "20260725-172000-a" / "run.jsonl",
        "EMPTY": tmp_path / "empty",
        "RESULTS": results,
    }
    assert command.main([str(places.get(word, word)) for word in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("scaling history: error: ") and err.count("\n") == 1
    for name, path in places.items():
        err = err.replace(f"{path}:", f"{name}:").replace(f"{path}\n", f"{name}\n")
    assert said.lower() in err.lower()


def test_older_schemas_are_listed(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"run-{number}").mkdir()
        old = Path(__file__).parents[2] / "schema" / f"schema-{number}.jsonl"
        (tmp_path / f"run-{number}" / "run.jsonl").write_bytes(old.read_bytes())
    lines, unreadable = read(tmp_path)
    assert len(lines) == 3 and unreadable == []
