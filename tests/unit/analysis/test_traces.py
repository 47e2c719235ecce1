"""The profiled steps of a cell: which record has them, and the split of a step on GPUs, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured.traces import GpuSplit, split, traced
from scaling.analysis.table.analyse import rows
from tests.support.scripted_records import point, record
from tests.support.traced_records import STEPS_TRACED, gpu, of_two_devices, runs, with_traces


def whole(found: GpuSplit) -> float:
    parts: list[float | None] = [getattr(found, name) for name in GpuSplit.__struct_fields__]
    return sum(part for part in parts if part is not None)


def test_the_parts_add_up_to_the_traced_step() -> None:
    alone = [gpu(compute_s=0.100, idle_s=0.010, kernels=[runs("gemm", 10, 0.010)])] * 2
    beside = [runs("gemm", 10, 0.011), runs("copy", 2, 0.001)]
    # Rank 1 comes last: it does not wait.
    ranks = [
        gpu(compute_s=0.112, idle_s=0.013, runs=[(0.020, 0.020), (0.050, 0.030)], kernels=beside),
        gpu(compute_s=0.112, idle_s=0.013, runs=[(0.020, 0.000), (0.012, 0.012)], kernels=beside),
    ]
    found = split(ranks, alone)
    assert found is not None
    assert found.compute_s == pytest.approx(0.100)
    assert found.slowed_s == pytest.approx(0.010)
    assert found.other_s == pytest.approx(0.002)
    # The first collective takes 20 ms on both, and rank 0 shows it all. The second takes 12; rank 0 shows 30.
    assert found.waiting_s == pytest.approx((0.030 - 0.012) / 2)
    assert found.transfer_s == pytest.approx((0.020 + 0.012 + 0.012) / 2)
    assert found.idle_s == pytest.approx(0.010)
    assert found.host_s == pytest.approx(0.003)
    assert whole(found) == pytest.approx(sum(one.span_s for one in ranks) / 2 / STEPS_TRACED)


def test_another_algorithm_of_a_library_is_no_slowing() -> None:
    """cuDNN chooses by trying, in each process anew."""
    alone = [gpu(compute_s=0.100, idle_s=0.0, kernels=[runs("gemm", 5, 0.010), runs("fft", 1, 0.050)])]
    found = split(
        [gpu(compute_s=0.110, idle_s=0.0, kernels=[runs("gemm", 5, 0.010), runs("winograd", 1, 0.060)])], alone
    )
    assert found is not None
    assert found.slowed_s == pytest.approx(0.0)
    assert found.other_s == pytest.approx(0.010)


def test_of_kernels_only_as_many_runs_as_both_have_are_compared() -> None:
    """The exchange's wrapper may run kernels of the same name, for its own sake."""
    alone = [gpu(compute_s=0.040, idle_s=0.0, kernels=[runs("copy", 4, 0.010)])]
    found = split([gpu(compute_s=0.066, idle_s=0.0, kernels=[runs("copy", 6, 0.011)])], alone)
    assert found is not None
    assert found.slowed_s == pytest.approx(4 * 0.001)
    assert found.other_s == pytest.approx(2 * 0.011)


def test_without_the_plain_loops_trace_nothing_is_said_of_what_changed() -> None:
    found = split([gpu(compute_s=0.1, idle_s=0.01, runs=[(0.02, 0.005)])] * 2, [])
    assert found is not None
    assert (found.slowed_s, found.other_s, found.host_s) == (None, None, None)
    assert whole(found) == pytest.approx(0.1 + 0.01 + 0.005)
    assert split([], []) is None


def test_collectives_that_are_not_the_same_ones_are_not_compared() -> None:
    one = gpu(compute_s=0.1, idle_s=0.0, runs=[(0.02, 0.02)])
    two = gpu(compute_s=0.1, idle_s=0.0, runs=[(0.02, 0.02), (0.01, 0.01)])
    found = split([one, two], [])
    assert found is not None
    assert found.waiting_s is None
    assert found.transfer_s == pytest.approx((0.02 + 0.03) / 2)


# ---------------------------------------------------------------- of records


def test_a_row_has_the_traced_step_beside_that_of_the_same_record() -> None:
    (row,) = rows(of_two_devices(0.21, [], []))
    assert row.traced is not None
    assert row.traced.step_s == pytest.approx(0.21)
    assert row.traced.untraced_s == pytest.approx(0.2)
    assert row.traced.slowed == pytest.approx(0.05)
    assert not row.traced.is_faithful
    assert row.traced.files == ("traces/0001-fake-a-exchange-n2-r0.*",)
    assert row.traced.gpu is None
    assert row.samples_per_s is not None and row.samples_per_s.mean == pytest.approx(2 * 32 / 0.2)


def test_a_row_is_split_against_the_plain_loops_of_as_many_devices() -> None:
    alone = [gpu(compute_s=0.1, idle_s=0.0, kernels=[runs("gemm", 1, 0.1)])] * 2
    gpus = [gpu(compute_s=0.11, idle_s=0.0, runs=[(0.09, 0.09)], kernels=[runs("gemm", 1, 0.11)])] * 2
    (row,) = rows(of_two_devices(0.2, gpus, alone))
    assert row.traced is not None and row.traced.is_faithful and row.traced.gpu is not None
    assert row.traced.gpu.slowed_s == pytest.approx(0.01)
    assert row.traced.gpu.transfer_s == pytest.approx(0.09)


def test_a_rank_without_a_trace_leaves_the_others_unsplit() -> None:
    made = with_traces(record(point("exchange", 2), 0.2), 0.2, [gpu(compute_s=0.1, idle_s=0.1)] * 2)
    lost: dict[str, Any] = {"traced": (), "traces": (), "gpu": None}
    ranks = (made.ranks[0], replace(made.ranks[1], **lost))
    found = traced([replace(made, ranks=ranks)])
    assert found is not None and found.step_s is None and not found.is_faithful and found.gpu is None
    assert found.files == ("traces/0001-fake-a-exchange-n2-r0.*",)
    assert traced([record(point(), 0.1)]) is None
