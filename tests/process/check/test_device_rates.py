"""Device rates by real processes, on this machine's cores."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest

from scaling.errors import Interrupted
from scaling.records.task import DeviceRates
from scaling.tools.check import measured, prober
from scaling.tools.check.facts import Facts
from tests.support.check_facts import FOUR, TORCH, ranks
from tests.support.probers import Probers

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


class Cluster(Probers):
    def rates(self) -> tuple[DeviceRates, ...]:
        with self.ending(prober.RATES_PROCESS) as lead:
            return lead.rated(Facts(ranks=self.told)).device_rates


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
    monkeypatch.setattr(prober, "RATES_PROCESS", "tests.support.answering")
    monkeypatch.setenv("SCALING_TEST_PROGRAM", f"import os; input(); {program}")
    cluster = Cluster(ranks(FOUR[:1], told=TORCH))
    (one,) = cluster.rates()
    assert one.error == why
    assert (one.host, one.matrix_flops_per_s) == ("node1", None)


def test_a_process_that_hangs_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "START_S", 0.5)
    monkeypatch.setattr(prober, "RATES_PROCESS", "tests.support.answering")
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
