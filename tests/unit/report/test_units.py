"""Samples of other kinds than images: reports of runs on tokens and samples say so everywhere."""

from __future__ import annotations

import ast
import csv as csv_module
import io
import json as json_module
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import scaling.report
from scaling.analysis.table import catalogue
from scaling.analysis.table.analyse import rows
from scaling.records.point import Unit
from scaling.records.run import PointRecord
from scaling.report.formats import csv, json, markdown, terminal
from scaling.report.material import Material
from tests.support.points import changed
from tests.support.report_scenes import SCENES, Run, default_run, frameworks_run, rendered
from tests.support.scripted_records import by_one_worker

PACKAGE = Path(scaling.report.__file__).parent


def counted_in(unit: Unit, run: Run) -> Run:
    made, records = run
    return made, [_of(unit, one) for one in records]


def _of(unit: Unit, one: PointRecord) -> PointRecord:
    return replace(one, point=changed(one.point, unit=unit))


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_what_people_read_names_the_unit_and_never_images(scene: str, unit: Unit) -> None:
    made, records = SCENES[scene]()
    usual = [rendered(scene), markdown.draw(Material(made, records).doc)]
    made, records = counted_in(unit, (made, records))
    for text, before in zip(
        (terminal.render(made, records, color=False), markdown.draw(Material(made, records).doc)),
        usual,
        strict=True,
    ):
        assert "image" not in text
        assert text.count(f"{unit}/s") == before.count("images/s") > 0


def test_an_audit_names_tokens() -> None:
    made, records = counted_in("tokens", default_run())
    fed = [replace(one, ranks=(by_one_worker(one).ranks[0], *one.ranks[1:])) for one in records]
    text = terminal.render(made, fed, color=False)
    assert "audit: tokens/s x time gives" in text and "image" not in text


def test_no_table_mixes_units() -> None:
    made, images = default_run()
    _, tokens = counted_in("tokens", default_run())
    doc = Material(made, [*images, *tokens]).doc
    key = catalogue.RATE.key
    rates = [column.title for section in doc.sections for column in section.columns if column.key == key]
    assert sorted(rates) == ["images/s", "tokens/s"]
    assert not doc.comparisons and len(doc.sections) == 2
    assert [(table.columns[2].unit, len(table.lines)) for table in doc.baselines] == [
        ("images/s", 2),
        ("tokens/s", 2),
    ]
    text = terminal.render(made, [*images, *tokens], color=False)
    assert "Baselines, images/s\n" in text and "Baselines, tokens/s\n" in text


def test_programs_read_samples_and_find_no_images_per_s_that_are_none() -> None:
    made, records = counted_in("tokens", default_run())
    for line in csv_module.DictReader(io.StringIO(csv.of_rows(rows(records)))):
        assert (line["images_per_s"], line["unit"]) == ("", "tokens") and float(line["samples_per_s"]) > 0
    found = json_module.loads(json.render(Material(made, records)))
    for entry in (*found["rows"], *found["baselines"]):
        assert (entry["images_per_s"], entry["unit"]) == (None, "tokens") and entry["samples_per_s"]["mean"] > 0


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.Attribute(attr=name) | ast.Name(id=name):
                yield name


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_name_of_the_report_says_images(path: Path) -> None:
    assert not [name for name in names(ast.parse(path.read_text())) if "image" in name.lower()]


def test_no_key_of_a_column_or_cell_says_images() -> None:
    doc = Material(*frameworks_run()).doc
    keys = {column.key for section in (*doc.comparisons, *doc.sections) for column in section.columns}
    keys |= {key for section in (*doc.comparisons, *doc.sections) for line in section.lines for key in line.cells}
    assert catalogue.RATE.key in keys and not [key for key in keys if "image" in key]
