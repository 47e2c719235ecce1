"""The affinity and CPU use of a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scaling.agent.watch import CpuMeter

# On its first CPU alone it burns half a second in a second thread, which then may use all CPUs.
WORKER = """
import os, sys, threading, time
every = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(every)})
print("pinned", flush=True); sys.stdin.readline()
def free():
    while time.process_time() < 0.5: pass
    os.sched_setaffinity(0, every)
    print("free", flush=True); sys.stdin.readline()
threading.Thread(target=free).start()
"""
EVERY = os.sched_getaffinity(0)


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_all_threads_count_and_affinity_is_the_least_of_both_ends(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None and worker.stdout is not None
    assert worker.stdout.readline() == "pinned\n"
    meter, later = CpuMeter(worker.pid, ()), CpuMeter(worker.pid, ())
    meter.start()
    worker.stdin.write("on\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "free\n"
    meter.end(1)
    found = meter.total()
    assert found is not None and meter.percent is not None
    assert 0.3 < meter.percent / 100 * found.wall_s < 0.8
    assert meter.affinity_cpus == 1
    assert meter.masks == {(min(EVERY),), tuple(sorted(EVERY))}
    later.start()
    assert later.affinity_cpus == len(EVERY)
    worker.kill()
    worker.wait()
    later.end(1)  # of a process that is gone the earlier readings are left
    assert (later.total(), later.percent, later.affinity_cpus) == (None, None, len(EVERY))
