"""Predicted beside measured, in every format; never as a row that was measured."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.table import unmeasured as analysis
from scaling.report import __main__ as command
from scaling.report.document import document
from scaling.report.figures.scaling import efficiency, speedup
from scaling.report.formats import csv as as_csv
from scaling.report.formats import json as as_json
from scaling.report.formats import markdown, terminal
from scaling.report.material import Material
from scaling.report.parts import Section
from tests.support.predicted_runs import HEADER, prediction, run
from tests.support.scripted_records import point, written

# Measured: 95.2 % of two devices, 80 % of four.
INSIDE, OUTSIDE, COMING = prediction(2, 0.96), prediction(4, 0.9), prediction(8, 0.75)
REFUSED = replace(
    prediction(16, 0.5), efficiency=None, efficiency_low=None, efficiency_high=None, refused="not one per node"
)
ALL = (INSIDE, OUTSIDE, COMING, REFUSED)


def table() -> Section:
    (found,) = (one for one in document(HEADER, run(), predictions=ALL).sections if "PREDICTED" in one.title)
    return found


def test_the_title_counts_how_many_fell_inside() -> None:
    assert table().title == (
        "PREDICTED before it was measured, from N up to 2: 1 of 2 inside their 80 % interval, off by 5.4 "
        "points in the median, 10.0 at most"
    )


def test_each_prediction_stands_beside_what_was_measured() -> None:
    shown = markdown.draw(document(HEADER, run(), predictions=ALL))
    lines = [line for line in shown.splitlines() if line.startswith("| fake:a |")]
    assert [line.rpartition(" | ")[0] for line in lines[-4:]] == [
        "| fake:a | 2 | 2 | 96.0 | 94 to 98 | 95.2 ± 0.0 | +0.8 | yes",
        "| fake:a | 4 | 2 | 90.0 | 88 to 92 | 80.0 ± 0.0 | +10.0 | no",
        "| fake:a | 8 | 2 | 75.0 | 73 to 77 | not measured |  | ",
        "| fake:a | 16 | 2 | not predicted |  |  |  | ",
    ]
    text = " ".join(terminal.draw(document(HEADER, run(), predictions=ALL), color=False).split())
    assert "not one per node" in text
    assert "written into the run at 2023-11-14 22:13:20 UTC" in text


def test_what_is_too_wide_is_not_claimed_and_not_counted() -> None:
    wide = prediction(4, 0.8, 0.3, claimed=False)
    (found,) = (one for one in document(HEADER, run(), predictions=[wide]).sections if "PREDICTED" in one.title)
    assert found.title == "PREDICTED before it was measured, from N up to 2"
    assert found.lines[0].cells["predicted"] == "not claimed"
    assert found.lines[0].cells["inside"] == "not judged"
    text = as_csv.of_rows(Material(HEADER, run()).rows, predictions=[wide])
    (row,) = (one for one in csv.DictReader(text.splitlines()) if one["predicted_mark"])
    assert row["predicted_inside"] == ""


def test_notes_of_a_prediction_are_below_it() -> None:
    doubted = prediction(4, 0.9, notes=("N=2 was measured at 50 %, where the model says 80 to 90 %",))
    text = " ".join(terminal.draw(document(HEADER, run(), predictions=[doubted]), color=False).split())
    assert "N=2 was measured at 50 %, where the model says 80 to 90 %" in text


@pytest.mark.parametrize("mark", analysis.UNJUDGED)
def test_a_row_that_is_no_sound_measurement_judges_no_prediction(mark: str) -> None:
    rows = [replace(row, flags=(mark,)) for row in Material(HEADER, run()).rows]
    found = analysis.judged(ALL, rows)
    assert analysis.score(found) is None
    assert {one.unjudged for one in found if one.measured_efficiency} == {mark}


def test_several_runs_in_one_table_judge_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their rows hold rounds that were measured before anything was written down."""
    runs = [str(written(tmp_path / name, (HEADER, run()))) for name in "ab"]
    with (tmp_path / "b" / "run.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(INSIDE) + b"\n")
    assert command.main([runs[1]]) == 0
    assert "1 of 1 inside" in capsys.readouterr().out
    assert command.main(runs) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "predictions (PREDICTED) are only in the report of a single run" in shown and "of 1 inside" not in shown


def test_a_prediction_is_of_its_own_curve_alone() -> None:
    other = prediction(4, 0.8, point=point("exchange", 4, options={"wire": "fp16"}))
    (found,) = analysis.judged([other], Material(HEADER, run()).rows)
    assert found.measured_efficiency is None


def test_programs_get_both_and_the_mark() -> None:
    found = json.loads(as_json.render(HEADER, run(), predictions=ALL))
    assert [one["kind"] for one in found["predictions"]] == ["PREDICTED"] * 4
    assert [one["inside"] for one in found["predictions"]] == [True, False, None, None]
    assert found["predictions"][1]["error"] == pytest.approx(0.1)
    assert {row["world_size"] for row in found["rows"]} == {1, 2, 4}
    assert "predictions" not in json.loads(as_json.render(HEADER, run()))


def test_rows_of_csv_carry_their_prediction() -> None:
    rows = list(csv.DictReader(as_csv.of_rows(Material(HEADER, run()).rows, predictions=ALL).splitlines()))
    assert [(row["world_size"], row["predicted_mark"], row["predicted_inside"]) for row in rows] == [
        ("1", "", ""),
        ("2", "PREDICTED", "1"),
        ("4", "PREDICTED", "0"),
    ]
    assert "predicted_mark" not in as_csv.of_rows(Material(HEADER, run()).rows)


def test_figures_have_a_band_of_their_own() -> None:
    material = Material(HEADER, run(), predictions=ALL)
    (drawn,) = efficiency(material)
    measured, predicted = drawn.body.curves  # type: ignore[union-attr]
    assert (measured.band, predicted.band, predicted.number) == (False, True, measured.number)
    assert predicted.label == "fake:a, PREDICTED"
    assert [(dot.world_size, dot.value, dot.mark) for dot in predicted.dots] == [
        (2, 96.0, "PREDICTED"),
        (4, 90.0, "PREDICTED"),
        (8, 75.0, "PREDICTED"),
    ]
    assert [line[3] for line in drawn.table.lines][-1] == "PREDICTED, 80 % interval"
    (faster,) = speedup(material)
    assert [dot.value for dot in faster.body.curves[1].dots] == pytest.approx([1.92, 3.6, 6.0])  # type: ignore[union-attr]


def test_the_command_reads_them_from_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run", (HEADER, [*run(), *ALL]))
    assert command.main([str(folder), "--format", "markdown"]) == 0
    assert "1 of 2 inside their 80 % interval" in capsys.readouterr().out
    assert command.main([str(folder), "--format", "svg", "--figure", "efficiency"]) == 0
    assert "fake:a, PREDICTED" in capsys.readouterr().out
