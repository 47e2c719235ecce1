"""A new entry of the catalogue is in every format."""

from __future__ import annotations

import csv as csv_module
import io
import json as json_module
from collections.abc import Callable
from typing import get_args

import pytest

from scaling.analysis.table import catalogue
from scaling.analysis.table.catalogue import EVERYWHERE, Column, Table
from scaling.analysis.table.rows import Row
from scaling.report import schema
from scaling.report.formats import csv, json, latex, markdown, terminal
from scaling.report.formats.html import page
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
    tables=EVERYWHERE,
    csv="samples_per_s_per_node",
    json=float | None,
    explanation=MEANING,
)
FORMATS: dict[str, Callable[[Material], str]] = {
    "terminal": lambda of: terminal.whole(of.doc, color=False),
    "markdown": lambda of: markdown.draw(of.doc),
    "latex": lambda of: latex.render(of.doc),
    "page": page.render,
    "csv": lambda of: csv.of_rows(of.rows, of.header),
    "json": lambda of: json.render(of.header, of.records),
}


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
    objects = json_module.loads(FORMATS["json"](material))["rows"]
    for line, found, row in zip(lines, objects, material.rows, strict=True):
        assert float(line[with_column.csv]) == pytest.approx(per_node(row))
        assert found[with_column.key] == pytest.approx(per_node(row))
    assert list(lines[0])[-1] == with_column.csv


def test_the_schema_has_a_new_column(with_column: Column) -> None:
    (row,) = [of for name, of in json_module.loads(schema.text())["$defs"].items() if name == "Row"]
    assert row["properties"][with_column.key] == {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}


def test_a_comparison_has_a_new_column(with_column: Column) -> None:
    (section, *_) = scene("frameworks").doc.comparisons
    assert section.columns[-1].key == with_column.key


def test_each_name_is_declared_once() -> None:
    names = catalogue.csv_names()
    assert len(set(names)) == len(names)
    for table in get_args(Table):
        rows = scene("cluster").rows
        keys = [column.key for column in catalogue.columns(table, rows)]
        assert len(set(keys)) == len(keys)
