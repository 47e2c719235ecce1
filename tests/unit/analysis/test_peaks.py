"""Operations per second, and their part of what a device could do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.analysis.table import cell_rows
from scaling.analysis.table.analyse import analyse
from scaling.records.run import PointRecord
from tests.support.scripted_records import point, record


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H100 80GB HBM3", "fp32", 67.0),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156.0),
        ("NVIDIA L40S", "fp16", 362.05),
        ("NVIDIA L4", "fp16", 121.0),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA A100 80GB PCIe", "bf16", 312.0),
        ("NVIDIA GH200 144G HBM3e", "bf16", 989.5),
        ("NVIDIA A1000", "fp32", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "bf16", None),
        ("NVIDIA GeForce RTX 3090 Ti", "fp32", None),
        ("NVIDIA GeForce RTX 4090 D", "fp32", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("NVIDIA A40-24Q", "bf16", None),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "fp32", None),
    ],
)
def test_a_devices_peak(device: str, precision: str, tflops: float | None) -> None:
    assert cell_rows.peak_tflops(device, precision) == tflops  # type: ignore[arg-type]


def test_every_peak_has_a_source_and_halves_are_no_slower_than_singles() -> None:
    for one in cell_rows.read_peaks():
        assert "NVIDIA" in one.source
        assert one.peaks["fp16"] >= one.peaks.get("tf32", 0) >= 0
        assert one.peaks["fp16"] >= one.peaks["fp32"] > 0


def on_h100(one: PointRecord, operations: int) -> PointRecord:
    """Ranks on H100s that count so many operations of a sample."""
    ranks = tuple(
        replace(rank, ready=rank.ready and replace(
            rank.ready, device_name="NVIDIA H100 80GB HBM3", operations_per_sample=operations
        ))
        for rank in one.ranks
    )  # fmt: skip
    return replace(one, ranks=ranks)


def test_a_row_says_what_one_device_computes_and_its_part_of_the_peak() -> None:
    """Batches of 32 in 0.1 s of 10^12 operations a sample: 320 TFLOP/s of 67 that fp32 has."""
    records = [on_h100(record(point(kind, size), 0.1), 10**11) for kind, size in (("solo", 1), ("exchange", 2))]
    (row,) = analyse(records).rows
    assert row.tflops == pytest.approx(32 / 0.1 / 10)
    assert row.mfu == pytest.approx(32 / 67.0)


def test_nothing_is_said_where_nothing_was_counted() -> None:
    (row,) = analyse([record(point("exchange", 2), 0.1)]).rows
    assert (row.tflops, row.mfu) == (None, None)
