"""What an agent reads of a worker: CPU time, and the readings of its device."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pynvml as real  # type: ignore[import-untyped, unused-ignore]
import pytest

from scaling.agent import device_probe
from scaling.agent.device_probe import DeviceProbe, integral_j
from scaling.agent.watch import TICKS_PER_S, CpuMeter
from scaling.records.telemetry import MAIN, CpuTime, Sample, ThreadTime
from tests.support.fake_nvml import FakeGpu, Install
from tests.support.inline_child import Clock

# CPU time by thread, faults, stolen time and what others ran, read from trees like /proc and of this process.

PID = 42
MS = 1_000_000  # ns


class Proc:
    """A tree with one process. Every thread runs and is queued for so many ms in all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.threads: dict[int, tuple[str, int, int]] = {PID: ("python", 0, 0)}
        self.minor_faults = self.major_faults = self.kernel_ticks = 0
        self.user_ticks = self.children_ticks = 0
        self.stolen_ticks = {0: 0, 1: 0, 2: 0}
        # Of each CPU: user, nice, system, idle, iowait, irq, softirq.
        self.cpu_ticks = {cpu: [1, 2, 3, 4, 5, 6, 7] for cpu in self.stolen_ticks}
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
        fields[14 - 3], fields[15 - 3] = str(self.user_ticks), str(self.kernel_ticks)
        fields[16 - 3] = fields[17 - 3] = str(self.children_ticks)
        (folder / "stat").write_text(f"{PID} (a (strange) name) {' '.join(fields)}\n")
        lines = [
            f"cpu{cpu} {' '.join(map(str, self.cpu_ticks[cpu]))} {stolen} 800 900"
            for cpu, stolen in self.stolen_ticks.items()
        ]
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


def stretch(meter: CpuMeter, proc: Proc, seconds: float, monkeypatch: pytest.MonkeyPatch, **ticks: int) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    meter.start()
    for field, more in ticks.items():
        proc.cpu_ticks[1][("user", "nice", "system", "idle", "iowait", "irq", "softirq").index(field)] += more
    proc.write()
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 + seconds)
    meter.end(steps=1)


@pytest.mark.parametrize(
    ("field", "counts"),
    [("user", True), ("nice", True), ("system", True), ("irq", True), ("softirq", True), ("idle", False),
     ("iowait", False)],
)  # fmt: skip
def test_what_others_ran_on_the_promised_cpus(
    proc: Proc, field: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, elsewhere, nothing_promised = proc.meter(1, 2), proc.meter(0), proc.meter()
    proc.stolen_ticks[1] = 1000
    for meter in (mine, elsewhere, nothing_promised):
        stretch(meter, proc, 1.0, monkeypatch, **{field: 40})
    assert total(mine).others_s == pytest.approx(40 / TICKS_PER_S if counts else 0.0)
    assert mine.others == total(mine).others_s
    assert total(elsewhere).others_s == 0.0
    assert total(nothing_promised).others_s is None


def test_what_the_process_itself_ran_is_no_others_and_errors_of_counting_cancel(proc: Proc) -> None:
    """In ticks of 10 ms a stretch may seem to have run less than the process did."""
    meter = proc.meter(1)
    for run_ms, busy_ms in ((100, 90), (200, 240)):
        meter.start()
        proc.threads[PID] = ("python", run_ms, 0)
        proc.cpu_ticks[1][0] += busy_ms * TICKS_PER_S // 1000
        proc.write()
        meter.end(steps=1)
    assert total(meter).others_s == pytest.approx(0.330 - 0.200)


@pytest.mark.parametrize("what", ["thread", "child"])
def test_what_ended_within_a_stretch_is_its_own(proc: Proc, what: str) -> None:
    """A thread of its own, or a child that it has waited for."""
    meter = proc.meter(1)
    meter.start()
    if what == "thread":
        proc.user_ticks += 20
        proc.kernel_ticks += 20
    else:
        proc.children_ticks += 20  # in the kernel and out of it
    proc.cpu_ticks[1][0] += 45
    proc.write()
    meter.end(steps=1)
    assert total(meter).others_s == pytest.approx(5 / TICKS_PER_S)


def test_a_stretch_of_a_few_ticks_tells_nothing_of_others(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = proc.meter(1)
    stretch(meter, proc, 0.2, monkeypatch, user=10)
    assert meter.others == pytest.approx(10 / TICKS_PER_S / 0.2)
    stretch(meter, proc, 0.05, monkeypatch, user=5)
    assert meter.others == 0.0
    assert total(meter).others_s == pytest.approx(15 / TICKS_PER_S)


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


def test_what_a_quota_held_up_is_that_of_the_cgroup_that_was_throttled_most(proc: Proc, tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup/pod"
    (folder / "container").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/container\n")

    def count(periods: int, pods: int, containers: int) -> None:
        for path, throttled in ((folder, pods), (folder / "container", containers)):
            (path / "cpu.max").write_text("50000 100000\n")
            stat = f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {throttled * 50_000}\n"
            (path / "cpu.stat").write_text(stat)

    meter = CpuMeter(PID, (), proc.root, tmp_path)
    for base in (100, 500):
        count(base, base, base)
        meter.start()
        count(base + 20, base + 1, base + 15)
        meter.end(steps=1)
    found = total(meter)
    assert (found.periods, found.throttled_periods) == (40, 30)
    assert found.throttled_s == pytest.approx(1.5)


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
    assert (total(meter).others_s or 0.0) >= 0


# The readings of a device while a worker measures, through a stand-in for NVML.

ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The probe's clock, which moves only when told."""
    clock = Clock(1000.0)
    monkeypatch.setattr(device_probe, "time", SimpleNamespace(time=clock, monotonic=clock))
    return clock


def cuda(index: int = 0) -> DeviceProbe:
    return DeviceProbe("cuda", (index,), os.getpid())


def test_samples_and_the_energy_counter(install: Install, clock: Clock) -> None:
    gpu = FakeGpu(energy_mj=7_000_000, power_mw=650_500)
    fake = install(gpu)
    probe = cuda()
    probe.start()
    clock.now_s, gpu.energy_mj, gpu.power_mw = 1001.0, 7_640_000, 648_000
    probe.sample()
    clock.now_s, gpu.energy_mj = 1002.0, 8_250_250
    telemetry = probe.stop()
    assert telemetry.energy_j == 1250.25
    assert [sample.unix_s for sample in telemetry.samples] == [1000.0, 1001.0, 1002.0]
    assert [sample.power_w for sample in telemetry.samples] == [650.5, 648.0, 648.0]
    assert telemetry.samples[0] == Sample(
        unix_s=1000.0, utilisation_percent=98.0, power_w=650.5, sm_clock_mhz=1755.0,
        memory_used_bytes=9 << 30, temperature_c=61.0, device_index=0,
    )  # fmt: skip
    assert fake.initialised == 1


@pytest.mark.parametrize("lacking", [{ENERGY}, {ENERGY, "nvmlDeviceGetTemperature"}])
def test_without_a_counter_the_energy_is_the_integral_of_power(
    install: Install, clock: Clock, lacking: set[str]
) -> None:
    gpu = FakeGpu(power_mw=100_000, lacks=frozenset(lacking))
    install(gpu)
    probe = cuda()
    probe.start()
    clock.now_s, gpu.power_mw = 1002.0, 300_000
    probe.sample()
    clock.now_s, gpu.power_mw = 1003.0, 200_000
    assert probe.stop().energy_j == pytest.approx(2 * 200 + 1 * 250)


def test_a_counter_that_went_back_is_not_believed(install: Install, clock: Clock) -> None:
    gpu = FakeGpu(power_mw=100_000)
    install(gpu)
    probe = cuda()
    probe.start()
    clock.now_s, gpu.energy_mj = 1010.0, 5
    assert probe.stop().energy_j == pytest.approx(1000)


def test_energy_is_unknown_without_counter_and_power(install: Install, clock: Clock) -> None:
    install(FakeGpu(lacks=frozenset({ENERGY, "nvmlDeviceGetPowerUsage"})))
    probe = cuda()
    probe.start()
    clock.now_s += 1
    telemetry = probe.stop()
    assert telemetry.energy_j is None
    assert [(sample.power_w, sample.utilisation_percent) for sample in telemetry.samples] == [(None, 98)] * 2


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, ()),
        (real.nvmlClocksEventReasonGpuIdle, ()),
        (real.nvmlClocksEventReasonApplicationsClocksSetting, ()),
        (real.nvmlClocksEventReasonSyncBoost | real.nvmlClocksEventReasonDisplayClockSetting, ()),
        (real.nvmlClocksEventReasonSwPowerCap, ("sw power cap",)),
        (real.nvmlClocksEventReasonSwThermalSlowdown | 1, ("sw thermal",)),
        (
            real.nvmlClocksEventReasonHwSlowdown | real.nvmlClocksEventReasonHwThermalSlowdown,
            ("hw slowdown", "hw thermal"),
        ),
        (real.nvmlClocksEventReasonHwPowerBrakeSlowdown, ("power brake",)),
    ],
)
@pytest.mark.parametrize("lacks", [frozenset(), frozenset({"nvmlDeviceGetCurrentClocksEventReasons"})])
def test_throttle_reasons_that_cost_speed(
    install: Install, bits: int, words: tuple[str, ...], lacks: frozenset[str]
) -> None:
    install(FakeGpu(throttle=bits, lacks=lacks))
    probe = cuda()
    probe.start()
    assert [sample.throttle for sample in probe.stop().samples] == [words] * 2


def test_each_task_reads_its_own_gpu(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(*(FakeGpu(uuid=f"GPU-{bus}", bus=bus, power_mw=bus * 1000) for bus in range(1, 5)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    probes = [cuda(0), cuda(1)]
    for probe in probes:
        probe.start()
    assert [probe.stop().samples[0].power_w for probe in probes] == [4.0, 2.0]


def test_a_gpu_that_is_lost_leaves_what_is_known(install: Install, clock: Clock) -> None:
    gpu = FakeGpu(power_mw=100_000)
    install(gpu)
    probe = cuda()
    probe.start()
    clock.now_s = 1001.0
    probe.sample()
    gpu.lost = True
    clock.now_s = 1005.0
    probe.sample()
    telemetry = probe.stop()
    assert [sample.unix_s for sample in telemetry.samples] == [1000.0, 1001.0]
    assert telemetry.energy_j == pytest.approx(100)


@pytest.mark.parametrize("index", [0, 3])
def test_without_that_gpu_there_are_no_samples(install: Install, index: int) -> None:
    install(*[FakeGpu()] * (index > 0))
    probe = cuda(index)
    probe.start()
    probe.sample()
    telemetry = probe.stop()
    assert (telemetry.samples, telemetry.energy_j) == ((), None)
    assert telemetry.affinity_cpus == len(os.sched_getaffinity(0))


def test_without_a_driver_there_are_no_samples(install: Install) -> None:
    install(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND)
    probe = cuda()
    probe.start()
    assert probe.stop().samples == ()


def test_a_stop_without_a_start(install: Install) -> None:
    """A worker that fails before it measures."""
    fake = install(FakeGpu())
    telemetry = cuda().stop()
    assert (telemetry.energy_j, telemetry.cpu_percent, telemetry.affinity_cpus) == (None, None, None)
    assert fake.initialised == 1


def test_cpu_tasks_do_not_touch_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace())
    probe = DeviceProbe("cpu", (), os.getpid())
    probe.start()
    assert probe.stop().samples == ()


def test_integral() -> None:
    def at(unix_s: float, power_w: float | None) -> Sample:
        return Sample(unix_s=unix_s, power_w=power_w)

    assert integral_j([]) is None
    assert integral_j([at(0, 5)]) is None
    assert integral_j([at(0, 10), at(1, None), at(2, 30), at(6, 10)]) == pytest.approx(2 * 20 + 4 * 20)
