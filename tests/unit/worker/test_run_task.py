"""What a worker tells of its point before it trains."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.records.point import Hardware, Kind, Pass
from scaling.worker.run_task import operations_per_sample
from tests.support.points import POINT

RESNET50 = replace(POINT, workload=replace(POINT.workload, model="resnet50"))


# He 2015 counts 3.8 to 4.1 thousand million multiply-adds of a forward pass.
@pytest.mark.parametrize(("pass_", "giga"), [("forward", 8.18), ("backward", 24.3), ("step", 24.3)])
def test_operations_are_those_of_the_passes_that_a_step_runs(pass_: Pass, giga: float) -> None:
    point = replace(RESNET50, workload=replace(RESNET50.workload, pass_=pass_))
    assert operations_per_sample(point) / 1e9 == pytest.approx(giga, rel=0.005)


@pytest.mark.parametrize("kind", ["comm", "feed"])
def test_what_computes_nothing_has_no_operations(kind: Kind) -> None:
    assert operations_per_sample(replace(RESNET50, kind=kind)) == 0


def test_emulated_devices_compute_nothing() -> None:
    emulated = Hardware(device="emulated", profile="p100")
    assert operations_per_sample(replace(RESNET50, hardware=emulated)) == 0
