"""Metrics of a run: what both text formats take, and what they claim."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.analysis.table.catalogue import unclaimed
from scaling.errors import UsageError
from scaling.records.run import Header, ImportedRow, PointRecord
from scaling.report import __main__ as command
from scaling.report.formats.openmetrics import Sample, render, text
from scaling.report.material import Material
from tests.support.golden import check_golden
from tests.support.points import changed
from tests.support.report_scenes import SCENES, cluster_run, default_run
from tests.support.scripted_records import asynchronous, failed, header, point, record, sweep, with_losses, written

# The strings and numbers that both grammars take: prometheus.io/docs/instrumenting/exposition_formats and
# prometheus.io/docs/specs/om/open_metrics_spec.
NAME = r"[a-z][a-z0-9_]*"
STRING = r'(?:[^\\"\n]|\\\\|\\n|\\")*'
NUMBER = r"(?:[+-]?\d+(?:\.\d+)?(?:e[+-]\d+)?|[+-]Inf|NaN)"
HELP = r'(?:[^\\"\n]|\\\\|\\n)+'
LABEL = rf'{NAME}="{STRING}"'
SAMPLE = re.compile(rf"({NAME})((?:\{{{LABEL}(?:,{LABEL})*\}})?) ({NUMBER})")
META = re.compile(rf"# (TYPE|UNIT|HELP) ({NAME}) ({HELP})")


def values(made: str) -> dict[str, float]:
    """Check a text against both grammars; return its values by name and labels."""
    found: dict[str, float] = {}
    family, told = "", set[str]()
    *lines, last, end = made.split("\n")
    assert (last, end) == ("# EOF", "")
    for line in lines:
        if meta := META.fullmatch(line):
            kind, name, said = meta.groups()
            assert (kind == "TYPE") == (name not in told) and (kind == "TYPE" or name == family), line
            assert kind != "TYPE" or said == "gauge"
            assert kind != "UNIT" or name.endswith(f"_{said}")
            family = name
            told.add(name)
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample and sample[1] == family, line
            assert f"{sample[1]}{sample[2]}" not in found, line
            found[f"{sample[1]}{sample[2]}"] = float(sample[3])
    return found


def metrics(run: tuple[Header, list[PointRecord]]) -> dict[str, float]:
    return values(render(Material(*run)))


def of(found: dict[str, float], name: str, label: str = "") -> list[float]:
    return [value for key, value in found.items() if key.startswith(f"{name}{{") and label in key]


def test_metrics_of_a_cluster() -> None:
    check_golden("cluster.prom", render(Material(*cluster_run())))


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_both_formats_take_every_run(scene: str) -> None:
    material = Material(*SCENES[scene]())
    found = values(render(material))
    assert len(of(found, "scaling_run_timestamp_seconds")) == 1
    assert len(of(found, "scaling_point_failed")) == len(material.rows)
    claimed = [row for row in material.rows if not unclaimed(row)]
    assert sorted(of(found, "scaling_efficiency_ratio")) == pytest.approx(
        sorted(row.efficiency.mean for row in claimed if row.efficiency)
    )


def test_rows_that_learnt_less_claim_nothing() -> None:
    made = []
    for number in range(3):
        stale = asynchronous(record(point("exchange", 2, number, strategy="fake:b"), 0.101))
        made += [
            record(point("solo", 1, number), 0.1),
            with_losses(stale, 2.2, 2.1, 2.0 + 0.001 * number),
            with_losses(record(point("exchange", 2, number), 0.11), 2.0, 1.5, 1.0),
        ]
    found = metrics((header(), made))
    assert len(of(found, "scaling_samples_per_second", "fake:b")) == 1
    assert of(found, "scaling_efficiency_ratio", "fake:b") == []
    assert len(of(found, "scaling_efficiency_ratio", "fake:a")) == 1


def test_a_point_failed_also_if_only_some_of_its_rounds_did() -> None:
    made = [one for n in range(3) for one in sweep(n, 0.1, {2: 0.11})]
    made = [
        failed(one.point, "oom", "") if one.point.kind == "exchange" and one.point.round else one for one in made
    ]
    assert of(metrics((header(), made)), "scaling_point_failed", "") == [1.0]


def test_no_two_rows_have_the_same_labels() -> None:
    """node_exporter then refuses all files of its folder."""
    made, records = default_run()
    both = [*records, *(replace(one, point=changed(one.point, optimizer="adam")) for one in records)]
    assert len(of(metrics((made, both)), "scaling_point_failed")) == 4


def test_the_name_of_the_run_is_a_label() -> None:
    made, records = default_run()
    found = metrics((replace(made, config={"name": 'my "run"\\\n'}), records))
    assert all(r'run="my \"run\"\\"' in key for key in found)


def test_a_sample_may_have_no_labels() -> None:
    rate = Sample(name="scaling_device_flops", help='By "GEMM"\\', value=7.5e14, labels={"host": "n1", "gpu": "0"})
    more = [rate, Sample(name="scaling_certify_passed", help="1 if PASS.", value=True), replace(rate, labels={})]
    found = values(text(more))
    assert found['scaling_device_flops{host="n1",gpu="0"}'] == found["scaling_device_flops"] == 7.5e14
    assert found["scaling_certify_passed"] == 1.0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.1 + 0.2, "0.3"), (1e30, "1e+30"), (-2, "-2.0"), (inf, "+Inf"), (-inf, "-Inf"), (nan, "NaN")],
)
def test_numbers(value: float, shown: str) -> None:
    made = text([Sample(name="scaling_x", help="x", value=value)])
    assert made == f"# TYPE scaling_x gauge\n# HELP scaling_x x\nscaling_x {shown}\n# EOF\n"
    values(made)


def test_the_command_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = written(tmp_path / "run", cluster_run())
    assert command.main([str(run), "--format", "openmetrics"]) == 0
    assert capsys.readouterr().out == render(Material(*cluster_run()))


def test_imports_have_no_metrics() -> None:
    row = ImportedRow(tool="a tool", log="a.log", unit="images", world_size=1, rate=1.0)
    with pytest.raises(UsageError, match="RUN: is IMPORTED from logs of other tools: metrics are of measured"):
        render(Material(header(imported=(row,)), ()))


# ---------------------------------------------------------------- the parser that Prometheus' own library has


def parsed(made: str) -> Iterator[tuple[str, int]]:
    library = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="prometheus-client is not installed"
    )
    older = pytest.importorskip("prometheus_client.parser")
    families = [*library.text_string_to_metric_families(made)]
    assert [one.name for one in families] == [one.name for one in older.text_string_to_metric_families(made)]
    return ((one.name, len(one.samples)) for one in families)


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_the_parsers_of_prometheus_read_all(scene: str) -> None:
    made = render(Material(*SCENES[scene]()))
    assert sum(count for _, count in parsed(made)) == len(values(made))
