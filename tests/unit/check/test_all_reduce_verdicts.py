"""What the preflight says of timed all-reduces: beside the links, and in its table."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.records.all_reduce import RankAllReduce
from scaling.records.nccl import NcclChoice
from scaling.tools.check import __main__, all_reduce
from scaling.tools.check.facts import AllReduce, Facts, Findings
from scaling.tools.check.verdicts import crossings
from tests.support.check_facts import FOUR, TORCH, facts, links, ok, only, ranks, timed, to_mend


def with_one(found: Facts, **changes: Any) -> Facts:
    fields: dict[str, Any] = {"network": "ib", "backend": "gloo"}
    return replace(found, all_reduces=(AllReduce(**{**fields, **changes}),))


def test_the_share_of_the_link_is_said() -> None:
    found = with_one(facts(), everyone=timed(0.5e9))  # 4 Gb/s of 10, the links carry 9.4
    assert to_mend(found) == []
    assert ok(found, "all-reduce") == [
        "ib: 4 ranks by gloo, busbw 0.500 GB/s (4.00 Gb/s), 40 % of ib's 10 Gb/s, "
        "43 % of its slowest link as measured"
    ]


def test_less_than_a_third_of_the_slowest_link_is_far_below() -> None:
    assert to_mend(with_one(facts(), everyone=timed(9.4e9 / 8 / 2.99))) == []
    verdict = only(with_one(facts(), everyone=timed(9.4e9 / 8 / 3.01)))
    assert (verdict.level, verdict.topic) == ("warning", "all-reduce")
    assert verdict.text.endswith("33 % of its slowest link as measured (9.40 Gb/s)")
    assert "Gloo computes on the ranks' cores" in verdict.mend


def test_a_slow_link_is_its_own_fault_and_not_the_librarys() -> None:
    slow = facts(words=("ib",), links=links(FOUR, "ib", lambda a, b: 0.94e9 if "node2" in (a, b) else 9.4e9))
    found = with_one(slow, everyone=timed(0.1e9))
    assert [verdict.topic for verdict in to_mend(found)] == ["bandwidth"]


def test_ranks_dealt_out_over_the_nodes_are_the_cause() -> None:
    dealt = facts(FOUR[:2], each=2, told=TORCH)
    assert crossings(dealt) == 1
    dealt = replace(dealt, ranks=(*dealt.ranks[::2], *dealt.ranks[1::2]))
    assert crossings(dealt) == 2
    verdict = only(with_one(dealt, everyone=timed(0.2e9)))
    assert "mpirun --map-by slot): each byte crosses a node's link 2 times" in verdict.mend


def test_a_node_alone_is_compared_with_nothing() -> None:
    found = replace(
        facts(FOUR[:1], each=2), all_reduces=(AllReduce(network="", backend="nccl", everyone=timed(2e11)),)
    )
    assert ok(found, "all-reduce") == ["4 ranks by nccl, busbw 200 GB/s (1600 Gb/s)"]


def test_a_failure_is_an_error_with_its_cause() -> None:
    verdict = only(with_one(facts(), backend="nccl", error="node2 (rank 1): DistBackendError: NCCL error"))
    assert (verdict.level, verdict.topic) == ("error", "all-reduce")
    assert verdict.text == "ib: torch:nccl failed: node2 (rank 1): DistBackendError: NCCL error"
    assert "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=" in verdict.mend


def test_a_failure_of_gloo_advises_no_level_that_ends_ddp() -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL is an error in torch 2.13's DDP, and lower levels print nothing of Gloo."""
    verdict = only(with_one(facts(), backend="gloo", error="node2 (rank 1): RuntimeError: Connection closed"))
    assert "TORCH_DISTRIBUTED_DEBUG" not in verdict.mend


def test_what_was_left_out_is_said() -> None:
    found = replace(
        facts(), all_reduces=(AllReduce(network="", left_out="no torch in this environment on node1"),)
    )
    assert ok(found, "all-reduce") == ["not measured: no torch in this environment on node1"]


def test_a_node_whose_gpus_exchange_slowly_is_named() -> None:
    inside = {name: timed(2e11 if name != "node3" else 1e10) for name in FOUR}
    verdict = only(with_one(facts(), backend="nccl", everyone=timed(1e9), inside=inside))
    assert verdict.text == "inside node3 10.0 GB/s (80.0 Gb/s); the others reach 200 GB/s (1600 Gb/s)"
    assert to_mend(with_one(facts(), backend="gloo", everyone=timed(1e9), inside=inside)) == []


IB = NcclChoice(
    network="IB",
    cards=("mlx5_0",),
    transports={"NET/IB": 4},
    gpu_direct=4,
    algorithms={"ring simple": 256_000_000},
)
SOCKET = NcclChoice(network="Socket", cards=("ib0",), transports={"NET/Socket": 4})


def test_what_nccl_chose_stands_beside_the_busbw() -> None:
    found = with_one(facts(), backend="nccl", everyone=timed(1e9), nccl=IB)
    assert to_mend(found) == []
    (said,) = ok(found, "all-reduce")
    assert said.startswith("ib: 4 ranks by nccl (NET/IB on mlx5_0 with GPUDirect, ring simple), busbw 1.00 GB/s")


@pytest.mark.parametrize(
    ("cards", "chosen", "warned"), [("any", SOCKET, True), ("", SOCKET, False), ("any", IB, False)]
)
def test_sockets_where_there_are_cards_are_a_warning(cards: str, chosen: NcclChoice, *, warned: bool) -> None:
    sound = facts(words=("ib",))
    (network,) = sound.networks
    places = {name: replace(place, hca=cards) for name, place in network.places.items()}
    found = with_one(
        replace(sound, networks=(replace(network, places=places),)),
        backend="nccl",
        everyone=timed(1e9),
        nccl=chosen,
    )
    texts = [verdict.text for verdict in to_mend(found) if verdict.topic == "all-reduce"]
    assert texts == (["ib: NCCL took sockets, though there are cards for RDMA"] if warned else [])


def test_the_choices_of_all_ranks_become_one() -> None:
    told = {number: RankAllReduce(nccl=IB if number else None) for number in range(2)}
    frame = AllReduce(network="ib", backend="nccl")
    found = all_reduce.found(ranks(FOUR[:2], told=TORCH), told, frame)
    assert found.nccl == IB
    assert all_reduce.found(ranks(FOUR[:2], told=TORCH), {0: told[0], 1: told[0]}, frame).nccl is None


# ---------------------------------------------------------------- the table


def test_the_table() -> None:
    inside = {name: timed(5e9, 2) for name in FOUR[:2]}
    found = with_one(facts(FOUR[:2]), everyone=timed(1e9), inside=inside, library="torch 9, Gloo")
    text = __main__.render(Findings(facts=found, verdicts=(), wall_s=1.0))
    table = text[text.index("all-reduce by") :].splitlines()
    assert table[:5] == [
        "all-reduce by torch 9, Gloo: busbw in GB/s, 2 (N-1)/N x bytes / time of the slowest of N ranks",
        "                               MB     best   median  times",
        "  ib: all 4 ranks             256     1.00    0.900      3",
        "  ib: the 2 of node1 alone    256     5.00     4.50      3",
        "  ib: the 2 of node2 alone    256     5.00     4.50      3",
    ]


def test_the_table_of_many_nodes_has_the_slowest_and_the_fastest() -> None:
    many = {f"n{number}": timed(1e9 * (number + 1), 2) for number in range(__main__.WIDE + 1)}
    found = with_one(facts(FOUR[:2]), everyone=timed(1e9), inside=many)
    rows = [
        line
        for line in __main__.render(Findings(facts=found, verdicts=(), wall_s=1.0)).splitlines()
        if "alone" in line
    ]
    assert [row.split()[4] for row in rows] == ["n0", f"n{__main__.WIDE}"]
