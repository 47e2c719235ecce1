"""Timed all-reduces: who does what with which library, what busbw is, and how it stands beside the links."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.agent import strategies
from scaling.frameworks.pytorch import installed
from scaling.records import task as records
from scaling.records.network import ALONE, NcclChoice
from scaling.records.task import AskedAllReduce, RankAllReduce
from scaling.tools.check import measured
from scaling.tools.check.facts import AllReduce, Start
from scaling.tools.check.prober import FOR_GOOD, Processes
from tests.support.check_facts import FOUR, TORCH, facts, gpu, ranks, timed

IB = NcclChoice(
    network="IB",
    cards=("mlx5_0",),
    transports={"NET/IB": 4},
    gpu_direct=4,
    algorithms={"ring simple": 256_000_000},
)


def test_the_choices_of_all_ranks_become_one() -> None:
    told = {number: RankAllReduce(nccl=IB if number else None) for number in range(2)}
    frame = AllReduce(network="ib", backend="nccl")
    found = measured.found(ranks(FOUR[:2], told=TORCH), told, frame)
    assert found.nccl == IB
    assert measured.found(ranks(FOUR[:2], told=TORCH), {0: told[0], 1: told[0]}, frame).nccl is None


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
    exchanger = Processes()
    exchanger.end(3)
    assert exchanger.answer(Start(number=3, asked=asked), print).error == "cancelled before it started"
    exchanger.end(FOR_GOOD)
    assert exchanger.answer(Start(number=4, asked=asked), print).error == "cancelled before it started"


@pytest.mark.parametrize(
    ("line", "release"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda: Optional[str] = None", ""), ("cuda = '11.7'", "11.7")],
)
def test_the_cuda_of_torch_is_read_from_its_files(
    tmp_path: Path, line: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "folder", lambda: tmp_path)
    file = tmp_path / "version.py"
    file.write_text(f"__version__ = '2.13.0'\ndebug = False\n{line}\nhip: Optional[str] = None\n")
    assert installed.cuda() == release
    file.unlink()
    assert installed.cuda() == ""
