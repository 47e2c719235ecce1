"""What a sweep that predicts first must measure beside its larger world sizes."""

from __future__ import annotations

import pytest

from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.plan.resolving import predict_first_settled


def test_a_baseline_of_an_earlier_stage_is_enough_for_devices_that_sleep_alone() -> None:
    assert (
        predict_first_settled(
            SweepConfig(device="emulated:p100", predict_first=2), (1, 2, 4), ("exchange", "solo")
        )
        == 2
    )
    with pytest.raises(UsageError, match="add each to --kinds"):
        predict_first_settled(SweepConfig(predict_first=2), (1, 2, 4), ("exchange", "solo"))
