"""Groups of nodes that are measured until the slow ones are known: simulated clusters, by seed."""

from __future__ import annotations

import random

import pytest

from scaling.tools.bisect.belief import PRIOR, Trial, belief, searched
from scaling.tools.bisect.search import MORE, Search, points_for
from tests.support import simulated_nodes

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
