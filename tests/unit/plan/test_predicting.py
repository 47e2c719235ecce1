"""What a sweep that predicts first must measure beside its larger world sizes."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.errors import UsageError
from scaling.plan import rules
from scaling.plan.config import SweepConfig


def settled(**fields: Any) -> Any:
    config = SweepConfig(predict_first=2, world_sizes=(1, 2, 4), kinds=("exchange", "solo"), **fields)
    launch = rules.Launch(enrolled=(), slots=(), device="cpu", why="")
    return rules.predict_first(rules.Draft(config), launch).config.predict_first


def test_a_baseline_of_an_earlier_stage_is_enough_for_devices_that_sleep_alone() -> None:
    assert settled(device="emulated:p100") == 2
    with pytest.raises(UsageError, match="add each to --kinds"):
        settled()
