"""Timed all-reduces: who does what with which library, what busbw is, and how it stands beside the links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.agent import strategies
from scaling.frameworks.pytorch import installed
from scaling.records import task as records
from scaling.records.network import ALONE, NcclChoice
from scaling.records.task import AskedAllReduce, RankAllReduce
from scaling.tools.check import __main__, measured
from scaling.tools.check.facts import AllReduce, Facts, Findings
from scaling.tools.check.prober import FOR_GOOD, Exchanger
from scaling.tools.check.verdicts import crossings
from tests.support.check_facts import FOUR, TORCH, facts, gpu, links, ok, only, ranks, timed, to_mend


def with_one(found: Facts, **changes: Any) -> Facts:
    fields: dict[str, Any] = {"network": "ib", "backend": "gloo"}
    return replace(found, all_reduces=(AllReduce(**{**fields, **changes}),))


def test_the_share_of_the_link_is_said() -> None:
    found = with_one(facts(), everyone=timed(0.5e9))  # 4 Gb/s of 10, the links carry 9.4
    assert to_mend(found) == []
    assert ok(found, "all-reduce") == [
        "ib: 4 ranks by gloo, busbw 0.500 GB/s (4.00 Gb/s), 40 % of ib's 10 Gb/s, "
        "43 % of its slowest measured link"
    ]


def test_less_than_a_third_of_the_slowest_link_is_far_below() -> None:
    assert to_mend(with_one(facts(), everyone=timed(9.4e9 / 8 / 2.99))) == []
    verdict = only(with_one(facts(), everyone=timed(9.4e9 / 8 / 3.01)))
    assert (verdict.level, verdict.topic) == ("warning", "all-reduce")
    assert verdict.text.endswith("33 % of its slowest measured link (9.40 Gb/s)")
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
    assert "mpirun --map-by slot): now each byte crosses a link 2 times" in verdict.mend


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
        facts(), all_reduces=(AllReduce(network="", left_out="torch is missing in this environment on node1"),)
    )
    assert ok(found, "all-reduce") == ["not measured: torch is missing in this environment on node1"]


def test_a_node_whose_gpus_exchange_slowly_is_named() -> None:
    inside = {name: timed(2e11 if name != "node3" else 1e10) for name in FOUR}
    verdict = only(with_one(facts(), backend="nccl", everyone=timed(1e9), inside=inside))
    assert verdict.text == "slow inside node3 10.0 GB/s (80.0 Gb/s); the others reach 200 GB/s (1600 Gb/s)"
    assert to_mend(with_one(facts(), backend="gloo", everyone=timed(1e9), inside=inside)) == []


IB = NcclChoice(
    network="IB",
    cards=("mlx5_0",),
    transports={"NET/IB": 4},
    gpu_direct=4,
    algorithms={"ring simple": 256_000_000},
)
SOCKET = NcclChoice(network="Socket", cards=("ib0",), transports={"NET/Socket": 4})


def test_nccls_choices_are_in_the_verdict() -> None:
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
    assert texts == (["ib: NCCL used sockets although there are RDMA cards"] if warned else [])


def test_the_choices_of_all_ranks_become_one() -> None:
    told = {number: RankAllReduce(nccl=IB if number else None) for number in range(2)}
    frame = AllReduce(network="ib", backend="nccl")
    found = measured.found(ranks(FOUR[:2], told=TORCH), told, frame)
    assert found.nccl == IB
    assert measured.found(ranks(FOUR[:2], told=TORCH), {0: told[0], 1: told[0]}, frame).nccl is None


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


CUDA = {name: {"built_for_cuda": "13.0"} for name in FOUR}


# ---------------------------------------------------------------- busbw


@pytest.mark.parametrize(
    ("members", "size", "seconds", "busbw"), [(2, 16_777_216, 17.616e-3, 0.95e9), (8, 1 << 30, 3.758e-3, 500e9)]
)
def test_busbw_is_that_of_nccl_tests(members: int, size: int, seconds: float, busbw: float) -> None:
    """The first is a line of nccl-tests on two nodes: 16777216 bytes, 17.616 ms, busbw 0.95."""
    found = records.timed(members, size, (seconds,))
    assert found.best_busbw_bytes_per_s == found.median_busbw_bytes_per_s == pytest.approx(busbw, rel=0.01)


# ---------------------------------------------------------------- whether, and with what


def test_without_torch_nothing_is_timed() -> None:
    told = ranks(told={**TORCH, "node3": {}})
    assert measured.against(told) == "torch is missing in this environment on node3"
    assert measured.against(ranks(FOUR[:1], told=TORCH)) == "an exchange needs two ranks"
    assert measured.against(ranks(told=TORCH)) == ""


def test_a_network_that_does_not_join_all_nodes_is_left_out() -> None:
    sound = facts(told=TORCH)
    listening = {
        node: replace(one, ports={"ib": 1, "ethernet": 1} if node != "node2" else {"ethernet": 1})
        for node, one in sound.prepared.items()
    }
    sound = replace(sound, prepared=listening)
    assert measured.unreached(sound, "ib") == "nodes are not on it: node2"
    assert measured.unreached(sound, "ethernet") == ""
    cut = tuple(
        replace(link, error="timed out") if {link.client, link.server} == {"node1", "node4"} else link
        for link in sound.links
    )
    said = measured.unreached(replace(sound, links=cut), "ethernet")
    assert said == "not all nodes reach each other: node1-node4"


@pytest.mark.parametrize(
    ("each", "gpus", "told", "backend"),
    [
        (2, 2, CUDA, "nccl"),
        (2, 2, TORCH, "gloo"),
        (2, 1, CUDA, "gloo"),  # ranks share a GPU
        (2, 0, CUDA, "gloo"),
    ],
)
def test_nccl_where_each_rank_has_a_gpu(
    each: int, gpus: int, told: dict[str, dict[str, str]], backend: str
) -> None:
    hosts = {name: {"gpus": tuple(gpu(index, of=gpus) for index in range(gpus))} for name in FOUR}
    assert measured.backend(ranks(each=each, hosts=hosts, told=told)) == backend


def test_gpus_shown_to_one_rank_each_are_enough() -> None:
    told = [
        replace(rank, host=replace(rank.host, gpus=(gpu(0, of=1, uuid=f"GPU-{number}"),)))
        for number, rank in enumerate(ranks(FOUR[:1], each=2, told=CUDA))
    ]
    assert measured.backend(told) == "nccl"


def test_tensors_fit_into_the_memory_of_a_machine() -> None:
    roomy = {name: {"memory_bytes": 1 << 40} for name in FOUR}
    assert measured.largest_bytes(ranks(hosts=roomy)) == measured.MOST_BYTES
    small = {**roomy, "node2": {"memory_bytes": 8 << 30}}
    assert measured.largest_bytes(ranks(each=8, hosts=small)) == 128 << 20
    lab = {name: {"memory_bytes": 8 << 30, "boot_id": "one"} for name in FOUR}
    assert measured.largest_bytes(ranks(each=2, hosts=lab)) == 128 << 20


# ---------------------------------------------------------------- who does what


def test_each_rank_does_as_a_worker_of_the_strategy_would() -> None:
    sound = facts(FOUR[:2], each=2, told=TORCH)
    network = sound.networks[0]
    found = measured.tasks(sound.ranks, "ib", network.places, "gloo", 4711)
    assert [(task.rank, task.local_rank, task.local_world_size, task.device_index) for task in found] == [
        (0, 0, 2, 0),
        (1, 1, 2, 0),
        (2, 0, 2, 0),
        (3, 1, 2, 0),
    ]
    environ = strategies.environ(found[3])
    assert environ["GLOO_SOCKET_IFNAME"] == "ib0"
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("10.10.0.1", "4711")


def test_gpus_are_those_of_the_rank() -> None:
    hosts = {"node1": {"gpus": (gpu(0, of=2), gpu(1, of=2))}}
    told = ranks(FOUR[:1], each=2, hosts=hosts, told=CUDA)
    found = measured.tasks(told, "", {"node1": ALONE}, "nccl", 1)
    assert [(task.device_index, task.point.hardware.device) for task in found] == [(0, "cuda"), (1, "cuda")]
    assert strategies.environ(found[0])["NCCL_SOCKET_IFNAME"] == "=lo"


def test_answers_of_ranks_become_one_all_reduce() -> None:
    told = ranks(FOUR[:2], each=2, told=TORCH)
    answers = {
        number: RankAllReduce(everyone=timed(1e9), inside=timed(1e9 * (number + 1), 2), library="torch 9, Gloo")
        for number in range(4)
    }
    made = measured.found(told, answers, AllReduce(network="ib", backend="gloo"))
    assert made.everyone == timed(1e9)
    assert made.inside == {"node1": timed(1e9, 2), "node2": timed(3e9, 2)}
    assert made.library == "torch 9, Gloo"


def test_a_process_that_is_over_is_not_started() -> None:
    task = measured.tasks(ranks(FOUR[:1], each=2), "", {"node1": ALONE}, "gloo", 1)[0]
    asked = AskedAllReduce(task=task, largest_bytes=1, budget_s=1.0)
    exchanger = Exchanger()
    exchanger.end(3)
    assert exchanger.measured(3, asked).error == "cancelled before it started"
    exchanger.end(FOR_GOOD)
    assert exchanger.measured(4, asked).error == "cancelled before it started"


@pytest.mark.parametrize(
    ("line", "release"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda: Optional[str] = None", ""), ("cuda = '11.7'", "11.7")],
)
def test_the_cuda_of_torch_is_read_from_its_files(tmp_path: Path, line: str, release: str) -> None:
    file = tmp_path / "version.py"
    file.write_text(f"__version__ = '2.13.0'\ndebug = False\n{line}\nhip: Optional[str] = None\n")
    assert installed.cuda_of(file) == release
    assert installed.cuda_of(tmp_path / "none.py") == ""
