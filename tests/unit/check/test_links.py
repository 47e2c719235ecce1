"""Rates and windows from what came through when."""

from __future__ import annotations

import pytest

from scaling.tools.check import prober
from scaling.tools.check.prober import FIRST_BYTES, rate_bits_per_s, window_bytes


def test_the_first_quarter_does_not_count() -> None:
    burst = [(0.0, 0), (0.001, 70_000)]
    steady = [(0.01 * step, 70_000 + 12_500 * step) for step in range(1, 41)]
    assert rate_bits_per_s([*burst, *steady]) == pytest.approx(10e6)


def test_a_stall_at_the_end_counts() -> None:
    flowing = [(0.01 * step, 1000 * step) for step in range(11)]
    assert rate_bits_per_s([*flowing, (0.9, 10_000)]) < 0.2 * rate_bits_per_s(flowing)


def test_a_receiver_that_was_held_up_is_not_taken_for_a_fast_link() -> None:
    assert rate_bits_per_s([(0.0, 0), (0.3, 1_000_000), (0.301, 2_000_000)]) == pytest.approx(
        8 * 2_000_000 / 0.301
    )


def test_nothing_is_no_rate() -> None:
    assert rate_bits_per_s([(0.0, 0)]) == 0.0
    assert rate_bits_per_s([(0.0, 0), (1.0, 0)]) == 0.0


@pytest.mark.parametrize("bits_per_s", [1e6, 1e7, 1e9, 1e11])
def test_what_is_under_way_drains_soon(bits_per_s: float) -> None:
    for passed_s in (0.001, 0.01, 0.1, 1.0):
        acknowledged = int(bits_per_s / 8 * passed_s)
        window = window_bytes(acknowledged, passed_s)
        assert window <= max(FIRST_BYTES, 1.01 * bits_per_s / 8 * prober.HORIZON_S)
        assert window <= acknowledged + FIRST_BYTES
