"""Timed all-reduces (torch over Gloo, on the loopback) and device rates, by real processes of the preflight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from scaling.errors import Interrupted
from scaling.records.network import ALONE, NcclChoice, Network, Place
from scaling.records.task import AskedAllReduce, DeviceRates
from scaling.tools.check import measured, prober
from scaling.tools.check.facts import (
    LEAD_DECODER,
    AllReduce,
    Facts,
    Prepared,
    RankFacts,
    Start,
    Told,
    ToLead,
    ToRank,
)
from scaling.tools.check.lead import Lead
from scaling.tools.check.prober import Prober
from scaling.transport.base import Hub, Mailbox
from tests.support.answering import PROGRAM
from tests.support.check_facts import FOUR, TORCH, ranks

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
ANSWERING = "tests.support.answering"


class Cluster:
    """Inline ranks of a preflight that start real processes."""

    def __init__(self, told: Sequence[RankFacts]) -> None:
        self.told = tuple(told)
        hub = Hub(len(told))
        self.signals: list[list[int]] = [[] for _ in told]
        self.probers = [Prober(hub.rank(rank), signals=self.signals[rank]) for rank in range(hub.size)]
        self.lead = Lead(
            Mailbox[ToRank, ToLead](hub.rank(0), LEAD_DECODER, turn=self.turn, wait=lambda: time.sleep(0.005))
        )

    def turn(self) -> None:
        for one in self.probers:
            one.turn()

    @contextmanager
    def ending(self, process: str) -> Iterator[Lead]:
        """Lead them; afterwards no process of this module runs any more."""
        try:
            yield self.lead
        finally:
            self.lead.dismiss()
            self.turn()
            assert not any(process in command for command in children())

    def rates(self) -> tuple[DeviceRates, ...]:
        with self.ending(prober.PROCESS) as lead:
            return lead.rated(Facts(ranks=self.told)).device_rates

    def all_reduced(self, networks: Sequence[Network] = ()) -> AllReduce:
        ports = {network.word: 1 for network in networks}
        prepared = {rank.host.hostname: Prepared(ports=ports) for rank in self.told}
        known = Facts(ranks=self.told, networks=tuple(networks), prepared=prepared)
        with self.ending(prober.PROCESS) as lead:
            (one,) = lead.all_reduced(known).all_reduces
        return one


def children() -> Iterator[str]:
    """The commands of those that run; a zombie that another test left has none."""
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            yield " ".join(one.cmdline())


# ---------------------------------------------------------------- all-reduces


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte is exchanged, or as much as a test allows."""
    monkeypatch.setattr(measured, "MOST_BYTES", 1_000_000)
    monkeypatch.setattr(measured, "BUDGET_S", 0.5)


def torches(nodes: int, each: int) -> Cluster:
    return Cluster(ranks(FOUR[:nodes], each=each, told=TORCH))


def network(address: str, interface: str) -> Network:
    places = {name: Place(address=address, interface=interface) for name in FOUR[:2]}
    return Network(word="ib", why="", places=places)


@needs_torch
@pytest.mark.usefixtures("brief")
def test_two_nodes_of_two_ranks_tell_of_their_insides() -> None:
    one = torches(2, 2).all_reduced([network("127.0.0.1", "lo")])
    assert (one.network, one.error, one.backend) == ("ib", "", "gloo")
    assert one.library.startswith("torch ") and one.library.endswith(", Gloo")
    assert one.everyone is not None
    assert (one.everyone.ranks, one.everyone.bytes) == (4, 1_000_000)
    assert len(one.everyone.times_s) >= 3
    assert one.everyone.best_busbw_bytes_per_s >= one.everyone.median_busbw_bytes_per_s > 0
    assert {node: timed.ranks for node, timed in one.inside.items()} == {"node1": 2, "node2": 2}


@needs_torch
@pytest.mark.usefixtures("brief")
def test_the_first_failure_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 wants a GPU that is not there; rank 0 would wait for it for minutes."""
    real = measured.tasks

    def one_on_cuda(*args: object) -> object:
        first, second = real(*args)  # type: ignore[arg-type]
        hardware = replace(second.point.hardware, device="cuda")
        return [first, replace(second, device_index=99, point=replace(second.point, hardware=hardware))]

    monkeypatch.setattr(measured, "tasks", one_on_cuda)
    one = torches(1, 2).all_reduced()
    assert one.everyone is None
    assert one.error.startswith("node1 (rank 1): ") and "Error: " in one.error


@needs_torch
def test_a_process_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(prober, "PROCESS", "scaling.no_such_module")
        said = torches(1, 2).all_reduced().error
    assert "exited with code 1: " in said and "No module named scaling.no_such_module" in said
    monkeypatch.setenv("SCALING_PYTHON_TORCH", "/nowhere/python")
    missing = "No such file or directory: '/nowhere/python'"
    assert missing in torches(1, 2).all_reduced().error
    assert all(missing in one.error for one in two_ranks().rates())


@needs_torch
def test_a_rank_that_waits_for_others_ends_with_its_agent() -> None:
    task = measured.tasks(torches(1, 2).told, "", {"node1": ALONE}, "gloo", 9)[
        1
    ]  # rank 0, which would listen, never comes
    asked = AskedAllReduce(task=task, largest_bytes=1, budget_s=1.0)
    with subprocess.Popen(
        [sys.executable, "-m", prober.PROCESS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        process.communicate(msgspec.json.encode(asked) + b"\n", timeout=60)  # then its stdin ends
    assert process.returncode == -signal.SIGKILL


@needs_torch
def test_an_address_that_is_not_here_is_named() -> None:
    one = torches(2, 1).all_reduced([network("198.51.100.7", "ib0")])
    assert one.error == "node1 cannot bind a port there: Cannot assign requested address"


@needs_torch
@pytest.mark.parametrize("measure", [Cluster.all_reduced, Cluster.rates])
def test_a_signal_leaves_no_process(measure: Callable[[Cluster], object]) -> None:
    cluster = two_ranks()
    cluster.lead.say = lambda _: cluster.signals[1].append(signal.SIGINT)
    with pytest.raises(Interrupted):
        measure(cluster)


# ---------------------------------------------------------------- what NCCL chose


# It writes what NCCL would into NCCL_DEBUG_FILE, and answers as if it had exchanged, or dies.
WARNING = "NET/IB : Got completion from peer 10.0.0.2<55921> with status=12"
NCCL = f"""
import os, sys
from pathlib import Path
import msgspec
from scaling.records.task import AskedAllReduce, RankAllReduce
lines = [
    "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>",
    "NCCL INFO Using network IB",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
    "NCCL INFO AllReduce: 256000000 Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..15}}",
]
asked, dies = msgspec.json.decode(sys.stdin.readline(), type=AskedAllReduce), "SCALING_TEST_DIES" in os.environ
if name := os.environ.get("NCCL_DEBUG_FILE"):
    said = [*lines, "NCCL WARN {WARNING}"] if dies else lines
    Path(name.replace("%p", str(os.getpid()))).write_text("".join(f"node1:1:1 [0] {{line}}\\n" for line in said))
if dies:
    sys.exit("ncclSystemError")
print(msgspec.json.encode(RankAllReduce(library=Path(asked.task.log).name)).decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory of a process that writes NCCL's log."""
    monkeypatch.setattr(prober, "PROCESS", ANSWERING)
    monkeypatch.setenv(PROGRAM, NCCL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(**environ: str) -> Told:
    """Of rank 0 of two on GPUs; the process that is asked has none."""
    places = {name: Place(address="127.0.0.1", interface="lo") for name in FOUR[:1]}
    first, _ = measured.tasks(torches(1, 2).told, "", places, "nccl", 7000)
    one = prober.Processes({**os.environ, **environ})
    try:
        asked = AskedAllReduce(task=first, largest_bytes=1, budget_s=1.0)
        return one.answer(Start(number=0, asked=asked), print)
    finally:
        one.end(prober.FOR_GOOD)


@needs_torch
def test_the_preflight_knows_what_nccl_chose_and_leaves_no_log(folder: Path) -> None:
    assert told().nccl == NcclChoice(
        network="IB", cards=("mlx5_0",), transports={"NET/IB": 1}, gpu_direct=1,
        algorithms={"ring simple": 256_000_000},
    )  # fmt: skip
    assert told(NCCL_DEBUG="WARN").nccl is None, "a user's own log is left to him"
    assert list(folder.iterdir()) == []


@needs_torch
def test_what_nccl_warned_of_is_told_of_a_process_that_died(folder: Path) -> None:
    found = told(SCALING_TEST_DIES="1")
    assert found.error == "exited with code 1: ncclSystemError"
    assert found.nccl is not None and found.nccl.warnings == (WARNING,)


# ---------------------------------------------------------------- device rates


def two_ranks() -> Cluster:
    """Two ranks on the first two CPUs of this process, which are one if it has no more."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    hosts = {"node1": {"cores": tuple((cpu,) for cpu in cpus), "core_ids": tuple(cpus)}}
    return Cluster(ranks(FOUR[:1], each=2, hosts=hosts, told=TORCH))


@needs_torch
def test_two_ranks_measure_their_cores() -> None:
    rates = two_ranks().rates()
    assert [one.cpus for one in rates] == [(cpu,) for cpu in sorted(os.sched_getaffinity(0))[:2]]
    for one in rates:
        assert one.error == ""
        assert one.matrix_flops_per_s and one.copy_bytes_per_s and one.samples_per_s
        assert one.to_device_bytes_per_s is None and one.from_device_bytes_per_s is None


BAD = {
    "says nothing": ("raise SystemExit('no driver')", "exited with code 1: no driver"),
    "says no JSON": ("print('CUDA is fine', flush=True)", "JSON is malformed: invalid character (byte 0)"),
    "says something else": ("print('{}', flush=True)", "Object missing required field `launch_rank`"),
    "says a rate that is none": (
        'print(\'{"launch_rank":0,"host":"","device":"cpu","name":"","samples_per_s":-1}\', flush=True)',
        "Expected `float` >= 0.0 - at `$.samples_per_s`",
    ),
    "dies in between": (
        'print(\'{"launch_rank":0,"host":"","device":"cpu","name":""}\', flush=True); input(); os.abort()',
        "ended by SIGABRT",
    ),
}


@pytest.mark.parametrize("answer", BAD)
def test_a_process_that_answers_badly(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program is named in place of the module's."""
    program, why = BAD[answer]
    monkeypatch.setattr(prober, "PROCESS", ANSWERING)
    monkeypatch.setenv(PROGRAM, f"import os; input(); {program}")
    cluster = Cluster(ranks(FOUR[:1], told=TORCH))
    (one,) = cluster.rates()
    assert one.error == why
    assert (one.host, one.matrix_flops_per_s) == ("node1", None)


def test_a_process_that_hangs_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "START_S", 0.5)
    monkeypatch.setattr(prober, "PROCESS", ANSWERING)
    monkeypatch.setenv(PROGRAM, "import signal; signal.pause()")
    assert {one.error for one in two_ranks().rates()} == {"no answer within 0.5 s"}
