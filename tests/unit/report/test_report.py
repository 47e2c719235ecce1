"""The reports, byte for byte against golden files, and their command line.

After a wanted change: REWRITE_GOLDEN=1 pytest tests/unit/report/test_report.py, then read the difference.
"""

from __future__ import annotations

import csv as csv_module
import io
import json as json_module
import random
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.breakdown import Breakdown
from scaling.records import store
from scaling.records.run import PointRecord
from scaling.report.formats import csv, json, markdown, terminal
from tests.support.golden import GOLDEN, check_golden
from tests.support.points import changed
from tests.support.report_scenes import SCENES, cluster_run, default_run, rendered, strong_run
from tests.support.scripted_records import failed, point, sweep, warning

SCHEMA_1 = Path(__file__).parents[2] / "schema" / "schema-1.jsonl"


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("scene", SCENES)
def test_table(scene: str) -> None:
    check_golden(f"{scene}.txt", rendered(scene))


def test_a_usual_table_fits_80_columns() -> None:
    assert max(map(len, rendered("default").splitlines())) <= 80
    assert max(map(len, rendered("one_round").splitlines())) <= 80


@pytest.mark.parametrize("scene", SCENES)
def test_every_table_fits_100_columns_and_ends_no_line_in_blanks(scene: str) -> None:
    for line in rendered(scene).splitlines():
        assert len(line) <= 100
        assert line == line.rstrip()


def test_the_widest_numbers_fit_100_columns() -> None:
    """A strong sweep over nodes of a very fast model, with ten-digit rates and all notes there can be."""
    made, records = strong_run()
    fast = [_faster(one, 1e-6) for one in records]
    text = terminal.render(made, fast, color=False)
    row = next(line for line in text.splitlines() if line.startswith("  16 "))
    assert re.search(r"\d{10} ± +\d", row)
    assert row.endswith("  11.1    0.0")
    assert max(map(len, text.splitlines())) <= 100


def _faster(made: PointRecord, factor: float) -> PointRecord:
    ranks = []
    for rank in made.ranks:
        windows = tuple(
            replace(w, start_s=w.start_s * factor, end_s=w.end_s * factor, end_unix_s=w.end_s * factor)
            for w in rank.windows
        )
        ranks.append(replace(rank, windows=windows))
    return replace(made, ranks=tuple(ranks))


@pytest.mark.parametrize("color", [False, True])
def test_the_text_depends_on_nothing_but_the_records(monkeypatch: pytest.MonkeyPatch, color: bool) -> None:
    made, records = cluster_run()
    before = terminal.render(made, records, color=color)
    surroundings = {"COLUMNS": "40", "TERM": "dumb", "NO_COLOR": "1", "FORCE_COLOR": "1", "TZ": "Asia/Tokyo"}
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    assert terminal.render(made, records, color=color) == before


def test_colour_adds_nothing_but_colour() -> None:
    made, records = cluster_run()
    coloured = terminal.render(made, records, color=True)
    assert "\x1b[32m" in coloured and "\x1b[31mfailed: crash(SIGSEGV)" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == rendered("cluster").splitlines()
    assert "\x1b" not in rendered("cluster")


@pytest.mark.parametrize("scene", SCENES)
def test_the_order_of_records_does_not_matter(scene: str) -> None:
    made, records = SCENES[scene]()
    records = [
        replace(one, warnings=(*one.warnings, warning(f"seen in round {one.point.round}"))) for one in records
    ]
    mixed = random.Random(scene).sample(records, len(records))
    assert terminal.render(made, mixed, color=False) == terminal.render(made, records, color=False)
    assert csv.render(mixed) == csv.render(records)
    assert json.render(made, mixed) == json.render(made, records)


def test_rows_of_a_broken_off_run_say_how_many_rounds_they_have() -> None:
    made, records = default_run()
    last = point("exchange", 2, 2).key
    text = terminal.render(made, [one for one in records if one.point.key != last], color=False)
    assert "[1]  2 of 3 rounds measured" in text


def test_titles_name_what_differs_between_curves() -> None:
    made, records = default_run()
    half = [replace(one, point=changed(one.point, precision="bf16")) for one in records]
    text = terminal.render(made, [*records, *half], color=False)
    assert "\nfake:a, fp32\n" in text and "\nfake:a, bf16\n" in text
    assert "fake:plain, bf16, one device" in text


def test_options_stand_in_titles_only_where_they_differ() -> None:
    made, records = default_run()
    both = []
    for size in ("10", "25"):
        options = {"bucket_cap_mb": size, "wire": "fp16"}
        both += [
            replace(one, point=replace(one.point, options=options if one.point.strategy == "fake:a" else {}))
            for one in records
        ]
    text = terminal.render(made, both, color=False)
    assert "  options   wire=fp16\n" in text
    assert "\nfake:a (bucket_cap_mb=10)\n" in text and "\nfake:a (bucket_cap_mb=25)\n" in text


def test_long_names_are_wrapped_not_cut() -> None:
    made, records = default_run()
    options = ({f"a_long_option_name_{index}": value for index in range(6)} for value in "12")
    both = [replace(one, point=replace(one.point, options=knobs)) for knobs in options for one in records]
    text = terminal.render(made, both, color=False)
    assert "…" not in text
    # An efficiency for each of 4 contenders and how far two of them are behind, two numbers in each of 4 rows,
    # 4 details, 7 causes in each of 2 curves, 1 baseline, and one in each of two explanations.
    assert text.count("± ") == 37
    assert text.count("leading, 0.0 ± ") == 2
    assert "  fake:a (" + ", ".join(f"a_long_option_name_{index}=1" for index in range(3)) in text


# ---------------------------------------------------------------- the other formats


def test_markdown() -> None:
    made, records = cluster_run()
    text = markdown.render(made, records, ("2 runs in one table: a, b",))
    check_golden("cluster.md", text)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    for line, after in pairwise(tables):
        if set(after) <= set("|-: "):
            assert line.count("|") == after.count("|")
    assert set(re.findall(r"\[\^(\d+)\]:", text)) == set(re.findall(r"\[\^(\d+)\](?!:)", text))


def test_markdown_keeps_texts_from_being_markup() -> None:
    made, _ = default_run()
    text = markdown.render(made, [failed(point("exchange", 2), "error", "a|b *c* <script>\n# d")])
    assert r"a\|b \*c\* \<script> # d" in text


def test_csv() -> None:
    _, records = cluster_run()
    text = csv.render(records)
    check_golden("cluster.csv", text)
    lines = list(csv_module.DictReader(io.StringIO(text)))
    assert [line["world_size"] for line in lines] == ["1", "2", "4", "8", "16"] * 3
    lost = next(line for line in lines if line["failed_cause"])
    assert (lost["failed_cause"], lost["images_per_s"]) == ("crash(SIGSEGV)", "")
    one = lines[0]
    parts = [float(one[f"loss_{cause}_fraction"] or 0) for cause in Breakdown.__struct_fields__]
    assert sum(parts) == pytest.approx(1 - float(one["efficiency_fraction"]))


@pytest.mark.parametrize(
    ("message", "cell"),
    [
        ('=HYPERLINK("http://a.test")', '\'=HYPERLINK("http://a.test")'),
        ("+1 is no number here", "'+1 is no number here"),
        ("-rw-r--r-- a.log", "'-rw-r--r-- a.log"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'=1"),
        ("died", "died"),
        ("a=1", "a=1"),
    ],
)
def test_csv_cells_that_a_spreadsheet_would_run_are_defused(message: str, cell: str) -> None:
    text = csv.render([failed(point("exchange", 2), "crash", message)])
    (line,) = csv_module.DictReader(io.StringIO(text))
    assert line["failed_message"] == cell


def test_csv_numbers_below_zero_stay_numbers() -> None:
    text = csv.render(
        [one for number in range(3) for one in sweep(number, 0.1, {2: 0.1 * (0.99 + 0.01 * number)})]
    )
    (line,) = csv_module.DictReader(io.StringIO(text))
    assert any(value.startswith("-") and float(value) < 0 for value in line.values())


def test_csv_columns_are_stable() -> None:
    assert csv.render([]) == (GOLDEN / "cluster.csv").read_text().splitlines(keepends=True)[0]


def test_csv_of_the_oldest_runs_begins_as_it_always_did(tmp_path: Path) -> None:
    """The golden file was written by the version whose schema it is, which had fewer columns."""
    shutil.copy(SCHEMA_1, tmp_path / store.FILE)
    _, records = store.load(tmp_path)
    golden = list(csv_module.reader(io.StringIO((GOLDEN / "schema-1.csv").read_text())))
    found = list(csv_module.reader(io.StringIO(csv.render(records))))
    assert [line[: len(golden[0])] for line in found] == golden


def test_json() -> None:
    made, records = default_run()
    text = json.render(made, records)
    check_golden("default.json", text)
    found = json_module.loads(text)
    lists = {"rows", "baselines", "comparisons", "resolutions", "minibatches", "over_cpu", "trainings"}
    names = {"run", "joined", *lists}
    assert set(found) == names
    assert found["rows"][1]["efficiency"]["n"] == 3
    several = json_module.loads(json.render(*cluster_run()))["comparisons"]
    assert all(one["distinguishable"] for one in several)
    assert (16, "torch:gloo") not in [(one["world_size"], one["other"]["strategy"]) for one in several]
