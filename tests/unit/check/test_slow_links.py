"""Links -> verdicts: what failed and who is slow, each named once, with its mend."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.tools.check.facts import Facts
from tests.support.check_facts import FOUR, GBIT, facts, links, ok, only, to_mend

# ---------------------------------------------------------------- links that failed


def failing(found: Facts, error: str, *pairs: tuple[str, str], **changes: Any) -> Facts:
    nothing = {"latency_s": None, "offset_s": None, "forth_bits_per_s": None, "back_bits_per_s": None, **changes}
    broken = tuple(
        replace(link, error=error, **nothing)
        if (link.client, link.server) in pairs and link.network == "ib"
        else link
        for link in found.links
    )
    return replace(found, links=broken)


def test_a_pair_that_cannot_connect() -> None:
    verdict = only(failing(facts(), "timed out", ("node1", "node3")))
    assert (verdict.level, verdict.topic, verdict.text) == ("error", "links", "ib: node1-node3: timed out")


def test_a_node_that_nobody_reaches_is_named_once() -> None:
    pairs = (("node1", "node3"), ("node2", "node3"), ("node3", "node4"))
    verdict = only(failing(facts(), "No route to host", *pairs))
    assert verdict.text == "ib: node3 is cut off (No route to host on node1, node2, node4)"


def test_a_node_that_some_reach_is_named_too() -> None:
    verdict = only(failing(facts(), "timed out", ("node1", "node3"), ("node3", "node4")))
    assert verdict.text == "ib: node3 is cut off from 2 of 3 nodes (timed out on node1, node4)"


def test_two_dead_nodes_are_both_named_and_no_other() -> None:
    pairs = tuple((a, b) for a, b in combinations(FOUR, 2) if {a, b} & {"node2", "node4"})
    found = to_mend(failing(facts(), "timed out", *pairs))
    assert [verdict.text.split(" (")[0] for verdict in found] == ["ib: node2 is cut off", "ib: node4 is cut off"]


def test_a_network_on_which_nothing_works_blames_no_node() -> None:
    verdict = only(failing(facts(), "Connection refused", *combinations(FOUR, 2)))
    assert verdict.text.startswith("ib: no pair of nodes reaches each other: node1-node2: Connection refused, ")


def test_packets_that_vanish_once_they_are_large() -> None:
    verdict = only(failing(facts(), "no data arrived", ("node1", "node2"), latency_s=20e-6))
    assert "(mtu?)" in verdict.text


def test_two_nodes_without_a_link_are_both_named() -> None:
    verdict = only(failing(facts(FOUR[:2]), "timed out", ("node1", "node2")))
    assert verdict.text == "ib: node1-node2: timed out"


def test_a_node_that_cannot_listen() -> None:
    sound = facts()
    deaf = replace(sound.prepared["node2"], refused={"ib": "Cannot assign requested address"})
    verdict = only(replace(sound, prepared={**sound.prepared, "node2": deaf}))
    assert verdict.text == "ib: node2 cannot listen at 10.10.0.2: Cannot assign requested address"


def test_pairs_that_there_was_no_time_for() -> None:
    verdict = only(replace(facts(), left_out=(("ib", "node1", "node2"),)))
    assert (verdict.level, verdict.text) == ("warning", "no time to measure 1 pairs: node1-node2 (ib)")


# ---------------------------------------------------------------- who is slow


def cluster(count: int, speed: Any, **changes: Any) -> Facts:
    nodes = tuple(f"node{number}" for number in range(1, count + 1))
    sound = facts(nodes, words=("ib",))
    return replace(sound, links=links(nodes, "ib", speed, **changes))


@pytest.mark.parametrize("count", [3, 4, 5, 8, 16])
@pytest.mark.parametrize("seed", range(5))
def test_the_node_whose_links_are_all_slow_is_named_alone(count: int, seed: int) -> None:
    draw = random.Random(seed)
    slow = f"node{draw.randint(1, count)}"
    verdict = only(cluster(count, lambda a, b: (0.94 if slow in (a, b) else 9.4) * GBIT * draw.uniform(0.9, 1.1)))
    assert (verdict.level, verdict.topic) == ("error", "bandwidth")
    assert verdict.text.startswith(f"ib: {slow} is slow: it sends ")
    assert " and receives " in verdict.text


def test_several_slow_nodes_among_many() -> None:
    found = to_mend(cluster(16, lambda a, b: (4.0 if {a, b} & {"node3", "node7", "node9"} else 9.4) * GBIT))
    assert [verdict.text.split()[1] for verdict in found] == ["node3", "node7", "node9"]
    assert {verdict.level for verdict in found} == {"warning"}
    assert "the others carry 9.40" in found[0].text


def test_a_node_that_only_sends_slowly() -> None:
    verdict = only(cluster(4, lambda a, _: (1.0 if a == "node2" else 9.4) * GBIT))
    assert verdict.text == "ib: node2 is slow: it sends 1.00 Gb/s, the others carry 9.40"
    (look,) = verdict.looks
    assert look.node == "node2" and look.part.startswith("ib")
    assert (look.seen, look.expected) == ("sends 1.00 Gb/s", "9.40 Gb/s")
    assert verdict.mend.startswith("on node2: ethtool ib0 ")


@pytest.mark.parametrize("count", [4, 8])
def test_a_single_slow_link_blames_no_node(count: int) -> None:
    verdict = only(cluster(count, lambda a, b: (2.0 if {a, b} == {"node1", "node2"} else 9.4) * GBIT))
    assert verdict.text == "ib: slow links: node1 to node2 2.00, node2 to node1 2.00 Gb/s, the others carry 9.40"


@pytest.mark.parametrize("seed", range(5))
def test_noise_blames_nobody(seed: int) -> None:
    draw = random.Random(seed)
    assert to_mend(cluster(8, lambda *_: 9.4 * GBIT * draw.uniform(0.87, 1.06))) == []


def test_two_nodes_on_a_slow_link_are_held_against_its_nominal_speed() -> None:
    verdict = only(cluster(2, lambda *_: 0.94 * GBIT))
    assert (verdict.level, verdict.topic) == ("warning", "bandwidth")
    assert verdict.text == "ib: 0.940 Gb/s, 0.940 to 0.940; 10.0 Gb/s by the fabric file should carry 10.0"


def test_one_flow_need_not_fill_a_very_fast_link() -> None:
    sound = cluster(4, lambda *_: 30 * GBIT)
    fast = tuple(replace(network, rate_bits_per_s=100 * GBIT) for network in sound.networks)
    assert ok(replace(sound, networks=fast), "bandwidth") == ["ib: 30.0 Gb/s, 30.0 to 30.0, 30 % of the link"]
    assert to_mend(replace(sound, networks=fast)) == []


def test_a_node_that_answers_late() -> None:
    sound = cluster(5, lambda *_: 9.4 * GBIT)
    late = tuple(
        replace(link, latency_s=800e-6) if "node5" in (link.client, link.server) else link for link in sound.links
    )
    verdict = only(replace(sound, links=late))
    assert (verdict.level, verdict.topic) == ("warning", "latency")
    assert verdict.text == "ib: node5 answers after 800 us, the others after 20 us"
