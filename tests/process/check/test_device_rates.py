"""Device rates by real processes, on this machine's cores."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec

import psutil
import pytest

from scaling.errors import Interrupted
from scaling.records.device_rates import DeviceRates
from scaling.tools.check import device_rates, processes
from scaling.tools.check.facts import LEAD_DECODER, Facts, RankFacts, ToLead, ToRank
from scaling.tools.check.lead import Lead
from scaling.tools.check.prober import Prober
from scaling.transport.base import Hub
from scaling.transport.mailbox import Mailbox
from tests.support.check_facts import FOUR, TORCH, ranks

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


class Cluster:
    """Inline ranks that start real processes."""

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

    def rates(self) -> tuple[DeviceRates, ...]:
        """The rates; afterwards nothing runs any more."""
        try:
            return self.lead.rated(Facts(ranks=self.told)).device_rates
        finally:
            self.lead.dismiss()
            self.turn()
            assert children() == []


def children() -> list[psutil.Process]:
    """Those that run; a zombie that another test left has no command line."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found += [one] if processes.RATES_PROCESS in " ".join(one.cmdline()) else []
    return found


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


ANSWERING = {
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


@pytest.mark.parametrize("answer", ANSWERING)
def test_a_process_that_answers_badly(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program is named in place of the module's."""
    program, why = ANSWERING[answer]
    monkeypatch.setattr(processes, "RATES_PROCESS", "tests.support.answering")
    monkeypatch.setenv("SCALING_TEST_PROGRAM", f"import os; input(); {program}")
    cluster = Cluster(ranks(FOUR[:1], told=TORCH))
    (one,) = cluster.rates()
    assert one.error == why
    assert (one.host, one.matrix_flops_per_s) == ("node1", None)


def test_a_process_that_hangs_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rates, "START_S", 0.5)
    monkeypatch.setattr(processes, "RATES_PROCESS", "tests.support.answering")
    monkeypatch.setenv("SCALING_TEST_PROGRAM", "import signal; signal.pause()")
    assert {one.error for one in two_ranks().rates()} == {"no answer within 0.5 s"}


def test_a_python_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALING_PYTHON_TORCH", "/nowhere/python")
    for one in two_ranks().rates():
        assert "No such file or directory: '/nowhere/python'" in one.error


@needs_torch
def test_a_signal_leaves_no_process() -> None:
    cluster = two_ranks()
    cluster.lead.say = lambda _: cluster.signals[1].append(signal.SIGINT)
    with pytest.raises(Interrupted):
        cluster.rates()
