"""How often the gate is red: on equal launches, and on a planted loss. 1 % of noise, five rounds, six cells."""

from __future__ import annotations

import pytest

from tests.support.simulated_gates import Rows, is_red, share_red, side

PAIRS = 200


@pytest.fixture(scope="module")
def bases() -> list[list[Rows]]:
    return [side(seed) for seed in range(PAIRS)]


def test_equal_launches_are_red_in_at_most_5_of_100_pairs(bases: list[list[Rows]]) -> None:
    """Also with no loss that does not count, where the tests alone decide."""
    found = [is_red(base, side(1000 + seed)) for seed, base in enumerate(bases)]
    assert sum(found) <= 0.05 * PAIRS


def test_a_planted_loss_of_5_percent_is_found_in_95_of_100_pairs(bases: list[list[Rows]]) -> None:
    found = [is_red(base, side(1000 + seed, lost=0.05), 0.02) for seed, base in enumerate(bases)]
    assert sum(found) >= 0.95 * PAIRS


def test_launches_that_differ_by_themselves_are_told_apart_no_more_often_with_three_runs_a_side() -> None:
    """Their rounds alone would call most of them slower: python -m tests.bench.gates prints it."""
    assert share_red(PAIRS, 0.0, runs=3, rounds=1, launch_sd=0.01) <= 5


def test_a_loss_of_5_percent_is_found_by_three_runs_a_side_that_differ_by_1_percent_by_themselves() -> None:
    """Each cell by its own noise alone: in 90 of 100. Of five rounds' 1 % there is 0.45 % left."""
    assert share_red(PAIRS // 2, 0.02, lost=0.05, runs=3, rounds=1, sd=0.0045, launch_sd=0.01) >= 95
