"""Bytes on networks: the receipt of a row, and the path that holds it up."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured import traffic
from scaling.analysis.measured.traffic import Path, Receipt
from scaling.records.crossing import bytes_per_step, nccl_bounds
from scaling.records.events import Failed, Finished, Ready, Window
from scaling.records.network import Place
from scaling.records.point import Pattern
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import Flow, Telemetry, Traffic
from tests.support.points import make_point

S = 1_000_000
STEPS = 9  # measured; one more gives all ranks a common start
POINT = make_point(
    strategy="fake:a", kind="exchange", world_size=4, round=0, model="m", data="d", device="cpu",
    batch_rule="weak", batch_size=1,
)  # fmt: skip
WINDOW = Window(index=0, measured=True, steps=STEPS, samples=STEPS, start_s=0.0, end_s=1.0, end_unix_s=1.0)
READY = Ready(import_s=0, build_s=0, parameters=S // 4, gradient_bytes=S, device_name="cpu")


def carried(**sent_bytes: float) -> Telemetry:
    """What a node sent over each card; `__` stands for the `/` of a port."""
    return Telemetry(
        traffic=tuple(
            Traffic(name=name.replace("__", "/"), received_bytes=0, sent_bytes=int(sent))
            for name, sent in sent_bytes.items()
        )
    )


def point(
    hosts: tuple[str, ...],
    counted: dict[str, Telemetry],
    *,
    pattern: Pattern = "ring",
    servers: tuple[str, ...] = (),
    interface: str = "ib0",
    hca: str = "",
    plugin: bool = False,
    told: bool = True,
    nccl: bool = False,
    own_addresses: bool = True,
    **options: str,
) -> PointRecord:
    """A record whose counters were read beside the first rank of each host, or its server; its strategy `told`
    what must cross nodes, and had `nccl` carry it."""
    bounds = nccl_bounds(S, hosts) if nccl else bytes_per_step(pattern, S, hosts, servers)
    ready = replace(READY, crossing_bytes_per_step=bounds if told else None)
    card: dict[str, Any] = {"interface": interface, "hca": hca, "plugin": plugin}
    ranks = tuple(
        RankRecord(
            rank=rank, launch_rank=rank, host=host, outcome=Finished(), ready=ready, windows=(WINDOW,),
            place=Place(address=host if own_addresses else "10.0.0.1", **card),
            environ={"NCCL_SOCKET_IFNAME": f"={interface}"} if nccl else {},
            telemetry=counted.get(host, Telemetry()) if host not in hosts[:rank] else Telemetry(),
        )
        for rank, host in enumerate(hosts)
    )  # fmt: skip
    helpers = tuple(
        HelperRecord(
            name=f"server-{index}", launch_rank=0, host=host, outcome=Finished(),
            place=Place(address=host if own_addresses else "10.0.0.1", **card),
            telemetry=counted.get(host, Telemetry()) if host not in hosts else Telemetry(),
        )
        for index, host in enumerate(servers)
    )  # fmt: skip
    return PointRecord(
        point=replace(POINT, world_size=len(hosts), options=options), outcome=Finished(), ranks=ranks,
        helpers=helpers, hosts=hosts, pattern=pattern, started_unix_s=0, wall_s=1, startup_s=0, measured_s=1,
    )  # fmt: skip


# Which card carried the bytes: a receipt from made-up counters.


def receipt(*args: Any, **fields: Any) -> Receipt:
    found = traffic.of(point(*args, **fields))
    assert found is not None
    return found


# ---------------------------------------------------------------- what must move


@pytest.mark.parametrize(
    ("hosts", "crossing"),
    [
        (("a", "b"), 2 * 1),  # two ranks: each sends half of it twice
        (("a", "b", "c", "d"), 4 * 2 * 3 / 4),
        (("a", "a", "b", "b"), 2 * 2 * 3 / 4),  # only the last rank of each node sends to another
        (("a", "b", "a", "b"), 4 * 2 * 3 / 4),  # spread: each does
    ],
)
def test_a_ring_sends_what_crosses_nodes(hosts: tuple[str, ...], crossing: float) -> None:
    found = receipt(hosts, {host: carried(ib0=1) for host in hosts})
    assert found.expected_bytes == pytest.approx(crossing * S * (STEPS + 1))


@pytest.mark.parametrize(
    ("hosts", "servers", "crossing"),
    [
        (("a", "b"), ("a",), 2),  # b pushes and pulls, a is beside the server
        (("a", "b"), ("a", "b"), 2),  # each has one half at home
        (("a", "b"), ("c",), 4),
        (("a", "a", "b", "b"), ("a", "b"), 4),
    ],
)
def test_servers_are_sent_gradients_and_send_as_much_back(
    hosts: tuple[str, ...], servers: tuple[str, ...], crossing: float
) -> None:
    counted = {host: carried(ib0=1) for host in (*hosts, *servers)}
    found = receipt(hosts, counted, pattern="servers", servers=servers)
    assert found.expected_bytes == pytest.approx(crossing * S * (STEPS + 1))


@pytest.mark.parametrize("option", ["compression", "wire", "gradient_dtype"])
def test_what_the_strategy_does_not_know_is_not_expected_whatever_its_options_are_called(option: str) -> None:
    """And proves nothing: a few MB of control traffic on the right card would look the same."""
    found = receipt(("a", "b"), {"a": carried(ib0=9e6), "b": carried(ib0=9e6)}, told=False, **{option: "fp16"})
    assert (found.expected_bytes, found.over_expected, found.verdict) == (None, None, "UNVERIFIED")
    assert found.why == "the counters saw 18.0 MB; the expected bytes are not known"


def test_an_option_of_that_name_that_makes_nothing_smaller_lets_the_bytes_be_expected() -> None:
    found = receipt(("a", "b"), {"a": carried(ib0=9), "b": carried(ib0=9)}, compression="lossless")
    assert (found.expected_bytes, found.verdict) == (2 * S * (STEPS + 1), "UNSENT")


# ---------------------------------------------------------------- the verdict

ENOUGH = S * (STEPS + 1)


def both(**sent_bytes: float) -> dict[str, Telemetry]:
    return {"a": carried(**sent_bytes), "b": carried(**sent_bytes)}


def test_bytes_on_the_card_that_was_asked_for() -> None:
    found = receipt(("a", "b"), both(ib0=1.04 * ENOUGH, eth0=0.01 * ENOUGH))
    assert (found.verdict, found.why, found.wanted) == ("VERIFIED", "", ("ib0",))
    assert found.over_expected == pytest.approx((1.04, 1.04))
    assert found.share == pytest.approx(1.04 / 1.05)
    assert found.sent_bytes == {"ib0": 2 * int(1.04 * ENOUGH), "eth0": 2 * int(0.01 * ENOUGH)}


def test_the_card_that_is_named_is_not_the_one_that_was_asked_for() -> None:
    found = receipt(("a", "b"), both(ib0=0.6 * ENOUGH, eth0=0.3 * ENOUGH, eth1=0.1 * ENOUGH))
    assert (found.verdict, found.why) == ("MISLABELLED", "30% of the bytes went over eth0")


def test_bytes_on_another_card_are_named() -> None:
    found = receipt(("a", "b"), both(ib0=10, eth0=1.04 * ENOUGH))
    assert (found.verdict, found.why) == ("MISLABELLED", "100% of the bytes went over eth0")


@pytest.mark.parametrize(("eth0", "verdict"), [(0.05, "VERIFIED"), (0.06, "MISLABELLED")])
def test_nineteen_parts_of_twenty_are_asked(eth0: float, verdict: str) -> None:
    found = receipt(("a", "b"), both(ib0=(1 - eth0) * ENOUGH, eth0=eth0 * ENOUGH))
    assert found.verdict == verdict


SEEN = "the counters saw 4.0 MB of the 20.0 MB that must be sent"


def test_bytes_that_no_counter_saw_were_not_sent_where_there_is_no_rdma_card() -> None:
    found = receipt(("a", "b"), both(ib0=0.2 * ENOUGH))
    assert (found.verdict, found.why) == (
        "UNSENT",
        f"{SEEN}, and no node has an RDMA card; a strategy that sends less must define bytes_per_step",
    )


@pytest.mark.parametrize(
    ("cards", "fields"),
    [
        ({"ib0": 0.2 * ENOUGH, "mlx5_0__1": 0}, {}),
        ({"ib0": 0.2 * ENOUGH}, {"hca": "mlx5_0"}),
        ({"ib0": 0.2 * ENOUGH}, {"own_addresses": False}),
    ],
    ids=["an RDMA card that was not asked for", "one without counters", "hosts of one address, on one loopback"],
)
def test_bytes_that_may_have_passed_the_counters_prove_nothing(
    cards: dict[str, float], fields: dict[str, Any]
) -> None:
    found = receipt(("a", "b"), both(**cards), **fields)
    unread = "; no byte counters of mlx5_0 of a, mlx5_0 of b" if "hca" in fields else ""
    assert (found.verdict, found.why) == ("UNVERIFIED", SEEN + unread)


def test_counters_that_stand_still_prove_nothing() -> None:
    found = receipt(("a", "b"), {"a": carried(ib0=0.2 * ENOUGH), "b": carried(ib0=0)})
    assert found.verdict == "UNVERIFIED"


def test_a_host_without_counters_proves_nothing() -> None:
    found = receipt(("a", "b"), {"a": carried(ib0=ENOUGH)})
    assert (found.verdict, found.why) == ("UNVERIFIED", "no counters of b")


@pytest.mark.parametrize(
    ("hca", "verdict"),
    [
        ("mlx5_0", "VERIFIED"),
        ("mlx5_0:1", "VERIFIED"),
        ("mlx5_0:2", "MISLABELLED"),
        ("mlx5_1", "MISLABELLED"),
        ("", "MISLABELLED"),
    ],
)
def test_rdma_is_seen_on_the_cards_port(hca: str, verdict: str) -> None:
    found = receipt(("a", "b"), both(ib0=1000, mlx5_0__1=ENOUGH, mlx5_1__1=0), hca=hca, nccl=True)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("nccl", "card", "verdict"),
    [(False, "ib0", "VERIFIED"), (True, "ib0", "MISLABELLED"), (False, "mlx5_0__1", "MISLABELLED"), (False, "eth0",
    "MISLABELLED")], ids=["TCP over IPoIB", "NCCL that fell back to TCP", "RDMA where none was", "Ethernet"],
)  # fmt: skip
@pytest.mark.parametrize("hca", ["mlx5_0", "any"])
def test_all_but_nccl_send_tcp_over_the_interface_of_an_infiniband_card(
    nccl: bool, card: str, verdict: str, hca: str
) -> None:
    """The card stands in each rank's place, whatever its strategy does with it."""
    if nccl and hca == "any":
        verdict = "VERIFIED"
    found = receipt(("a", "b"), both(**{"ib0": 1000, "mlx5_0__1": 1000, card: ENOUGH}), hca=hca, nccl=nccl)
    assert found.verdict == verdict


def test_where_nccl_chooses_every_card_is_right() -> None:
    sent = both(eth0=10, mlx5_0__1=ENOUGH / 2, mlx5_1__1=ENOUGH / 2)
    found = receipt(("a", "b"), sent, interface="eth0", hca="any", nccl=True)
    assert (found.verdict, found.wanted) == ("VERIFIED", ("eth0", "mlx5_0/1", "mlx5_1/1"))


def test_a_card_that_counts_no_bytes_is_named() -> None:
    found = receipt(("a", "b"), both(eth0=1000), interface="eth0", hca="irdma0", nccl=True)
    assert found.verdict == "UNVERIFIED"
    assert found.why.endswith("; no byte counters of irdma0 of a, irdma0 of b")


def test_ports_that_lost_packets_or_were_told_of_congestion_are_named() -> None:
    def with_errors(**errors: int) -> list[str]:
        carried = Traffic(name="mlx5_0/1", received_bytes=0, sent_bytes=1, errors=errors)
        return list(traffic.link_notes([point(("a", "b"), {"a": Telemetry(traffic=(carried,))})]))

    assert with_errors(port_xmit_wait=9, symbol_error=1) == []
    assert with_errors(out_of_sequence=7, packet_seq_err=2) == [
        "packets were lost or out of order on mlx5_0/1 of a: out_of_sequence 7, packet_seq_err 2"
    ]
    assert with_errors(np_cnp_sent=1000, port_xmit_wait=9) == [
        "congestion on mlx5_0/1 of a: np_cnp_sent 1,000, port_xmit_wait 9"
    ]


def test_a_plugin_without_rdma_cards_chooses_among_all_interfaces() -> None:
    sent = both(eth0=10, eth1=ENOUGH / 2, eth2=ENOUGH / 2)
    found = receipt(("a", "b"), sent, interface="eth0", plugin=True, nccl=True)
    assert (found.verdict, found.wanted) == ("VERIFIED", ("eth0", "eth1", "eth2"))
    assert receipt(("a", "b"), sent, interface="eth0", nccl=True).verdict == "MISLABELLED"


@pytest.mark.parametrize("sent", [2.0, 3.0], ids=["tree", "ring"])
def test_where_the_library_chooses_how_the_range_is_told(sent: float) -> None:
    """Four ranks on two nodes by NCCL: trees send 2 S, a ring 3 S."""
    each = carried(ib0=sent / 2 * S * (STEPS + 1))
    found = receipt(("a", "b", "a", "b"), {"a": each, "b": each}, nccl=True)
    assert (found.expected_bytes, found.expected_most_bytes) == (2 * S * (STEPS + 1), 3 * S * (STEPS + 1))
    assert found.over_expected == pytest.approx((sent / 3, sent / 2))
    assert found.verdict == "VERIFIED"


def test_ranks_that_do_not_wait_for_each_other_tell_each_for_itself() -> None:
    """Rank 1 has made half as many steps as rank 0 when its windows end, and its bytes alone cross."""
    record = point(("a", "b"), both(ib0=0.6 * ENOUGH), pattern="servers", servers=("a",))
    own = ((0.0, 0.0), (2.0 * S, 2.0 * S))
    ranks = tuple(
        replace(rank, ready=replace(rank.ready, crossing_bytes_per_step=bounds))
        for rank, bounds in zip(record.ranks, own, strict=True)
        if rank.ready is not None
    )
    fewer = replace(ranks[1], windows=tuple(replace(window, steps=4) for window in ranks[1].windows))
    found = traffic.of(replace(record, synchronous=False, ranks=(ranks[0], fewer)))
    assert found is not None
    assert (found.expected_bytes, found.verdict) == (2 * S * (4 + 1), "VERIFIED")


# ---------------------------------------------------------------- what has none


def test_inside_a_node_and_after_a_failure_there_is_none() -> None:
    assert traffic.of(point(("a", "a"), both(ib0=1))) is None
    assert traffic.of(point(("a", "b"), both(ib0=1), pattern="inside")) is None
    assert traffic.of(point(("a", "b"), both(ib0=1), pattern="")) is None
    failed = replace(point(("a", "b"), both(ib0=1)), outcome=Failed(cause="hang", message=""))
    assert traffic.of(failed) is None
    assert traffic.of_row([failed]) is None


def test_a_row_is_as_good_as_its_worst_round() -> None:
    good, bad = point(("a", "b"), both(ib0=ENOUGH)), point(("a", "b"), both(ib0=1, eth0=ENOUGH))
    found = traffic.of_row([good, bad])
    assert found is not None
    assert (found.verdict, found.why) == ("MISLABELLED", "100% of the bytes went over eth0")
    assert found.over_expected == pytest.approx((0.5, 0.5), abs=1e-3)
    assert found.expected_bytes == 4 * ENOUGH


# ---------------------------------------------------------------- what flows anyway


def test_what_cards_carry_while_nothing_runs_is_no_part_of_it() -> None:
    """A file system keeps eth0 as busy as the exchange keeps ib0: without it, all of the exchange went over
    ib0."""
    moved = carried(ib0=20 * S, eth0=20 * S)
    both = replace(moved, idle_traffic=carried(ib0=0, eth0=20 * S).traffic)
    assert receipt(("a", "b"), {"a": moved, "b": moved}).verdict == "MISLABELLED"
    found = receipt(("a", "b"), {"a": both, "b": both})
    assert (found.verdict, found.sent_bytes) == ("VERIFIED", {"ib0": 40 * S, "eth0": 0})


def test_less_than_nothing_was_never_sent() -> None:
    busier = replace(carried(ib0=20 * S, eth0=S), idle_traffic=carried(eth0=5 * S).traffic)
    assert receipt(("a", "b"), {"a": busier, "b": busier}).sent_bytes == {"ib0": 40 * S, "eth0": 0}


@pytest.mark.parametrize("epoch", [0, None])
def test_what_windows_sent_that_were_measured_again_must_have_moved_too(epoch: int | None) -> None:
    both = {host: carried(ib0=1) for host in ("a", "b")}
    record = replace(point(("a", "b"), both), epoch=epoch)
    ranks = tuple(replace(rank, disturbed=rank.windows) for rank in record.ranks)
    once, twice = traffic.of(record), traffic.of(replace(record, ranks=ranks))
    assert once is not None and twice is not None
    assert (once.expected_bytes, twice.expected_bytes) == (2 * S * (STEPS + 1), 2 * 2 * S * (STEPS + 1))


# Which path held up an exchange, from what the nodes say of their connections.

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


def test_windows_without_a_step_have_no_path() -> None:
    """Nothing was watched: its connections are of no known time."""
    made = ring({(1, 2): 0.8})
    ranks = tuple(
        replace(rank, windows=tuple(replace(one, steps=0) for one in rank.windows)) for rank in made.ranks
    )
    assert traffic.paths([replace(made, ranks=ranks)]) == ()


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
