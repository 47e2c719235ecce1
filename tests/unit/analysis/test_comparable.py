"""What makes two rates comparable: each field of the work and of the hardware, and nothing that was forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.analysis.measured.controls import Controls
from scaling.analysis.table.comparisons import comparable, curve_keys
from scaling.records.point import Hardware, Workload
from tests.support.points import changed
from tests.support.scripted_records import point, record

OTHER: dict[str, Any] = {
    "model": "resnet50", "data": "synthetic", "batch_rule": "strong", "batch_size": 48, "precision": "bf16",
    "memory_format": "channels_last", "compile": True, "unit": "tokens", "node_devices": 2,
    "image_size": 256, "sequence_length": 64, "optimizer": "adam", "pass_": "forward",
    "feed": "native", "feed_workers": 2, "drop_caches": True,
    "device": "cuda", "profile": "p100", "shrink": 2.0, "dilate": 3.0, "cores": 8,
}  # fmt: skip


def test_every_field_has_another_value_here() -> None:
    assert set(OTHER) == {*Workload.__struct_fields__, *Hardware.__struct_fields__}


@pytest.mark.parametrize("field", OTHER)
def test_another_value_is_another_baseline(field: str) -> None:
    exchange = point("exchange", 2)
    other = changed(exchange, **{field: OTHER[field]})
    controls = Controls([record(point("solo"), 0.1)])
    assert controls.alone(exchange, exchange.reference.batch_size) is not None
    assert controls.alone(other, other.reference.batch_size) is None


@pytest.mark.parametrize("field", OTHER)
def test_another_value_is_not_compared_and_is_another_curve_and_cell(field: str) -> None:
    exchange = point("exchange", 2)
    other = changed(exchange, **{field: OTHER[field]})
    assert comparable(other) != comparable(exchange)
    assert hash(other.workload) != hash(exchange.workload) or hash(other.hardware) != hash(exchange.hardware)
    assert len(set(curve_keys([exchange, other]).values())) == 2
    assert other.key != exchange.key
