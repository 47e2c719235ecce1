"""Rates and steps of a training to an accuracy, by hand."""

from __future__ import annotations

from math import sqrt

import pytest
from msgspec.structs import replace

from scaling.records.point import Regime
from scaling.workloads import schedule

REGIME = Regime(epochs=10, seed=0, rate=0.4, base_rate=0.1, base_batch=32)


@pytest.mark.parametrize(("rule", "rate"), [("linear", 0.4), ("sqrt", 0.1 * sqrt(4)), ("none", 0.1)])
def test_a_rate_grows_with_the_update_by_its_rule(rule: str, rate: float) -> None:
    assert schedule.scaled(0.1, rule, 4) == pytest.approx(rate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "world_size", "batch_size"), [(1437, 1, 16), (1437, 4, 64), (7, 2, 16), (32, 4, 8)]
)
def test_after_an_epoch_every_sample_was_seen_and_few_twice(
    samples: int, world_size: int, batch_size: int
) -> None:
    longest = -(-samples // world_size)
    for epoch in range(6):
        steps = schedule.steps_before(epoch, samples=samples, world_size=world_size, batch_size=batch_size)
        assert epoch * longest <= steps * batch_size < epoch * longest + batch_size


def test_warm_up_and_steps_follow_each_other() -> None:
    regime = replace(REGIME, warmup_epochs=2, lr_steps=(5, 8))
    found = [schedule.rate(regime, epochs) for epochs in (0, 1, 1.5, 2, 4.9, 5, 7.9, 8, 9.9)]
    assert found == pytest.approx([0.1, 0.25, 0.325, 0.4, 0.4, 0.04, 0.04, 0.004, 0.004])
    assert schedule.varies(regime)
    assert not schedule.varies(REGIME)
