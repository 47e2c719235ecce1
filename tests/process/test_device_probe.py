"""The readings of a device while a worker measures, of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from scaling.agent import device_probe
from scaling.agent.device_probe import DeviceProbe
from scaling.records.telemetry import Telemetry
from tests.support.inline_child import Clock

# Once it is told to, uses half a second of CPU in a thread that is not its main thread, then waits.
BURNER = """
import sys, threading, time
def burn():
    end = time.process_time() + 0.5
    while time.process_time() < end: pass
print("up", flush=True)
sys.stdin.readline()
thread = threading.Thread(target=burn)
thread.start(); thread.join()
print("burnt", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The probe's clock, which moves only when told."""
    clock = Clock(1000.0)
    monkeypatch.setattr(device_probe, "time", SimpleNamespace(time=clock, monotonic=clock))
    return clock


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", BURNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def measured(process: subprocess.Popen[str], clock: Clock) -> DeviceProbe:
    """A probe that saw `process` use 0.5 s of CPU while its clock moved by 2 s: 25 %."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    probe = DeviceProbe("cpu", (), process.pid)
    probe.start()
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "burnt\n"
    clock.now_s += 2.0
    probe.sample()
    return probe


def is_a_quarter(cpu_percent: float | None) -> bool:
    """The kernel counts CPU time in ticks of 10 ms; starting and joining the thread costs a little."""
    return cpu_percent is not None and 23 < cpu_percent < 35


def test_cpu_percent_counts_all_threads(burner: subprocess.Popen[str], clock: Clock) -> None:
    telemetry = measured(burner, clock).stop()
    assert is_a_quarter(telemetry.cpu_percent), telemetry
    assert telemetry.load_1m is not None


def test_a_worker_that_is_gone_leaves_what_is_known(burner: subprocess.Popen[str], clock: Clock) -> None:
    probe = measured(burner, clock)
    burner.kill()
    burner.wait()
    clock.now_s += 100.0
    probe.sample()
    telemetry = probe.stop()
    assert is_a_quarter(telemetry.cpu_percent), telemetry
    assert telemetry.affinity_cpus == len(os.sched_getaffinity(0))


def test_a_worker_that_was_gone_before(burner: subprocess.Popen[str]) -> None:
    burner.kill()
    burner.wait()
    probe = DeviceProbe("cpu", (), burner.pid)
    probe.start()
    probe.sample()
    telemetry = probe.stop()
    assert telemetry == Telemetry(load_1m=telemetry.load_1m)
    assert telemetry.load_1m is not None


def test_affinity_is_what_the_worker_may_use() -> None:
    """The first CPU alone; then a second thread that may use all of them."""
    code = """
import os, sys, threading
every = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(every)})
print("pinned", flush=True); sys.stdin.readline()
def free():
    os.sched_setaffinity(0, every)
    print("free", flush=True); sys.stdin.readline()
threading.Thread(target=free).start()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        probe, found = DeviceProbe("cpu", (), worker.pid), []
        for word in ("pinned\n", "free\n"):
            assert worker.stdout.readline() == word
            probe.start()
            found.append(probe.stop().affinity_cpus)
            probe = DeviceProbe("cpu", (), worker.pid)
            worker.stdin.write("on\n")
            worker.stdin.flush()
    assert found == [1, len(os.sched_getaffinity(0))]


def test_cpus_that_are_taken_within_a_stretch_are_seen_at_its_end(burner: subprocess.Popen[str]) -> None:
    """As `taskset -p` does it."""
    every = os.sched_getaffinity(0)
    probe = DeviceProbe("cpu", (), burner.pid)
    probe.start()
    os.sched_setaffinity(burner.pid, {max(every)})
    probe.pause()
    assert (max(every),) in probe.stop().masks
    assert tuple(sorted(every)) in probe.stop().masks
