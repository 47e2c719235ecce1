"""What an emulated row says of itself: its error, its fitted rates, what nobody emulates."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import analyse, rows
from scaling.emulated.layers import DEFAULT_BUCKET_MB
from scaling.records.run import Emulation, PointRecord
from scaling.records.telemetry import Telemetry
from scaling.report import words
from scaling.report.material import Material
from tests.support.scripted_records import by_size, header, point, record

STEP_S = 0.2
HOW = "236.2 b / (b + 10.6), fitted to batch 144, and 36 as one of 4 in a node"
EMULATED: dict[str, Any] = {
    "device": "emulated", "profile": "p100", "model": "googlenet", "batch_size": 36, "dilate": 20.0,
}  # fmt: skip
GOOD = Emulation(samples_per_s=180.0, tail_s=4.0e-3, wire_s=3.4e-3, error_fraction=0.003)


def measured(
    world_size: int, emulation: Emulation | None, hosts: tuple[str, ...] = ("node1",), **changes: Any
) -> PointRecord:
    fields = {"strategy": "torch:gloo", **EMULATED, **changes}
    made = record(point("exchange", world_size, **fields), 20 * STEP_S, hosts=hosts)
    return replace(made, emulation=emulation)


def notes(one: PointRecord) -> str:
    (row,) = rows([one])
    return "\n".join(row.footnotes)


def test_a_fitted_rate_is_said_on_its_row_and_on_its_baseline() -> None:
    fitted = Emulation(samples_per_s=182.5, fitted=HOW)
    assert f"FITTED: images/s of one device at batch 36 are not published; their fit is {HOW}" in notes(
        measured(1, fitted)
    )
    solo = replace(record(point("solo", **EMULATED), 20 * STEP_S), emulation=fitted)
    (baseline,) = analyse([solo]).baselines
    assert any(note.startswith("FITTED: ") for note in baseline.footnotes)
    assert "FITTED" not in notes(measured(1, Emulation(samples_per_s=180.0)))


def test_links_inside_a_node_are_left_out_and_the_row_says_how_much_that_is() -> None:
    inside = replace(GOOD, inside="PCIe 3.0 x16", inside_s=2.0e-3)
    text = notes(measured(4, replace(inside, wire_s=0.0)))
    assert "not emulated: PCIe 3.0 x16 inside a node" in text
    assert "at least 2.0 ms there, 1.0 % of a step" in text
    assert "not emulated" not in notes(measured(16, inside, ("node1", "node2", "node3", "node4"))), (
        "links take longer"
    )
    between = notes(measured(16, replace(inside, wire_s=1.5e-3), ("node1", "node2", "node3", "node4")))
    assert "1.0 % of a step; 1.5 ms of it run while bytes pass between nodes" in between
    assert "its profile has no bandwidth of them" in notes(measured(4, GOOD))
    assert "not emulated" not in notes(measured(2, GOOD, ("node1", "node2")))


def test_an_emulators_error_is_reported_with_its_size() -> None:
    late = replace(GOOD, tail_s=32.4e-3, error_fraction=0.044)
    text = notes(measured(2, late, ("node1", "node2")))
    assert "the last bucket takes 32.4 ms here, 3.4 ms on the emulated links" in text
    assert "the emulator's error is up to 4.4 % of the step; raise --dilate" in text
    assert "--dilate" not in notes(measured(2, replace(GOOD, error_fraction=0.005), ("node1", "node2")))


def test_every_row_of_several_devices_tells_the_emulators_error() -> None:
    found = [measured(1, Emulation(samples_per_s=180.0)), measured(2, GOOD, ("node1", "node2"))]
    assert by_size(found)[2].emulation == GOOD
    (section,) = Material(header(), found).doc.sections
    (told,) = [detail for detail in section.details if detail.label == "emulator's own error"]
    assert [words.value(value) for value in told.values] == [
        "N=2 up to 0.3 % (last bucket 4.00 ms, on the links 3.40 ms)"
    ]


BETWEEN = ("node1", "node2")
CAP = "bucket_cap_mb"


@pytest.mark.parametrize(
    ("strategy", "options", "bounded"),
    [
        ("torch:gloo", {}, True),
        ("torch:gloo", {CAP: str(DEFAULT_BUCKET_MB)}, True),
        ("torch:gloo", {CAP: f"{DEFAULT_BUCKET_MB:.0f}"}, True),
        ("torch:gloo", {CAP: "5"}, False),
        ("torch:horovod", {}, False),
        ("torch:ps-sync", {}, False),
        ("mxnet:dist_sync", {}, False),
        ("tensorflow:ring", {}, False),
    ],
)
def test_the_error_is_bounded_for_the_exchange_that_the_model_is_of_alone(
    strategy: str, options: dict[str, str], bounded: bool
) -> None:
    """Also of records that have a bound for all."""
    found = measured(2, replace(GOOD, error_fraction=0.044), BETWEEN, strategy=strategy, options=options)
    (section,) = Material(header(), [found]).doc.sections
    (told,) = [detail for detail in section.details if detail.label == "emulator's own error"]
    (value,) = map(words.value, told.values)
    assert value.startswith("N=2 up to 4.4 %") == bounded
    assert (value == "N=2 unknown: the bound is for DDP's default buckets over a ring") == (not bounded)
    assert ("the emulator's error is up to" in notes(found)) == bounded
    (row,) = rows([found])
    assert row.emulation is not None and (row.emulation.error_fraction is not None) == bounded


def test_links_left_out_inside_a_node_are_reported_for_known_buckets() -> None:
    inside = replace(GOOD, wire_s=0.0, inside="PCIe 3.0 x16", inside_s=2.0e-3)
    assert "; the last bucket takes at least 2.0 ms" in notes(measured(4, inside))
    assert "; DDP's last bucket takes at least 2.0 ms" in notes(measured(4, inside, strategy="mxnet:dist_sync"))


def test_a_busy_machine_bounds_nothing() -> None:
    one = measured(2, GOOD, ("node1", "node2"))
    busy = replace(one.ranks[0], telemetry=Telemetry(machine_cpu_percent=97.0))
    (section,) = Material(header(), [replace(one, ranks=(busy, *one.ranks[1:]))]).doc.sections
    (told,) = [detail for detail in section.details if detail.label == "emulator's own error"]
    assert [words.value(value) for value in told.values] == ["N=2 unknown, the machine was busy"]


def test_real_devices_and_older_records_say_nothing_of_it() -> None:
    one = record(point("exchange", 2), 0.1)
    assert "emulat" not in notes(one)
    (section,) = Material(header(), [one]).doc.sections
    assert "emulator's own error" not in [detail.label for detail in section.details]
    assert "not emulated" not in notes(measured(2, None))
