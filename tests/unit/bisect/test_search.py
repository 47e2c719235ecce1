"""The search for slow nodes: suspects, and what is worth trying."""

from __future__ import annotations

import random

import pytest

from scaling.tools.bisect import leading
from scaling.tools.bisect.searching import (
    MORE,
    PRIOR,
    Found,
    Search,
    Trial,
    belief,
    points_for,
    searched,
    tail,
)
from tests.bench import simulated_nodes

# Groups of nodes that are measured until the slow ones are known: simulated clusters, by seed.


def test_being_last_by_chance() -> None:
    """Binomial(4, 1/4): 1/256 for all windows, 13/256 for three or more."""
    assert tail(4, 4, 0.25) == pytest.approx(1 / 256)
    assert tail(3, 4, 0.25) == pytest.approx(13 / 256)
    assert tail(0, 4, 0.25) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gains", "of_control", "said"),
    [
        (
            [0.12, 0.128, 0.136],
            0.003,
            "the control gains too (+0.3 ± 0.0): part of the gain comes from fewer nodes",
        ),
        ([0.12, 0.128, 0.136], 0.0, "81.2 -> 94.0 % (+12.8 ± 2.0) without node03; without node05: 81.2 %"),
        ([-0.1, 0.128, 0.3], 0.0, "not proved: the interval includes zero; more --rounds narrow it"),
        ([-0.11, -0.1, -0.12], 0.0, "refuted: without node03 the others do worse"),
        ([0.128], 0.0, "one round: no interval; --rounds 3 or more give one"),
    ],
)
def test_a_proof_says_the_gain_with_its_interval_and_what_is_not_proved(
    gains: list[float], of_control: float, said: str
) -> None:
    rounds = [(0.812, 0.812 + gain, 0.812 + of_control) for gain in gains]
    assert list(leading.proof_lines(rounds, ["node03"], ["node05"]))[-1] == said


def test_what_is_not_settled_is_said() -> None:
    found = Found(frozenset(), frozenset({1}), 0.6)
    assert leading.outcome_line(found, [], ["node2"], 10, 4).startswith(
        "no node is surely slow, by 10 points in 4 waves"
    )


NOISE = 0.03


def simulated(runs: int, nodes: int, slow: int, part: float = 0.2) -> list[simulated_nodes.Searched]:
    rng = random.Random(7)
    return [simulated_nodes.searched(nodes, slow, part, NOISE, rng) for _ in range(runs)]


@pytest.mark.parametrize(("nodes", "slow"), [(3, 1), (4, 1), (8, 1), (16, 1), (16, 2)])
def test_the_slow_nodes_are_found_by_few_points(nodes: int, slow: int) -> None:
    found = simulated(10, nodes, slow)
    assert simulated_nodes.right(found) >= 0.9
    assert max(one.points for one in found) <= (10 if slow == 1 else points_for(nodes) + MORE)


def test_sixteen_nodes_take_ten_points_at_most() -> None:
    assert points_for(16) == 10


@pytest.mark.parametrize("nodes", [3, 4, 16])
def test_healthy_clusters_are_not_blamed(nodes: int) -> None:
    assert all(one.found.slow == frozenset() for one in simulated(15, nodes, 0))


def test_the_groups_of_a_wave_share_no_node_and_are_of_one_size() -> None:
    wave = Search([PRIOR] * 16, NOISE).next_wave()
    assert len(wave) >= 3
    assert len({len(group) for group in wave}) == 1
    assert sum(map(len, wave)) == len(frozenset().union(*wave))


def test_a_single_suspect_is_measured_beside_a_healthy_node() -> None:
    priors = [PRIOR] * 8
    priors[5] = 0.5
    search = Search(priors, NOISE)
    search.hear([Trial(frozenset({0, 1}), 0.0), Trial(frozenset({2, 3}), 0.0), Trial(frozenset({6, 7}), 0.0)])
    (group,) = search.next_wave()
    assert 5 in group
    assert len(group) == 2


def test_what_all_groups_of_a_size_have_in_common_blames_nobody() -> None:
    """How long healthy nodes take is not known."""
    trials = [Trial(frozenset(range(8)), 0.0), Trial(frozenset({0, 1}), 0.5), Trial(frozenset({2, 3}), 0.5)]
    assert max(belief([PRIOR] * 8, trials, NOISE).marginal) < 0.1


def test_below_twice_the_noise_nothing_is_searched() -> None:
    assert searched(0.03) == pytest.approx(0.0618, abs=1e-4)
    wave = Search([PRIOR] * 8, NOISE).next_wave()
    search = Search([PRIOR] * 8, NOISE)
    search.hear([Trial(group, 0.03 * number) for number, group in enumerate(wave[:2])])
    assert search.found.slow == frozenset()
