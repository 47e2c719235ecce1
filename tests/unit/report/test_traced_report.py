"""What a report says of profiled steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaling.records.telemetry import GpuTime
from scaling.report import words
from scaling.report.document import document
from tests.support.scripted_records import header
from tests.support.traced_records import gpu, of_two_devices, runs

ALONE = [gpu(compute_s=0.1, idle_s=0.004, kernels=[runs("gemm", 1, 0.1)])] * 2
BESIDE = [
    gpu(compute_s=0.11, idle_s=0.005, runs=[(0.09, 0.0852)], kernels=[runs("gemm", 1, 0.11)]),
    gpu(compute_s=0.11, idle_s=0.005, runs=[(0.08, 0.0752)], kernels=[runs("gemm", 1, 0.11)]),
]


def said(step_s: float, gpus: Sequence[GpuTime], alone: Sequence[GpuTime]) -> dict[str, str]:
    made = document(header(), of_two_devices(step_s, gpus, alone))
    (section,) = made.sections
    entries = {one.label: words.text(one.phrase) for one in made.how_to_read}
    return {**{f"read {label}": text for label, text in entries.items()}, **{
        detail.label: words.text(detail.values[0].phrase) for detail in section.details
    }}  # fmt: skip


def test_the_traced_step_stands_beside_the_untraced_one() -> None:
    found = said(0.21, [], [])
    assert found["traced step"] == "210 ms, untraced 200 ms"
    assert found["trace files"] == "traces/0001-fake-a-exchange-n2-r0.*"
    assert "https://ui.perfetto.dev" in found["read traced"]
    assert "traced, on the GPU" not in found
    assert "read traced, on the GPU" not in found


def test_where_a_step_went_on_the_gpu() -> None:
    found = said(0.2, BESIDE, ALONE)
    assert found["traced, on the GPU"] == (
        "computing 100 ms, slowed 10.0 ms, other kernels 0.00 ms, transfer 77.6 ms, waiting 2.60 ms, "
        "idle 4.00 ms, host 1.00 ms"
    )
    assert "3 %" in found["read traced, on the GPU"]


@pytest.mark.parametrize("step_s", [0.19, 0.21])
def test_a_profiler_that_changed_the_step_leaves_shares(step_s: float) -> None:
    found = said(step_s, BESIDE, ALONE)
    assert found["traced, on the GPU"].startswith("computing 51.2 %, slowed 5.1 %, ")


def test_without_profiled_steps_nothing_is_said() -> None:
    made = document(header(), [one for one in of_two_devices(0.2, [], []) if one.point.round == 1])
    assert "traced" not in {one.label for one in made.how_to_read}
    assert not [one for section in made.sections for one in section.details if one.label.startswith("trace")]
