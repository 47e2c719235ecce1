"""The search for slow nodes: suspects, and what is worth trying."""

from __future__ import annotations

import random
from math import exp, log
from typing import Any

import pytest

from scaling.analysis.statistics.intervals import interval
from scaling.tools.bisect import leading
from scaling.tools.bisect.leading import Promise, Proof, promise
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
from scaling.tools.predict.setting import read
from tests.bench import simulated_nodes
from tests.support.scripted_records import point, record

# Groups of nodes that are measured until the slow ones are known: simulated clusters, by seed.


def test_being_last_by_chance() -> None:
    """Binomial(4, 1/4): 1/256 for all windows, 13/256 for three or more."""
    assert tail(4, 4, 0.25) == pytest.approx(1 / 256)
    assert tail(3, 4, 0.25) == pytest.approx(13 / 256)
    assert tail(0, 4, 0.25) == pytest.approx(1.0)


def proved(gains: list[float], of_control: float = 0.003) -> Proof:
    return Proof(
        everyone=0.812, without=0.94, control=0.815, gain=interval(gains), of_control=interval([of_control] * 3)
    )


def test_a_proof_says_the_gain_with_its_interval_and_the_control() -> None:
    promised = Promise(efficiency=0.95, low=0.93, high=0.97)
    first, unexplained, *_ = leading.proof_lines(proved([0.12, 0.128, 0.136]), ["node03"], ["node05"], promised)
    assert first == "81.2 -> 94.0 % (+12.8 ± 2.0) without node03; without node05: 81.5 %"
    assert unexplained == "-1.0 percentage points from the prediction, inside its 80 % interval"


def test_what_is_not_proved_is_said() -> None:
    assert "not proved" in list(leading.proof_lines(proved([-0.1, 0.128, 0.3]), ["a"], ["b"], None))[-1]
    assert "refuted: without a" in list(leading.proof_lines(proved([-0.11, -0.1, -0.12]), ["a"], ["b"], None))[-1]
    assert "one round" in list(leading.proof_lines(proved([0.128]), ["a"], ["b"], None))[-1]


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


# What is promised before the proof: how often its interval holds, and what it rests on.

NODES = ("node1", "node2", "node3", "node4")
SLOW = frozenset({3})
PROMISING_NOISE = 0.02


def promised(exchange_s: float, ill_s: float, healthy_s: float, noise: float = PROMISING_NOISE) -> Promise:
    """Of four nodes whose fourth is slow in its exchange; seconds are those of four, or three, ranks."""
    found = promise(
        record(point("exchange", 4), exchange_s, hosts=NODES), record(point("together", 4), 0.1, hosts=NODES),
        record(point("solo"), 0.1),
        [Trial(frozenset({2, 3}), log(ill_s / 1.5)), Trial(frozenset({0, 1}), log(healthy_s / (4 / 3)))],
        SLOW, NODES, noise,
    )  # fmt: skip
    assert found is not None
    return found


def exposed_s(whole_s: float, share: float, window_s: float) -> float:
    """The model's, by hand."""
    return (1 - share) * whole_s + share * max(whole_s - window_s, 0.0)


def test_80_of_100_promises_hold() -> None:
    """How much hides and how long backward takes are drawn from the priors: of 60, 48 are expected, and 38 to 57
    are within 3 standard deviations."""
    rng, believed = random.Random(3), read().constants
    hide, window = believed["hide.other"], believed["window"]
    inside = 0

    def noisy(seconds: float) -> float:
        return seconds * exp(rng.gauss(0.0, PROMISING_NOISE))

    for _ in range(60):
        share = 1 / (1 + exp(-rng.gauss(hide.mean, hide.sd)))
        window_s = 0.1 * exp(rng.gauss(window.mean, window.sd))
        healthy_s = rng.uniform(0.02, 0.2)
        ill_s = healthy_s * rng.uniform(1.3, 4.0)
        step_s = noisy(0.1 + exposed_s(ill_s, share, window_s))
        found = promised(step_s, noisy(ill_s), noisy(healthy_s))
        inside += found.low <= 0.1 / noisy(0.1 + exposed_s(healthy_s, share, window_s)) <= found.high
    assert 38 <= inside <= 57, inside


def test_what_hid_before_is_expected_to_hide_again() -> None:
    """60 ms of 90 hid; of 30 ms, all or the same share."""
    found = promised(0.13, 0.09, 0.03)
    assert 0.1 / 0.115 < found.efficiency < 0.1 / 0.099
    noisy = promised(0.13, 0.09, 0.03, 0.05)
    assert noisy.high - noisy.low > found.high - found.low > 0


def test_emulated_devices_hide_as_they_do() -> None:
    """What sleeps loses next to nothing to an exchange that fits behind it, and 24 of 90 ms did not."""

    def efficiency(**hardware: Any) -> float:
        sizes = {"exchange": 4, "together": 4, "solo": 1}
        points = [point(kind, size, strategy="torch:gloo", **hardware) for kind, size in sizes.items()]
        records = [record(one, step_s, hosts=NODES) for one, step_s in zip(points, (0.124, 0.1, 0.1), strict=True)]
        trials = [Trial(frozenset({2, 3}), log(0.09 / 1.5)), Trial(frozenset({0, 1}), log(0.03 / (4 / 3)))]
        found = promise(records[0], records[1], records[2], trials, SLOW, NODES, 0.005)
        assert found is not None
        return found.efficiency

    assert efficiency(device="emulated", profile="p100") > efficiency() + 0.005


def test_a_node_slow_in_computing_alone_takes_its_compute_with_it() -> None:
    """Nothing is known of the exchange: what was exposed stays."""
    found = promise(
        record(point("exchange", 4), 0.17, hosts=NODES),
        record(point("together", 4), 0.1, 0.1, 0.1, 0.15, hosts=NODES),
        record(point("solo"), 0.1), [], SLOW, NODES, PROMISING_NOISE,
    )  # fmt: skip
    assert found is not None
    assert found.efficiency == pytest.approx(0.1 / 0.12, rel=0.02)
    assert found.low < 0.1 / 0.12 < found.high


def test_without_a_baseline_nothing_is_promised() -> None:
    exchange, together = (record(point(kind, 4), 0.1, hosts=NODES) for kind in ("exchange", "together"))
    alone = record(point("solo"), 0.1, ranks=())
    assert promise(exchange, together, alone, [], SLOW, NODES, PROMISING_NOISE) is None
