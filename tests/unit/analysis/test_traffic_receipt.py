"""Bytes on networks: the receipt of a row, and the path that holds it up."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.measured import traffic
from scaling.analysis.measured.traffic import Path, Receipt
from scaling.records.crossing import bytes_per_step, nccl_bounds
from scaling.records.events import Failed, Finished, Ready, Window
from scaling.records.network import NcclChoice, Place
from scaling.records.point import Pattern
from scaling.records.run import HelperRecord, PointRecord, RankRecord
from scaling.records.telemetry import Flow, Telemetry, Traffic
from tests.support.points import make_point
from tests.support.scripted_records import by_size, record
from tests.support.scripted_records import point as of_kind

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


ENOUGH = S * (STEPS + 1)
SEEN = "the counters saw 4.0 MB of the 20.0 MB that must be sent"
UNSENT = f"{SEEN}, and no node has an RDMA card; a strategy that sends less must define bytes_per_step"
UNREAD = "no byte counters of {0} of a, {0} of b"


def both(**sent_bytes: float) -> dict[str, Telemetry]:
    return {"a": carried(**sent_bytes), "b": carried(**sent_bytes)}


@pytest.mark.parametrize(
    ("hosts", "servers", "crossing"),
    [
        (("a", "b"), (), 2 * 1),  # two ranks: each sends half of it twice
        (("a", "b", "c", "d"), (), 4 * 2 * 3 / 4),
        (("a", "a", "b", "b"), (), 2 * 2 * 3 / 4),  # only the last rank of each node sends to another
        (("a", "b", "a", "b"), (), 4 * 2 * 3 / 4),  # spread: each does
        (("a", "b"), ("a",), 2),  # b pushes and pulls, a is on the server's host
        (("a", "b"), ("a", "b"), 2),  # each has one half at home
        (("a", "b"), ("c",), 4),
        (("a", "a", "b", "b"), ("a", "b"), 4),
    ],
)
def test_expected_bytes_are_those_that_cross_nodes(
    hosts: tuple[str, ...], servers: tuple[str, ...], crossing: float
) -> None:
    counted = {host: carried(ib0=1) for host in (*hosts, *servers)}
    found = receipt(hosts, counted, pattern="servers" if servers else "ring", servers=servers)
    assert found.expected_bytes == pytest.approx(crossing * ENOUGH)


VERDICTS: dict[str, tuple[dict[str, float], dict[str, Any], str, str]] = {
    "the requested card": ({"ib0": 1.04, "eth0": 0.01}, {}, "VERIFIED", ""),
    "another card": ({"ib0": 1e-6, "eth0": 1.04}, {}, "MISLABELLED", "100% of the bytes went over eth0"),
    "other cards": (
        {"ib0": 0.6, "eth0": 0.3, "eth1": 0.1}, {}, "MISLABELLED", "30% of the bytes went over eth0",
    ),
    "95 %": ({"ib0": 0.95, "eth0": 0.05}, {}, "VERIFIED", ""),
    "94 %": ({"ib0": 0.94, "eth0": 0.06}, {}, "MISLABELLED", "6% of the bytes went over eth0"),
    # what the strategy does not know proves nothing, whatever its options are called: control traffic on the right
    # card would look the same
    **{
        option: (
            {"ib0": 0.9}, {"told": False, option: "fp16"}, "UNVERIFIED",
            "the counters saw 18.0 MB; the expected bytes are not known",
        )
        for option in ("compression", "wire", "gradient_dtype")
    },
    "too few bytes": ({"ib0": 0.2}, {"compression": "lossless"}, "UNSENT", UNSENT),
    # bytes may have passed the counters
    "too few bytes, an RDMA card": ({"ib0": 0.2, "mlx5_0__1": 0}, {}, "UNVERIFIED", SEEN),
    "too few bytes, a card without counters": (
        {"ib0": 0.2}, {"hca": "mlx5_0"}, "UNVERIFIED", f"{SEEN}; {UNREAD.format('mlx5_0')}",
    ),
    "too few bytes, hosts of one address": ({"ib0": 0.2}, {"own_addresses": False}, "UNVERIFIED", SEEN),
    # RDMA is counted by the card's port
    **{
        f"NCCL asked for {hca or 'no card'}": (
            {"ib0": 1e-4, "mlx5_0__1": 1, "mlx5_1__1": 0}, {"hca": hca, "nccl": True}, verdict,
            "" if verdict == "VERIFIED" else "100% of the bytes went over mlx5_0/1",
        )
        for hca, verdict in (
            ("mlx5_0", "VERIFIED"), ("mlx5_0:1", "VERIFIED"), ("mlx5_0:2", "MISLABELLED"),
            ("mlx5_1", "MISLABELLED"), ("", "MISLABELLED"),
        )
    },
    # All but NCCL send TCP over the interface of an InfiniBand card, whatever card is in each rank's place.
    **{
        f"{how}, {hca}": (
            {"ib0": 1e-4, "mlx5_0__1": 1e-4, card: 1}, {"hca": hca, "nccl": nccl}, verdict,
            "" if verdict == "VERIFIED" else f"100% of the bytes went over {card.replace('__', '/')}",
        )
        for hca in ("mlx5_0", "any")
        for how, nccl, card, verdict in (
            ("TCP over IPoIB", False, "ib0", "VERIFIED"),
            ("NCCL that fell back to TCP", True, "ib0", "VERIFIED" if hca == "any" else "MISLABELLED"),
            ("RDMA where none was", False, "mlx5_0__1", "MISLABELLED"), ("Ethernet", False, "eth0", "MISLABELLED"),
        )
    },
    "NCCL chooses": (
        {"eth0": 1e-6, "mlx5_0__1": 0.5, "mlx5_1__1": 0.5}, {"interface": "eth0", "hca": "any", "nccl": True},
        "VERIFIED", "",
    ),
    "a card that counts no bytes": (
        {"eth0": 1e-4}, {"interface": "eth0", "hca": "irdma0", "nccl": True}, "UNVERIFIED",
        f"the counters saw 0.0 MB of the 20.0 MB that must be sent; {UNREAD.format('irdma0')}",
    ),
    "a plugin without RDMA cards": (
        {"eth0": 1e-6, "eth1": 0.5, "eth2": 0.5}, {"interface": "eth0", "plugin": True, "nccl": True},
        "VERIFIED", "",
    ),
    "no plugin": (
        {"eth0": 1e-6, "eth1": 0.6, "eth2": 0.4}, {"interface": "eth0", "nccl": True}, "MISLABELLED",
        "60% of the bytes went over eth1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict(name: str) -> None:
    sent, fields, verdict, why = VERDICTS[name]
    found = receipt(("a", "b"), both(**{card: part * ENOUGH for card, part in sent.items()}), **fields)
    assert (found.verdict, found.why) == (verdict, why)
    assert (found.expected_bytes is None) == (fields.get("told") is False) == (found.over_expected is None)


def test_a_receipt_has_the_share_and_the_cards() -> None:
    found = receipt(("a", "b"), both(ib0=1.04 * ENOUGH, eth0=0.01 * ENOUGH))
    assert found.over_expected == pytest.approx((1.04, 1.04)) and found.share == pytest.approx(1.04 / 1.05)
    assert found.sent_bytes == {"ib0": 2 * int(1.04 * ENOUGH), "eth0": 2 * int(0.01 * ENOUGH)}
    for fields in ({"hca": "any"}, {"plugin": True}):
        sent = both(eth0=10, mlx5_0__1=ENOUGH / 2, mlx5_1__1=ENOUGH / 2)
        wanted = receipt(("a", "b"), sent, interface="eth0", nccl=True, **fields).wanted
        assert wanted == ("eth0", "mlx5_0/1", "mlx5_1/1")


@pytest.mark.parametrize("other", [carried(ib0=0), None])
def test_counters_that_stand_still_or_are_missing_prove_nothing(other: Telemetry | None) -> None:
    found = receipt(("a", "b"), {"a": carried(ib0=0.2 * ENOUGH), **({"b": other} if other else {})})
    assert (found.verdict, found.why) == ("UNVERIFIED", found.why if other else "no counters of b")


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


@pytest.mark.parametrize("sent", [2.0, 3.0], ids=["tree", "ring"])
def test_where_the_library_chooses_the_algorithm_a_range_is_expected(sent: float) -> None:
    """Four ranks on two nodes by NCCL: trees send 2 S, a ring 3 S."""
    each = carried(ib0=sent / 2 * ENOUGH)
    found = receipt(("a", "b", "a", "b"), {"a": each, "b": each}, nccl=True)
    assert (found.expected_bytes, found.expected_most_bytes) == (2 * ENOUGH, 3 * ENOUGH)
    assert found.over_expected == pytest.approx((sent / 3, sent / 2)) and found.verdict == "VERIFIED"


def test_ranks_that_do_not_wait_for_each_other_expect_their_own_bytes() -> None:
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
    assert found is not None and (found.expected_bytes, found.verdict) == (2 * S * (4 + 1), "VERIFIED")


def test_inside_a_node_and_after_a_failure_there_is_none() -> None:
    failed = replace(point(("a", "b"), both(ib0=1)), outcome=Failed(cause="hang", message=""))
    others = [point(("a", "b"), both(ib0=1), pattern=pattern) for pattern in ("inside", "")]
    assert [traffic.of(one) for one in (failed, point(("a", "a"), both(ib0=1)), *others)] == [None] * 4
    assert traffic.of_row([failed]) is None


def test_a_row_is_as_good_as_its_worst_round() -> None:
    good, bad = point(("a", "b"), both(ib0=ENOUGH)), point(("a", "b"), both(ib0=1, eth0=ENOUGH))
    found = traffic.of_row([good, bad])
    assert found is not None and found.expected_bytes == 4 * ENOUGH
    assert (found.verdict, found.why) == ("MISLABELLED", "100% of the bytes went over eth0")
    assert found.over_expected == pytest.approx((0.5, 0.5), abs=1e-3)


def test_bytes_that_cards_carry_when_idle_do_not_count() -> None:
    """A file system keeps eth0 as busy as the exchange keeps ib0. Less than nothing was never sent."""
    for sent, idle in ((20 * S, 20 * S), (S, 5 * S)):
        moved = carried(ib0=20 * S, eth0=sent)
        less = replace(moved, idle_traffic=carried(eth0=idle).traffic)
        found = receipt(("a", "b"), {"a": less, "b": less})
        assert (found.verdict, found.sent_bytes) == ("VERIFIED", {"ib0": 40 * S, "eth0": 0})
    assert receipt(("a", "b"), both(ib0=20 * S, eth0=20 * S)).verdict == "MISLABELLED"


@pytest.mark.parametrize("epoch", [0, None])
def test_repeated_windows_are_expected_too(epoch: int | None) -> None:
    record = replace(point(("a", "b"), both(ib0=1)), epoch=epoch)
    ranks = tuple(replace(rank, disturbed=rank.windows) for rank in record.ranks)
    once, twice = traffic.of(record), traffic.of(replace(record, ranks=ranks))
    assert once is not None and twice is not None
    assert (once.expected_bytes, twice.expected_bytes) == (2 * ENOUGH, 2 * 2 * ENOUGH)


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


@pytest.mark.parametrize(
    ("epoch", "busy_s", "windows", "disturbed"),
    [
        # points take turns: a step before each of three windows of two, one of them repeated, makes twelve
        (0, 0.36, 3, 1),
        # a point alone: one step before all windows, and one before the repeated ones makes ten
        (None, 0.3, 2, 2),
    ],
)
def test_uncounted_steps_are_part_of_the_time(
    epoch: int | None, busy_s: float, windows: int, disturbed: int
) -> None:
    """0.03 s of each step of 0.1 s busy."""
    made = ring({(1, 2): busy_s})
    window = Window(index=0, measured=True, steps=2, samples=2, start_s=0.0, end_s=0.2, end_unix_s=1.0)
    own = tuple(replace(window, index=index) for index in range(windows))
    ranks = tuple(replace(rank, windows=own, disturbed=own[:disturbed]) for rank in made.ranks)
    found = traffic.paths([replace(made, ranks=ranks, epoch=epoch)])
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


@pytest.mark.parametrize(
    ("busy", "which"),
    [
        ({(1, 2): 0.9, (2, 3): 1.0}, "node2"),  # the node at both slow paths
        ({(3, 4): 0.9}, "node3 to node4"),
        ({(1, 2): 0.9, (3, 4): 0.9}, "node1 to node2 and node3 to node4"),
        ({}, ""), ({(1, 2): 0.2}, ""), (dict.fromkeys(RING, 1.0), ""),
    ],
)  # fmt: skip
def test_slow_paths_are_named(busy: dict[tuple[int, int], float], which: str) -> None:
    said = traffic.slow_path(traffic.paths([ring(busy)]))
    assert said.startswith(f"slow link: {which}; ") if which else said == ""
    if which == "node2":
        assert "node2 to node3 carried 8 Mb/s and was busy for 90%" in said
        assert said.endswith("the fastest like it carried 80 Mb/s")


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


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert traffic.paths([]) == ()
    assert traffic.slow_path(()) == ""
    assert traffic.paths([point(HOSTS, {})]) == ()


# ---------------------------------------------------------------- NCCL's choices

IB = NcclChoice(network="IB", cards=("mlx5_0",), transports={"NET/IB": 2}, gpu_direct=2)
SOCKET = NcclChoice(network="Socket", cards=("eth0",), transports={"NET/Socket": 2})
OVER_TCP = NcclChoice(network="AWS Libfabric", provider="tcp", transports={"NET/AWS Libfabric": 2})
WARNED = replace(IB, warnings=("NET/IB : Got completion with error 12", "another"))


def chosen(*choices: NcclChoice | None, hca: str = "") -> PointRecord:
    """An exchange of as many ranks, each on a node of its own whose place on the network has this card."""
    made = record(of_kind("exchange", len(choices)), 0.1, hosts=[f"node{n}" for n in range(len(choices))])
    place = Place(address="10.0.0.1", interface="ib0", hca=hca)
    ranks = (replace(rank, nccl=one, place=place) for rank, one in zip(made.ranks, choices, strict=True))
    return replace(made, ranks=tuple(ranks))


@pytest.mark.parametrize(
    ("made", "notes"),
    [
        (chosen(IB, SOCKET, hca="any"), ["NCCL used sockets on node1 although RDMA is available"]),
        (chosen(SOCKET, SOCKET), []),
        (chosen(IB, IB, hca="any"), []),
        (
            chosen(OVER_TCP, OVER_TCP),
            ["NCCL's plugin AWS Libfabric used libfabric's provider tcp, which is not RDMA"],
        ),
        (chosen(*[replace(OVER_TCP, provider="efa")] * 2), []),
        (chosen(WARNED, IB), ["NCCL warned: NET/IB : Got completion with error 12"]),
    ],
)
def test_notes_about_nccl(made: PointRecord, notes: list[str]) -> None:
    found = by_size([made])[2].footnotes
    assert [note for note in found if "NCCL" in note] == notes


def test_choices_of_ranks_are_joined_and_algorithms_are_those_of_the_comm_control() -> None:
    assert traffic.nccl_choices([chosen(IB, SOCKET, None)]) == NcclChoice(
        network="IB, Socket", cards=("eth0", "mlx5_0"), transports={"NET/IB": 2, "NET/Socket": 2}, gpu_direct=2
    )
    assert traffic.nccl_choices([chosen(None)]) is None
    comm = replace(chosen(replace(IB, algorithms={"ring simple": 7}), IB), point=of_kind("comm", 2))
    for controls, algorithms in (([comm], {"ring simple": 7}), ([], {})):
        row = by_size([record(of_kind("solo"), 0.1), chosen(IB, IB), *controls])[2]
        assert row.nccl is not None
        assert (row.nccl.algorithms, row.nccl.transports) == (algorithms, {"NET/IB": 4})
