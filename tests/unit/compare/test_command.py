"""`python -m scaling compare`: exit codes, formats, what its README promises."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from scaling.report import archive
from scaling.tools.compare import __main__ as command
from scaling.tools.compare import flags
from scaling.tools.compare.found import Found
from tests.support.compared_runs import FINE, SLOW, Run, changed, launch, on_disk, run, without_noise
from tests.support.golden import check_golden
from tests.support.inline import Launch
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import host

FORMATS = ("table", "markdown", "json", "junit", "github-action-benchmark")
NOISE = ("noise=0.02", "round_noise=0.004", "exchange_s=0.001")


def swept(folder: Path, seed: int, *options: str) -> str:
    """A sweep of 1, 2 and 4 ranks; its options stand for code, and are in no name."""
    folder.mkdir()
    run = Launch(4).sweep(folder, option=[*NOISE, *options], seed=seed, rounds=5)
    records = [replace(one, point=replace(one.point, options={})) for one in run.records]
    return on_disk(folder / "run", (run.header, records))


@pytest.mark.parametrize(("planted", "code"), [((), 0), (("overhead_s=0.0006",), 1)])
def test_the_gate(tmp_path: Path, planted: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """0.6 ms of 10 to 11: 5 to 6 %."""
    base = swept(tmp_path / "base", 1)
    assert command.main([base, swept(tmp_path / "new", 2, *planted)]) == code
    assert ("slower" in capsys.readouterr().out.partition("How to read")[0].partition("! ")[2]) is bool(code)


def test_archives_are_compared_as_their_runs_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [on_disk(tmp_path / name, without_noise()) for name in ("base", "new")]
    packed = [tmp_path / f"{name}.tgz" for name in ("base", "new")]
    for side, file in zip(sides, packed, strict=True):
        file.write_bytes(archive.pack(Path(side)))
    found = []
    for runs in (sides, [str(packed[0]), sides[1]], [*map(str, packed)]):
        found.append((command.main(runs), capsys.readouterr()))
    assert found[0][0] == 0 and found[1:] == found[:1] * 2
    assert command.main([str(packed[0])] * 2) == 0
    assert "the same run on both sides: base" in capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    assert command.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("scaling compare: error: ") and err.count("\n") == 1
    return err.removeprefix("scaling compare: error: ").rstrip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "RUN...: missing; usage: python -m scaling compare [FLAG]... RUN..."),
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
        (["A", "B", "--metric", "speed"], "--metric: 'speed' is not one of efficiency"),
        (["A", "B", "--metric", "cost"], "--metric cost: needs --prices FILE"),
        (["A", "B", "--metric", "cost", "--prices", "A"], "--prices A: Is a directory"),
        (["A", "B", "--format", "html"], "--format: 'html' is not one of table"),
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
        (lambda text: text[:-40], ""),  # the last line is left out
    ],
)
def test_runs_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[str], str], said: str
) -> None:
    path = run(tmp_path, "a")
    file = Path(path) / "run.jsonl"
    file.write_text(damage(file.read_text()))
    if said:
        assert said in refusal(capsys, [path, path])
    else:
        assert (command.main([path, path]), capsys.readouterr().err) == (0, "")


def test_a_run_that_is_still_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = run(tmp_path, "a"), run(tmp_path, "b")
    with (Path(b) / "run.jsonl").open("ab") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert "is still being written; compare it when its sweep has ended" in refusal(capsys, [a, b])
    assert command.main([a, b]) == 0


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


def test_other_hosts_and_another_revision_are_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = changed(FINE, lambda one: one, hosts=(host("runner-2"),), code="beef", version="0.2.0")
    assert command.main([run(tmp_path, "a"), run(tmp_path, "b", newer)]) == 0
    text = capsys.readouterr().out
    assert "! hosts: node1 | runner-2" in text and "! versions of scaling: 0.1.0 | 0.2.0" in text


def test_unlike_runs_on_one_side_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [FINE, changed(FINE, lambda one: one, code="beef"), FINE]
    *base, new = (run(tmp_path, name, made) for name, made in zip("abc", runs, strict=True))
    said = refusal(capsys, [new, "--against", *base])
    assert "BASE: these runs are not alike: revisions of its code differ: c0de | beef" in said
    assert command.main([new, "--against", *base, "--although-different"]) == 0


def test_older_schemas_are_compared(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_bytes((Path(__file__).parents[2] / "schema" / "schema-1.jsonl").read_bytes())
    assert command.main([str(tmp_path), str(tmp_path)]) in (0, 2)


NOISY = launch(Random(1), sd=0.05)


# ---------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("base", "new", "arguments", "code"),
    [
        (FINE, FINE, (), 0),
        (FINE, SLOW, (), 1),
        (SLOW, FINE, (), 0),
        (FINE, SLOW, ("--fail-above", "10%"), 0),
        (FINE, SLOW, ("--fail-above", "4"), 1),
        (FINE, SLOW, ("--metric", "images_per_s"), 1),
        (NOISY, NOISY, (), 0),
        (NOISY, NOISY, ("--require-proof",), 3),
        (FINE, SLOW, ("--require-proof",), 1),
        (FINE, FINE, ("--require-proof",), 0),
    ],
)
def test_exit_codes(tmp_path: Path, base: Run, new: Run, arguments: Sequence[str], code: int) -> None:
    paths = [run(tmp_path, "base", base), run(tmp_path, "new", new)]
    assert command.main([*paths, *arguments]) == code


@pytest.mark.parametrize("format_", FORMATS)
def test_a_name_in_another_encoding_is_no_loss(tmp_path: Path, format_: str) -> None:
    """What goes wrong in Python exits with 1, which says that something became slower."""
    paths = [run(tmp_path, os.fsdecode(name)) for name in (b"base-\xfe", b"new-\xff")]
    out = tmp_path / "out"
    assert command.main([*paths, "--format", format_, "-o", str(out)]) == 0
    assert out.read_text("utf-8")


def test_runs_against_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All runs after --against are the base, in whatever order they are given."""
    noise: dict[str, Any] = {"sd": 0.002, "rounds": 3}
    base = [run(tmp_path, f"b{seed}", launch(Random(seed), **noise)) for seed in range(3)]
    made = (launch(Random(9 + seed), lost=0.05, **noise) for seed in range(3))
    new = [run(tmp_path, f"n{seed}", one) for seed, one in enumerate(made)]
    first, *rest = base
    for arguments in (
        [*new, "--against", *base],
        ["--against", *base, "--", *new],
        [*new, f"--against={first}", *rest],
    ):
        asked = flags.parse(arguments)
        assert asked and [list(map(str, side)) for side in (asked.base, asked.new)] == [base, new]
        assert command.main(arguments) == 1
    capsys.readouterr()
    assert command.main([*base, "--format", "json", "--against", *new]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["unit"], found["base"], found["new"]) == ("runs", ["n0", "n1", "n2"], ["b0", "b1", "b2"])
    assert found["counts"] == {"faster": 4, "same": 2}


# ---------------------------------------------------------------- older runs, and what is said of power


def history(folder: Path, launch_sd: float, count: int = 6) -> Path:
    """So many launches of the same code, which differ by `launch_sd`."""
    folder.mkdir(exist_ok=True)
    for seed in range(count):
        run(folder, f"old{seed}", launch(Random(seed), rounds=2, sd=0.001, launch_sd=launch_sd))
    return folder


def found_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    code = command.main([*arguments, "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == code
    return found


def test_the_folder_of_the_base_shows_how_launches_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").mkdir()
    base, new = (run(tmp_path, name, launch(Random(90), sd=0.001)) for name in ("results/base", "new"))
    assumed = found_of(capsys, base, new)
    history(tmp_path / "results", 0.02)
    learnt = found_of(capsys, base, new)
    assert (assumed["learnt_from"], learnt["learnt_from"]) == (0, 7)
    for before, after in zip(assumed["cells"], learnt["cells"], strict=True):
        assert (before["launch_sd"], before["launch_sd_is_assumed"]) == (0.005, True)
        assert 0.01 < after["launch_sd"] < 0.04 and not after["launch_sd_is_assumed"]
        assert before["detects"] < 0.03 < after["detects"]
    assert any("are assumed to differ by 0.5 %" in one for one in assumed["notices"])
    assert not any("assumed" in one for one in learnt["notices"])
    command.main([base, new])
    text = " ".join(capsys.readouterr().out.split())
    assert "learnt from 7 runs" in text and "in a cell is found in 80 % of cases" in text


def test_a_flag_names_the_folder_of_older_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, new = (run(tmp_path, name, launch(Random(90), sd=0.001)) for name in ("a", "b"))
    older = history(tmp_path / "older", 0.0, count=9)
    found = found_of(capsys, base, new, "--history", str(older))
    assert found["learnt_from"] == 10
    assert all(cell["launch_sd"] < 0.003 for cell in found["cells"])
    said = refusal(capsys, [base, new, "--history", str(tmp_path / "none")])
    assert said.endswith("none: No such file or directory; give a folder with runs")


def test_later_runs_of_other_code_and_few_runs_show_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slow run of the day before would hide today's loss of the same kind."""
    base, new = run(tmp_path, "a"), run(tmp_path, "b", SLOW)
    for number in range(6):
        later = changed(SLOW, lambda one: one, created_unix_s=FINE[0].created_unix_s + 3600)
        run(tmp_path, f"later{number}", later)
        run(tmp_path, f"other{number}", changed(SLOW, lambda one: one, code=f"c0de{number}"))
    history(tmp_path, 0.1, count=3)
    found = found_of(capsys, base, new)
    assert (found["learnt_from"], found["exit_code"]) == (0, 1)


# ---------------------------------------------------------------- formats


EMULATED: dict[str, Any] = {"device": "emulated", "profile": "p100", "shrink": 10.0, "dilate": 4.0}
COMPARED: dict[str, tuple[Run, Run]] = {
    "slower": (FINE, SLOW),
    "undecided": (NOISY, NOISY),
    "mislabelled": (SCENES["networks"](), SCENES["networks"]()),
    "emulated": (without_noise(**EMULATED), without_noise(**EMULATED)),
}


@pytest.mark.parametrize("name", COMPARED)
def test_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    paths = [run(tmp_path, side, made) for side, made in zip(("a", "b"), COMPARED[name], strict=True)]
    told = []
    for format_ in FORMATS:
        code = command.main([*paths, "--format", format_])
        told.append(f"## {format_}: exit code {code}\n{capsys.readouterr().out}")
        assert name != "emulated" or "EMULATED" in told[-1]
    check_golden(f"compare-{name}.txt", "\n".join(one for one in told if not one.startswith("## json")))


def test_with_a_proof_required_an_undecided_cell_of_junit_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = run(tmp_path, "c", NOISY)
    for arguments, counts in (([], ("6", "0", "6")), (["--require-proof"], ("6", "6", "0"))):
        command.main([noisy, noisy, "--format", "junit", *arguments])
        suite = ElementTree.fromstring(capsys.readouterr().out)
        assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == counts


def test_junit_survives_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = changed(FINE, lambda one: replace(one, point=replace(one.point, interconnect="e\x1bt<h>&0")))
    paths = [run(tmp_path, "a", made), run(tmp_path, "b", made)]
    assert command.main([*paths, "--format", "junit"]) == 0
    suite = ElementTree.fromstring(capsys.readouterr().out)
    assert any("e t<h>&0" in str(case.get("name")) for case in suite.iter("testcase"))


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("format_", FORMATS)
def test_every_scene_is_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, format_: str
) -> None:
    """Whatever marks it has: failed, emulated, asynchronous, mislabelled; nothing is worse than itself."""
    path = run(tmp_path, "a", SCENES[name]())
    assert command.main([path, path, "--format", format_]) in (0, 2)
    out, err = capsys.readouterr()
    assert bool(out) or "nothing to compare" in err


@pytest.mark.parametrize(
    ("base", "new", "change", "verdict"), [(FINE, SLOW, 1 / 0.95 - 1, "worse"), (SLOW, FINE, -0.05, "better")]
)
def test_cost_is_that_of_the_rate_turned_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], base: Run, new: Run, change: float, verdict: str
) -> None:
    prices = tmp_path / "mine.toml"
    prices.write_text(
        'currency = "USD"\n[[price]]\nname = "box"\nmatch = { cpu = "Test*" }\ndevices = 4\n'
        "per_hour = { spot = 0.5, on_demand = 2.0 }\n"
    )
    paths = [run(tmp_path, "a", base), run(tmp_path, "b", new)]
    asked = ["--metric", "cost", "--prices", str(prices), "--format", "json"]
    assert command.main([*paths, *asked]) == (verdict == "worse")
    cell = json.loads(capsys.readouterr().out)["cells"][2]
    assert (cell["verdict"], cell["unit"]) == (verdict, "USD")
    assert cell["change"]["mean"] == pytest.approx(change)
    step_s = 0.109 / (0.95 if base is SLOW else 1)  # of 32 samples on each of 4 devices
    assert cell["base"]["mean"] == pytest.approx(2.0 / 3600 * 1e6 / (4 * 32) * step_s)  # on demand


def test_tokens_are_counted_as_the_report_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text: dict[str, Any] = {"model": "transformer", "data": "text", "unit": "tokens", "sequence_length": 128}
    path = [run(tmp_path, name, without_noise(**text)) for name in ("base", "new")]
    assert command.main([*path, "--metric", "samples_per_s", "--format", "json"]) == 0
    one = json.loads(capsys.readouterr().out)["cells"][0]
    # 32 sequences of 128 tokens in 0.1 s
    assert (one["unit"], one["base"]["mean"]) == ("tokens/s", pytest.approx(40_960))


def test_energy_needs_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path, "gpus", SCENES["gpus"]())
    assert command.main([path, path, "--metric", "j_per_image", "--format", "json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert {cell["verdict"] for cell in cells} == {"cannot tell"}
    told = [cell for cell in cells if cell["base"]]
    assert told and all("energy" in cell["reason"] and cell["unit"] == "J/sample" for cell in told)


def test_json_decodes_as_its_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([run(tmp_path, "a"), run(tmp_path, "b", SLOW), "--format", "json"]) == 1
    found = msgspec.json.decode(capsys.readouterr().out, type=Found)
    cell = found.cells[1]
    assert len(found.cells) == 6 and found.fail_above == 0.02
    assert (cell.strategy, cell.world_size, cell.verdict) == ("fake:a", 2, "slower")
    assert cell.change and cell.change.mean == pytest.approx(-0.05) and (cell.change.confidence or 0) > 0.95


def test_the_workflow_of_the_readme_is_yaml_whose_calls_this_version_reads() -> None:
    readme = (Path(flags.__file__).parent / "README.md").read_text()
    workflow = yaml.safe_load(readme.partition("```yaml\n")[2].partition("```")[0])
    steps = "\n".join(step.get("run", "") for step in workflow["jobs"]["compare"]["steps"]).replace("\\\n", "")
    calls = [line.partition("scaling compare ")[2] for line in steps.splitlines() if "scaling compare " in line]
    assert len(calls) == 2
    for call in calls:
        words = re.split(r"\|\||>>", call)[0].split()
        asked = flags.parse(words)
        assert asked and (asked.new, asked.base) == ([Path("../results-new/*")], [Path("../results-base/*")])
