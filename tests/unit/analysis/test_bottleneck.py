"""Which path held up an exchange, from what the nodes say of their connections."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.analysis.measured import traffic
from scaling.analysis.measured.traffic import Path
from scaling.records.events import Window
from scaling.records.run import PointRecord
from scaling.records.telemetry import Flow, Telemetry
from tests.support.scripted_traffic import point

HOSTS = ("node1", "node2", "node3", "node4")
RING = ((1, 2), (2, 3), (3, 4), (4, 1))


def ring(busy: dict[tuple[int, int], float], sent_bytes: int = 1_000_000) -> PointRecord:
    """Four nodes that sent as much to the next one, each busy for as many of the 1.11 s."""
    flows: dict[str, tuple[Flow, ...]] = {}
    for node, peer in RING:
        near, far = f"10.0.0.{node}", f"10.0.0.{peer}"
        flows[f"node{node}"] = (
            Flow(address=near, peer=far, sent_bytes=sent_bytes, busy_s=busy.get((node, peer), 0.1)),
            Flow(address=near, peer="192.168.0.9", sent_bytes=sent_bytes, busy_s=1.0),  # no node of ours
            Flow(address=near, peer=f"10.0.0.{(node + 1) % 4 + 1}", sent_bytes=sent_bytes // 10, busy_s=1.0),
        )
    return point(HOSTS, {host: Telemetry(flows=told) for host, told in flows.items()})


def test_paths_have_rates_and_shares_and_little_ones_are_left_out() -> None:
    found = traffic.paths([ring({(1, 2): 0.8})])
    # Nine steps in a second, and the one before them.
    watched_s = 10 / 9
    assert [str(path) for path in found] == [
        "node1 to node2",
        "node2 to node3",
        "node3 to node4",
        "node4 to node1",
    ]
    assert found[0].bits_per_s == 8e6 / 0.8
    assert found[0].busy_share == pytest.approx(0.8 / watched_s)


def test_the_step_before_each_window_is_part_of_the_time_where_points_take_turns() -> None:
    """Three windows of two steps of 0.1 s, one of them measured again: 0.03 s of each of twelve steps busy."""
    made = ring({(1, 2): 0.36})
    window = Window(index=0, measured=True, steps=2, samples=2, start_s=0.0, end_s=0.2, end_unix_s=1.0)
    three = tuple(replace(window, index=index) for index in range(3))
    ranks = tuple(replace(rank, windows=three, disturbed=(window,)) for rank in made.ranks)
    found = traffic.paths([replace(made, ranks=ranks, measured_s=0.6, epoch=0)])
    assert found[0].busy_share == pytest.approx(0.3)


def test_one_step_is_uncounted_before_all_windows_of_a_point_by_itself() -> None:
    """Two windows of two steps of 0.1 s, both measured again: 0.03 s of each of ten steps busy."""
    made = ring({(1, 2): 0.3})
    window = Window(index=0, measured=True, steps=2, samples=2, start_s=0.0, end_s=0.2, end_unix_s=1.0)
    both = (window, replace(window, index=1))
    ranks = tuple(replace(rank, windows=both, disturbed=both) for rank in made.ranks)
    found = traffic.paths([replace(made, ranks=ranks, measured_s=0.4, epoch=None)])
    assert found[0].busy_share == pytest.approx(0.3)


def test_rounds_add_up() -> None:
    found = traffic.paths([ring({(1, 2): 0.8}), ring({(1, 2): 0.4})])
    assert found[0].bits_per_s == pytest.approx(16e6 / 1.2)


def test_a_node_at_both_slow_paths_is_named() -> None:
    said = traffic.slow_path(traffic.paths([ring({(1, 2): 0.9, (2, 3): 1.0})]))
    assert said.startswith("slow link: node2; node2 to node3 carried 8 Mb/s and was busy for 90%")
    assert said.endswith("the fastest like it carried 80 Mb/s")


def test_one_slow_path_is_named_as_such() -> None:
    said = traffic.slow_path(traffic.paths([ring({(3, 4): 0.9})]))
    assert said.startswith("slow link: node3 to node4; ")


def test_slow_paths_without_a_common_end_are_both_named() -> None:
    said = traffic.slow_path(traffic.paths([ring({(1, 2): 0.9, (3, 4): 0.9})]))
    assert said.startswith("slow link: node1 to node2 and node3 to node4; ")


def test_a_servers_answers_are_compared_with_each_other() -> None:
    """Three workers push one after the other, and pull at the same time, each a third of the link."""
    pushes = [Path(node=f"node{n}", peer="node1", bits_per_s=9e9, busy_share=0.3) for n in (2, 3, 4)]
    pulls = [Path(node="node1", peer=f"node{n}", bits_per_s=3e9, busy_share=0.9) for n in (2, 3, 4)]
    assert traffic.slow_path([*pulls, *pushes]) == ""
    slow = [Path(node="node1", peer="node3", bits_per_s=1e9, busy_share=1.0), *pulls[:1], *pulls[2:]]
    late = [Path(node="node3", peer="node1", bits_per_s=1e9, busy_share=0.9), *pushes[:1], *pushes[2:]]
    assert traffic.slow_path([*slow, *pushes]).startswith(
        "slow link: node1 to node3; node1 to node3 carried 1 Gb/s"
    )
    assert traffic.slow_path([*slow, *late]).startswith("slow link: node1 to node3 and node3 to node1; ")


@pytest.mark.parametrize("busy", [{}, {(1, 2): 0.2}, dict.fromkeys(RING, 1.0)])
def test_like_paths_and_idle_ones_are_not_slow(busy: dict[tuple[int, int], float]) -> None:
    assert traffic.slow_path(traffic.paths([ring(busy)])) == ""


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert traffic.paths([]) == ()
    assert traffic.slow_path(()) == ""
    assert traffic.paths([point(HOSTS, {})]) == ()
