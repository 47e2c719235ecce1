"""A new entry of the catalogue is in every format."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Callable
from typing import get_args

import pytest
from msgspec.structs import replace

from scaling.analysis.table import catalogue
from scaling.analysis.table.rows import Column, Explanation, Mark, Row, Table, known
from scaling.report.answer import banners
from scaling.report.figures import speedup
from scaling.report.figures.parts import Curves
from scaling.report.formats import csv, html, json, latex, markdown, terminal
from scaling.report.material import Material
from tests.support.report_scenes import SCENES

TITLE = "samples per node"
MEANING = "samples per second over the number of nodes."


def per_node(row: Row) -> float | None:
    return row.samples_per_s.mean / row.nodes if row.samples_per_s else None


PER_NODE = Column(
    key="samples_per_s_per_node",
    title=TITLE,
    short=("samples", "per node"),
    unit="1/s",
    digits=3,
    value=per_node,
    tables=dict.fromkeys(("curve", "comparison", "page"), known),
    csv="samples_per_s_per_node",
    explanation=MEANING,
)
FORMATS: dict[str, Callable[[Material], str]] = {
    "terminal": lambda of: terminal.whole(of.doc, color=False),
    "markdown": lambda of: markdown.draw(of.doc),
    "latex": lambda of: latex.render(of.doc),
    "page": html.render,
    "csv": lambda of: csv.of_rows(of.rows, of.header),
    "json": lambda of: json.render(Material(of.header, of.records)),
}


CROWDED = Mark(
    name="CROWDED",
    of_row=lambda found: found.cell.point.world_size == 2,
    claimless="two are a crowd",
    meaning="two ranks took part, and three are company.",
    about="two ranks took part",
    serious=8,
    drawn=9,
    hollow=True,
    line=None,
)
NOTED = Mark(name="NOTED", of_row=lambda found: found.cell.point.world_size == 2, is_complaint=False)


@pytest.fixture
def with_column(monkeypatch: pytest.MonkeyPatch) -> Column:
    """The catalogue with another column."""
    monkeypatch.setattr(catalogue, "COLUMNS", (*catalogue.COLUMNS, PER_NODE))
    return PER_NODE


def scene(name: str) -> Material:
    return Material(*SCENES[name]())


@pytest.mark.parametrize("name", ["terminal", "markdown", "latex", "page"])
def test_people_see_a_new_column_with_its_unit_and_digits(name: str, with_column: Column) -> None:
    material = scene("default")
    text = FORMATS[name](material)
    heading = with_column.short if name == "terminal" else (f"{TITLE}, 1/s",)
    assert heading and all(part in text for part in heading)
    assert all(f"{per_node(row):.3f}" in text for row in material.rows)


@pytest.mark.parametrize("name", ["terminal", "markdown", "page"])
def test_a_new_column_is_explained(name: str, with_column: Column) -> None:
    assert MEANING in " ".join(FORMATS[name](scene("default")).split())


def test_programs_read_a_new_column(with_column: Column) -> None:
    material = scene("default")
    lines = list(csv_module.DictReader(io.StringIO(FORMATS["csv"](material))))
    for line, row in zip(lines, material.rows, strict=True):
        assert float(line[with_column.csv]) == pytest.approx(per_node(row))
    assert list(lines[0])[-1] == with_column.csv


def test_a_comparison_has_a_new_column(with_column: Column) -> None:
    (section, *_) = scene("frameworks").doc.comparisons
    assert section.columns[-1].key == with_column.key


def test_each_name_is_declared_once() -> None:
    names = csv.names()
    assert len(set(names)) == len(names)
    for table in get_args(Table):
        rows = scene("cluster").rows
        keys = [column.key for column in catalogue.columns(table, rows)]
        assert len(set(keys)) == len(keys)


# ---------------------------------------------------------------- marks


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mark], Material]:
    """The default run, reported with another mark in the catalogue."""

    def report(mark: Mark) -> Material:
        monkeypatch.setattr(catalogue, "MARKS", (*catalogue.MARKS, mark))
        return scene("default")

    return report


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_has_a_new_mark(name: str, marked: Callable[[Mark], Material]) -> None:
    assert CROWDED.name in FORMATS[name](marked(CROWDED))


@pytest.mark.parametrize("name", ["terminal", "markdown", "page"])
def test_a_new_mark_is_explained(name: str, marked: Callable[[Mark], Material]) -> None:
    assert CROWDED.meaning in " ".join(FORMATS[name](marked(CROWDED)).split())


def test_a_new_mark_takes_the_claims_of_its_rows(marked: Callable[[Mark], Material]) -> None:
    one, two = marked(CROWDED).rows
    assert (one.flags, two.flags) == ((), (CROWDED.name,))
    assert one.efficiency is not None and two.efficiency is None and two.speedup is None
    assert two.footnotes[0].startswith(f"{CROWDED.name}: {CROWDED.claimless}; no speedup")


def test_a_new_mark_has_a_banner_and_a_stamp_on_figures(marked: Callable[[Mark], Material]) -> None:
    material = marked(CROWDED)
    ((mark, says),) = banners(material)
    assert (mark, CROWDED.about in says) == (CROWDED.name, True)
    (figure,) = speedup(material)
    assert figure.stamps == (CROWDED.name,)
    assert isinstance(figure.body, Curves)
    assert [dot.mark for dot in figure.body.curves[0].dots] == ["", CROWDED.name]


@pytest.mark.parametrize(("mark", "is_below"), [(CROWDED, True), (NOTED, False)])
def test_a_complaint_stands_below_its_row(mark: Mark, is_below: bool, marked: Callable[[Mark], Material]) -> None:
    text = FORMATS["terminal"](marked(replace(mark, claimless="")))
    assert (f"└ {mark.name}" in text) is is_below


# ---------------------------------------------------------------- explanations


@pytest.mark.parametrize("name", ["terminal", "markdown", "page"])
@pytest.mark.parametrize("applies", [True, False])
def test_a_new_explanation_is_in_how_to_read(name: str, applies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    new = Explanation(label="a word", text="{rates} in another word.", applies=lambda _: applies)
    monkeypatch.setattr(catalogue, "EXPLANATIONS", (*catalogue.EXPLANATIONS, new))
    assert ("images/s in another word." in FORMATS[name](scene("default"))) is applies
