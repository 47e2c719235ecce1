"""Cells of imported rows: what is pooled, and what an efficiency is over."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.imported import Imported, cells
from scaling.records.run import ImportedRow

TITAN = ImportedRow(
    tool="torchtitan", log="n1.log", unit="tokens", world_size=1, rate=1000.0, model="llama3 8B", batch_size=1,
    precision="bf16",
)  # fmt: skip


def row(world_size: int, rate: float, **changes: Any) -> ImportedRow:
    changes = {"log": f"n{world_size}.log", **changes}
    return replace(TITAN, world_size=world_size, rate=rate, **changes)


def claims(*rows: ImportedRow) -> dict[int, tuple[float, int] | None]:
    """By number of devices: the efficiency and its base."""
    return {cell.world_size: _claim(cell) for cell in cells(rows)}


def _claim(cell: Imported) -> tuple[float, int] | None:
    if cell.efficiency is None or cell.base_world_size is None:
        return None
    return round(cell.efficiency, 3), cell.base_world_size


def note(*rows: ImportedRow) -> str:
    """The first note of the largest row."""
    return max(cells(rows), key=lambda cell: cell.world_size).notes[0]


def test_several_logs_of_a_cell_are_launches() -> None:
    (cell,) = cells([row(4, 3600.0), row(4, 3700.0)])
    assert cell.rate is not None and cell.rate.half_width is not None


UNKNOWN = [{"model": ""}, {"batch_size": 0}, {"precision": ""}]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_an_unknown_value_equals_no_other(unknown: dict[str, Any]) -> None:
    """Two logs of 8 and of 7,000 images/s once were launches of one cell: 8.19 +- 7067.76."""
    found = cells([row(4, 8.0, **unknown), row(4, 7000.0, **unknown), row(1, 8.0, **unknown)])
    assert [len(cell.logs) for cell in found] == [1, 1, 1]
    assert all(cell.efficiency is None for cell in found)
    assert "no efficiency and no interval: the log does not say its " in found[0].notes[0]


def test_a_note_names_the_flags_that_an_unknown_row_lacks() -> None:
    said = "no efficiency and no interval: the log does not say its model and batch per device; "
    assert note(row(4, 1.0, model="", batch_size=0)) == f"{said}add --model and --batch-size"


DIFFERENT = [
    ({"precision": "fp32"}, "precision fp32, here bf16"),
    ({"device_kind": "cpu"}, "device kind cpu, here unknown"),
    ({"framework": "mxnet"}, "framework mxnet, here unknown"),
    ({"variables": "parameter_server"}, "variables parameter_server, here unknown"),
    ({"batch_size": 2}, "batch per device 2, here 1"),
    ({"model": "vgg16"}, "model vgg16, here llama3 8B"),
]


@pytest.mark.parametrize(("change", "said"), DIFFERENT)
def test_another_cell_is_no_base_and_the_row_says_why(change: dict[str, Any], said: str) -> None:
    base = replace(TITAN, **change)
    assert claims(base, row(4, 3600.0))[4] is None
    assert note(base, row(4, 3600.0)) == (
        f"no efficiency: it needs a row of the same work on 1 device; n1.log differs: {said}"
    )
    assert len(cells([row(4, 3600.0, **change), row(4, 3600.0)])) == 2


# Tokens/s of a table with tensor parallelism: against one device 53 %, against its own smallest row 88 %.
SPLIT = [
    TITAN,
    row(4, 2400.0, parallelism="tp=4"),
    row(8, 4230.0, parallelism="tp=4,dp_shard=2"),
    row(32, 15000.0, parallelism="tp=4,dp_shard=8"),
]
NEEDS = "no efficiency: it needs a row of"
UNKNOWN_SPLIT = row(4, 3600.0, parallelism="unknown")
LACKS = "no efficiency and no interval: the log does not say its parallelism; add --parallelism"
# Rows; efficiencies and their bases by number of devices; the first note of the largest row, "" if any.
CLAIMS: list[tuple[list[ImportedRow], dict[int, tuple[float, int] | None], str]] = [
    ([TITAN, row(4, 3600.0)], {1: (1.0, 1), 4: (0.9, 1)}, ""),
    ([row(4, 3600.0), row(8, 7000.0)], {4: None, 8: None}, ""),
    ([row(4, 3600.0)], {4: None}, f"{NEEDS} the same work on 1 device"),
    # a split model is compared with its own smallest row, one device is no base of it, nor is another split
    (SPLIT, {1: (1.0, 1), 4: (1.0, 4), 8: (0.881, 4), 32: (0.781, 4)}, ""),
    ([TITAN, SPLIT[2]], {1: (1.0, 1), 8: None}, f"{NEEDS} tp=4 on 4 devices"),
    (
        [row(8, 4230.0, parallelism="tp=8"), row(16, 7000.0, parallelism="tp=4,pp=2")],
        {8: (1.0, 8), 16: None}, f"{NEEDS} tp=4,pp=2 on 8 devices",
    ),
    # a smallest row above the fewest devices is a base but claims nothing
    (SPLIT[2:], {8: None, 32: (0.887, 8)}, ""),
    ([row(8, 1.0, parallelism="ep=8")], {8: None}, f"{NEEDS} ep=8 on fewer devices"),
    # degrees of one and data parallelism split nothing
    ([TITAN, row(4, 3600.0, parallelism="tp=1,pp=1")], {1: (1.0, 1), 4: (0.9, 1)}, ""),
    ([TITAN, row(4, 3600.0, parallelism="dp_shard=4")], {1: (1.0, 1), 4: (0.9, 1)}, ""),
    ([TITAN, UNKNOWN_SPLIT], {1: (1.0, 1), 4: None}, LACKS),
    ([replace(TITAN, parallelism="unknown")], {1: (1.0, 1)}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "found", "said"), CLAIMS)
def test_claims_and_their_bases(
    rows: list[ImportedRow], found: dict[int, tuple[float, int] | None], said: str
) -> None:
    assert claims(*rows) == found
    assert not said or note(*rows) == said


def test_unknown_parallelisms_are_cells_of_their_own() -> None:
    assert len(cells([UNKNOWN_SPLIT, UNKNOWN_SPLIT, row(4, 3600.0)])) == 3


@pytest.mark.parametrize(
    "change", [{"audit": "its steps disagree"}, {"rate": None, "failed": "the loss is no number"}]
)
def test_a_row_that_failed_or_contradicts_itself_is_no_base(change: dict[str, Any]) -> None:
    base = replace(TITAN, **change)
    assert claims(base, row(4, 3600.0)) == {1: None, 4: None}
    assert "the one of n1.log is marked " in note(base, row(4, 3600.0))
