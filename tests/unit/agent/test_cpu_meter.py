"""CPU time by thread, faults and stolen time, read from trees like /proc and of this process."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from scaling.agent.cpu_meter import TICKS_PER_S, CpuMeter
from scaling.records.telemetry import MAIN, CpuTime, ThreadTime

PID = 42
MS = 1_000_000  # ns


class Proc:
    """A tree with one process. Every thread runs and is queued for so many ms in all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.threads: dict[int, tuple[str, int, int]] = {PID: ("python", 0, 0)}
        self.minor_faults = self.major_faults = self.kernel_ticks = 0
        self.stolen_ticks = {0: 0, 1: 0, 2: 0}
        self.write()

    def write(self) -> None:
        folder = self.root / str(PID)
        shutil.rmtree(folder, ignore_errors=True)
        for thread, (name, run_ms, queued_ms) in self.threads.items():
            task = folder / "task" / str(thread)
            task.mkdir(parents=True)
            (task / "comm").write_text(f"{name}\n")
            (task / "schedstat").write_text(f"{run_ms * MS} {queued_ms * MS} 17\n")
        # Fields from the 3rd of proc(5) on; a command may hold spaces and brackets.
        fields = ["S", *map(str, range(4, 53))]
        fields[10 - 3], fields[12 - 3] = str(self.minor_faults), str(self.major_faults)
        fields[15 - 3] = str(self.kernel_ticks)
        (folder / "stat").write_text(f"{PID} (a (strange) name) {' '.join(fields)}\n")
        lines = [f"cpu{cpu} 1 2 3 4 5 6 7 {ticks} 0 0" for cpu, ticks in self.stolen_ticks.items()]
        (self.root / "stat").write_text("\n".join(["cpu  9 9 9 9 9 9 9 999 0 0", *lines, "ctxt 1"]))

    def meter(self, *cpus: int) -> CpuMeter:
        return CpuMeter(PID, cpus, self.root)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def total(meter: CpuMeter) -> CpuTime:
    found = meter.total()
    assert found is not None
    return found


def test_only_what_lies_between_start_and_end_counts_and_stretches_add_up(proc: Proc) -> None:
    meter = proc.meter()
    for begins_ms, ends_ms in ((100, 130), (500, 540)):
        proc.threads[PID] = ("python", begins_ms, 10 * begins_ms)
        proc.minor_faults = proc.kernel_ticks = begins_ms
        proc.write()
        meter.start()
        proc.threads[PID] = ("python", ends_ms, 10 * ends_ms)
        proc.minor_faults, proc.major_faults, proc.kernel_ticks = ends_ms, proc.major_faults + 1, ends_ms
        proc.write()
        meter.end(steps=3)
    found = total(meter)
    (main,) = found.threads
    assert (main.name, main.threads) == (MAIN, 1)
    assert [main.run_s, main.queued_s] == pytest.approx([0.070, 0.700])
    assert (found.steps, found.minor_faults, found.major_faults) == (6, 70, 2)
    assert found.kernel_s == pytest.approx(70 / TICKS_PER_S)
    assert found.run_s == pytest.approx(0.070)
    assert found.wall_s > 0


def test_threads_of_a_name_are_one_and_new_ones_count_from_their_start(proc: Proc) -> None:
    proc.threads |= {50: ("gloo", 10, 0), 51: ("gloo", 20, 0)}
    proc.write()
    meter = proc.meter()
    meter.start()
    proc.threads |= {51: ("gloo", 25, 1), 52: ("autograd", 7, 2)}
    proc.write()
    meter.end(steps=1)
    found = {thread.name: thread for thread in total(meter).threads}
    assert found["gloo"] == ThreadTime(name="gloo", threads=2, run_s=0.005, queued_s=0.001)
    assert found["autograd"] == ThreadTime(name="autograd", threads=1, run_s=0.007, queued_s=0.002)
    assert found[MAIN].run_s == 0.0


def test_a_thread_that_ended_meanwhile_is_left_out(proc: Proc) -> None:
    proc.threads[50] = ("short", 10, 0)
    proc.write()
    meter = proc.meter()
    meter.start()
    del proc.threads[50]
    proc.write()
    meter.end(steps=1)
    assert [thread.name for thread in total(meter).threads] == [MAIN]


def test_stolen_time_is_that_of_the_promised_cpus(proc: Proc) -> None:
    meter, nothing_promised = proc.meter(0, 2), proc.meter()
    for one in (meter, nothing_promised):
        one.start()
    proc.stolen_ticks = {0: 10, 1: 1000, 2: 5}
    proc.write()
    for one in (meter, nothing_promised):
        one.end(steps=1)
    assert total(meter).stolen_s == pytest.approx(15 / TICKS_PER_S)
    assert total(nothing_promised).stolen_s == 0.0


def test_a_process_that_is_gone_leaves_the_stretches_before(proc: Proc) -> None:
    meter = proc.meter()
    meter.start()
    meter.end(steps=2)
    meter.start()
    shutil.rmtree(proc.root / str(PID))
    meter.end(steps=2)
    meter.start()
    meter.end(steps=2)
    assert total(meter).steps == 2


def test_without_a_stretch_nothing_is_known(proc: Proc) -> None:
    meter = proc.meter()
    meter.end(steps=1)
    assert meter.total() is None
    meter.start()
    assert meter.total() is None


def test_of_this_process_it_reads_what_the_clock_of_its_thread_says() -> None:
    meter = CpuMeter(os.getpid(), os.sched_getaffinity(0))
    meter.start()
    begun_s = time.thread_time()
    while (used_s := time.thread_time() - begun_s) < 0.05:
        pass
    meter.end(steps=1)
    main = next(thread for thread in total(meter).threads if thread.name == MAIN)
    # The kernel brings a running thread's figure up to date once a tick.
    assert abs(main.run_s - used_s) < 0.04
    assert total(meter).stolen_s >= 0
