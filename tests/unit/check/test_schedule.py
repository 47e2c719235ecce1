"""Rounds of disjoint pairs, and what fits into the time."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from msgspec.structs import replace

from scaling.tools.check import schedule
from scaling.tools.check.facts import Link
from scaling.tools.check.lead import better, hopeless
from scaling.tools.check.schedule import BANDWIDTH_S, LATENCY_S, Round, disjoint, plan, rounds


def names(count: int) -> list[str]:
    return [f"node{number}" for number in range(1, count + 1)]


@pytest.mark.parametrize("count", range(34))
def test_every_pair_meets_once_in_rounds_without_a_common_node(count: int) -> None:
    found = [one for one in rounds(names(count)) if one]
    pairs = [frozenset(pair) for one in found for pair in one]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, combinations(names(count), 2)))
    for one in found:
        busy = [node for pair in one for node in pair]
        assert len(busy) == len(set(busy))
    assert len(found) == (0 if count < 2 else count - 1 + count % 2)


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9, 16, 17])
def test_two_rounds_in_a_row_connect_all_nodes(count: int) -> None:
    for one, other in pairwise(rounds(names(count))):
        reached = {names(count)[0]}
        for _ in range(count):
            reached |= {node for pair in (*one, *other) if reached & set(pair) for node in pair}
        assert reached == set(names(count))


def test_sixteen_nodes_and_two_networks_fit() -> None:
    found = plan({"ib": names(16), "ethernet": names(16)}, 8.0)
    assert len(found.rounds) == 30
    assert found.left_out == ()
    assert found.wall_s <= 8.0 + 1e-9
    assert BANDWIDTH_S[0] <= found.bandwidth_s <= BANDWIDTH_S[1]


def test_few_pairs_do_not_spend_all_the_time() -> None:
    found = plan({"ib": names(4), "ethernet": names(4)}, 8.0)
    assert (found.latency_s, found.bandwidth_s) == (LATENCY_S[1], BANDWIDTH_S[1])
    assert found.wall_s < 8.0


def test_what_does_not_fit_is_left_out_evenly() -> None:
    found = plan({"ib": names(64), "ethernet": names(64)}, 8.0)
    assert found.wall_s <= 8.0 + 1e-9
    kept = [sum(one.network == word for one in found.rounds) for word in ("ib", "ethernet")]
    assert abs(kept[0] - kept[1]) <= 1
    assert len(found.rounds) + len(found.left_out) == 2 * 63
    assert {pair for one in found.rounds for pair in one.pairs if one.network == "ib"}.isdisjoint(
        pair for one in found.left_out for pair in one.pairs if one.network == "ib"
    )


def test_networks_take_turns() -> None:
    found = plan({"ib": names(4), "ethernet": names(2)}, 8.0)
    assert [one.network for one in found.rounds] == ["ib", "ethernet", "ib", "ib"]
    assert found.rounds[1] == Round(network="ethernet", pairs=(("node1", "node2"),))


@pytest.mark.parametrize("networks", [{}, {"ib": []}, {"ib": ["node1"]}])
def test_no_pairs_no_rounds(networks: dict[str, list[str]]) -> None:
    assert plan(networks, 8.0).rounds == ()


def test_some_pairs_without_a_common_node() -> None:
    assert disjoint([("a", "b"), ("b", "c"), ("c", "d"), ("a", "c")]) == (
        (("a", "b"), ("c", "d")),
        (("b", "c"),),
        (("a", "c"),),
    )


# ---------------------------------------------------------------- what the links show on the way


def tried(*outcomes: tuple[str, str, str]) -> list[Link]:
    return [Link(network="ib", client=a, server=b, error=error) for a, b, error in outcomes]


def test_a_node_that_others_fail_to_reach_twice_is_hopeless() -> None:
    links = tried(("a", "d", "timed out"), ("b", "c", ""))
    assert hopeless(links, "ib") == set()  # a may be the dead one
    links += tried(("b", "d", "timed out"), ("a", "c", ""))
    assert hopeless(links, "ib") == {"d"}
    assert hopeless(links, "ethernet") == set()
    assert hopeless([*links, *tried(("c", "d", ""))], "ib") == set()


def test_a_node_that_meets_only_dead_ones_is_not_hopeless() -> None:
    links = tried(("a", "x", "timed out"), ("a", "y", "timed out"), ("b", "c", ""), ("b", "x", "timed out"))
    assert hopeless(links, "ib") == set()


def test_the_better_of_two_measurements() -> None:
    def link(latency_s: float, forth: float, back: float) -> Link:
        found = Link(network="ib", client="a", server="b", latency_s=latency_s)
        return replace(found, forth_bits_per_s=forth, back_bits_per_s=back)

    assert better(link(3.0, 1.0, 9.0), link(2.0, 8.0, 7.0)) == link(2.0, 8.0, 9.0)
    stalled = replace(link(3.0, 1.0, 9.0), back_bits_per_s=None, error="timed out")
    assert better(stalled, link(2.0, 8.0, 7.0)) == link(2.0, 8.0, 7.0)


def test_no_time_leaves_everything_out() -> None:
    found = plan({"ib": names(4)}, schedule.OVERHEAD_S)
    assert (found.rounds, len(found.left_out)) == ((), 3)
