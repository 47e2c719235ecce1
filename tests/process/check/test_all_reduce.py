"""Timed all-reduces by real processes: torch over Gloo, on the loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from scaling.errors import Interrupted
from scaling.records.network import ALONE, NcclChoice, Network, Place
from scaling.records.task import AskedAllReduce, RankAllReduce
from scaling.tools.check import measured, prober
from scaling.tools.check.facts import AllReduce, Facts, Prepared, RankFacts
from tests.support import telling_all_reduce
from tests.support.check_facts import FOUR, ranks
from tests.support.probers import Probers

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


class Cluster(Probers):
    """A megabyte is exchanged, or as much as a test allows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: Sequence[RankFacts]) -> None:
        monkeypatch.setattr(measured, "MOST_BYTES", 1_000_000)
        monkeypatch.setattr(measured, "BUDGET_S", 0.5)
        super().__init__(told)

    def measured(self, networks: Sequence[Network] = ()) -> tuple[AllReduce, ...]:
        ports = {network.word: 1 for network in networks}
        known = Facts(
            ranks=self.told,
            networks=tuple(networks),
            prepared={rank.host.hostname: Prepared(ports=ports) for rank in self.told},
        )
        with self.ending(prober.PROCESS) as lead:
            return lead.all_reduced(known).all_reduces


def torches(nodes: Sequence[str], each: int) -> tuple[RankFacts, ...]:
    return ranks(nodes, each=each, told={name: {"built_for_cuda": ""} for name in nodes})


def test_two_nodes_of_two_ranks_tell_of_their_insides(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {name: Place(address="127.0.0.1", interface="lo") for name in FOUR[:2]}
    network = Network(word="ib", why="", places=places)
    (one,) = Cluster(monkeypatch, torches(FOUR[:2], 2)).measured([network])
    assert (one.network, one.error, one.backend) == ("ib", "", "gloo")
    assert one.library.startswith("torch ") and one.library.endswith(", Gloo")
    assert one.everyone is not None
    assert (one.everyone.ranks, one.everyone.bytes) == (4, 1_000_000)
    assert len(one.everyone.times_s) >= 3
    assert one.everyone.best_busbw_bytes_per_s >= one.everyone.median_busbw_bytes_per_s > 0
    assert {node: timed.ranks for node, timed in one.inside.items()} == {"node1": 2, "node2": 2}


def test_the_first_failure_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 wants a GPU that is not there; rank 0 would wait for it for minutes."""
    cluster = Cluster(monkeypatch, torches(FOUR[:1], 2))
    real = measured.tasks

    def one_on_cuda(*args: object) -> object:
        first, second = real(*args)  # type: ignore[arg-type]
        hardware = replace(second.point.hardware, device="cuda")
        return [first, replace(second, device_index=99, point=replace(second.point, hardware=hardware))]

    monkeypatch.setattr(measured, "tasks", one_on_cuda)
    (one,) = cluster.measured()
    assert one.everyone is None
    assert one.error.startswith("node1 (rank 1): ")
    assert "Error: " in one.error


def test_a_process_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "PROCESS", "scaling.no_such_module")
    (one,) = Cluster(monkeypatch, torches(FOUR[:1], 2)).measured()
    assert "exited with code 1: " in one.error
    assert "No module named scaling.no_such_module" in one.error


def test_a_process_runs_in_torchs_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALING_PYTHON_TORCH", "/nowhere/python")
    (one,) = Cluster(monkeypatch, torches(FOUR[:1], 2)).measured()
    assert "No such file or directory: '/nowhere/python'" in one.error


def test_a_rank_that_waits_for_others_ends_with_its_agent() -> None:
    told = torches(FOUR[:1], 2)
    task = measured.tasks(told, "", {"node1": ALONE}, "gloo", 9)[1]  # rank 0, which would listen, never comes
    asked = AskedAllReduce(task=task, largest_bytes=1, budget_s=1.0)
    with subprocess.Popen(
        [sys.executable, "-m", prober.PROCESS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        process.communicate(msgspec.json.encode(asked) + b"\n", timeout=60)  # then its stdin ends
    assert process.returncode == -signal.SIGKILL


def test_an_address_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {name: Place(address="198.51.100.7", interface="ib0") for name in FOUR[:2]}
    (one,) = Cluster(monkeypatch, torches(FOUR[:2], 1)).measured([Network(word="ib", why="", places=places)])
    assert one.error == "node1 cannot bind a port there: Cannot assign requested address"


def test_a_signal_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, torches(FOUR[:1], 2))
    cluster.lead.say = lambda _: cluster.signals[1].append(signal.SIGINT)
    with pytest.raises(Interrupted):
        cluster.measured()


# ---------------------------------------------------------------- what NCCL chose


def asked_on_gpus() -> AskedAllReduce:
    """Of rank 0 of two on GPUs; the process that is asked has none."""
    places = {name: Place(address="127.0.0.1", interface="lo") for name in FOUR[:1]}
    first, _ = measured.tasks(torches(FOUR[:1], 2), "", places, "nccl", 7000)
    return AskedAllReduce(task=first, largest_bytes=1, budget_s=1.0)


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that writes NCCL's log; returns its working directory."""
    monkeypatch.setattr(prober, "PROCESS", "tests.support.telling_all_reduce")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(**environ: str) -> RankAllReduce:
    one = prober.Processes({**os.environ, **environ})
    try:
        return one.all_reduce(0, asked_on_gpus())
    finally:
        one.end(prober.FOR_GOOD)


def test_the_preflight_knows_what_nccl_chose_and_leaves_no_log(telling: Path) -> None:
    assert told().nccl == NcclChoice(
        network="IB",
        cards=("mlx5_0",),
        transports={"NET/IB": 1},
        gpu_direct=1,
        algorithms={"ring simple": 256_000_000},
    )
    assert list(telling.iterdir()) == []


def test_a_user_s_own_log_of_nccl_is_left_to_him(telling: Path) -> None:
    assert told(NCCL_DEBUG="WARN").nccl is None
    assert list(telling.iterdir()) == []


def test_what_nccl_warned_of_is_told_of_a_process_that_died(telling: Path) -> None:
    found = told(**{telling_all_reduce.DIES: "1"})
    assert found.error == "exited with code 1: ncclSystemError"
    assert found.nccl is not None and found.nccl.warnings == (telling_all_reduce.WARNING,)
