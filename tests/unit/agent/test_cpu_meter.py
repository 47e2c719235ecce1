"""What an agent reads of a worker: CPU time, affinity, and its GPUs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml as real  # type: ignore[import-untyped, unused-ignore]
import pytest
from msgspec.structs import replace

from scaling.agent import watch
from scaling.agent.watch import TICKS_PER_S, CpuMeter, Watch, integral_j
from scaling.records.telemetry import MAIN, CpuTime, Sample, Telemetry, ThreadTime
from tests.support.fake_nvml import FakeGpu, Install
from tests.support.inline_child import Clock
from tests.support.points import POINT, TASK, changed

# CPU time by thread, faults, stolen time and other programs' use, of trees like /proc and of this process.

PID = 42
FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq")
MS = 1_000_000  # ns


class Proc:
    """A tree with one process. Every thread runs and is queued for so many ms in all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.threads: dict[int, tuple[str, int, int]] = {PID: ("python", 0, 0)}
        self.minor_faults = self.major_faults = self.kernel_ticks = 0
        self.user_ticks = self.children_ticks = 0
        self.stolen_ticks = {0: 0, 1: 0, 2: 0}
        # Of each CPU, by FIELDS.
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
        ticks = {cpu: [*self.cpu_ticks[cpu], stolen, 800, 900] for cpu, stolen in self.stolen_ticks.items()}
        every: dict[Any, list[int]] = {"": list(map(sum, zip(*ticks.values(), strict=True))), **ticks}
        lines = [f"cpu{cpu} {' '.join(map(str, of))}" for cpu, of in every.items()]
        (self.root / "stat").write_text("\n".join([*lines, "ctxt 1"]))

    def meter(self, *cpus: int) -> CpuMeter:
        return CpuMeter(PID, cpus, self.root)

    def passes(self, seconds: float, *meters: CpuMeter, steps: int = 1, **changes: Any) -> None:
        """A stretch at whose end the tree has other fields, and CPU 1 more ticks."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: 100.0)
            for meter in meters:
                meter.start()
            for field, value in changes.items():
                if field in FIELDS:
                    self.cpu_ticks[1][FIELDS.index(field)] += value
                else:
                    setattr(self, field, value)
            self.write()
            patch.setattr(time, "monotonic", lambda: 100.0 + seconds)
            for meter in meters:
                meter.end(steps)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def total(meter: CpuMeter) -> CpuTime:
    found = meter.total()
    assert found is not None
    return found


def test_only_what_lies_between_start_and_end_counts_and_stretches_add_up(proc: Proc) -> None:
    meter = proc.meter()
    for number, (begins_ms, ends_ms) in enumerate(((100, 130), (500, 540)), 1):
        proc.threads[PID] = ("python", begins_ms, 10 * begins_ms)
        proc.minor_faults = proc.kernel_ticks = begins_ms
        proc.write()
        proc.passes(
            7.0, meter, steps=3, threads={PID: ("python", ends_ms, 10 * ends_ms)}, minor_faults=ends_ms,
            kernel_ticks=ends_ms, major_faults=number, children_ticks=1000 * number,
        )  # fmt: skip
    found = total(meter)
    (main,) = found.threads
    assert (main.name, main.threads) == (MAIN, 1)
    assert [main.run_s, main.queued_s] == pytest.approx([0.070, 0.700])
    assert (found.steps, found.minor_faults, found.major_faults, found.wall_s) == (6, 70, 2, 14.0)
    assert found.kernel_s == pytest.approx(70 / TICKS_PER_S)
    assert found.run_s == pytest.approx(0.070)
    assert meter.percent == pytest.approx(100 * 70 / TICKS_PER_S / 14.0)  # its children have their own


def test_threads_of_a_name_are_one_new_ones_count_from_their_start_and_ended_ones_are_left_out(proc: Proc) -> None:
    before = {50: ("gloo", 10, 0), 51: ("gloo", 20, 0), 53: ("short", 10, 0)}
    proc.threads |= before
    proc.write()
    meter = proc.meter()
    proc.passes(1.0, meter, threads=proc.threads | {51: ("gloo", 25, 1), 52: ("autograd", 7, 2)})
    proc.passes(1.0, meter, threads={thread: proc.threads[thread] for thread in (PID, 50, 51, 52)})
    assert total(meter).threads == (
        ThreadTime(name="autograd", threads=1, run_s=0.007, queued_s=0.002),
        ThreadTime(name="gloo", threads=2, run_s=0.005, queued_s=0.001),
        ThreadTime(name=MAIN, threads=1, run_s=0.0, queued_s=0.0),
        ThreadTime(name="short", threads=1, run_s=0.0, queued_s=0.0),
    )
    other = proc.meter()
    proc.threads = {PID: proc.threads[PID], 60: ("brief", 1, 0)}
    proc.write()
    proc.passes(1.0, other, threads={PID: proc.threads[PID]})
    assert [thread.name for thread in total(other).threads] == [MAIN]


def test_stolen_time_is_that_of_the_promised_cpus(proc: Proc) -> None:
    meter, nothing_promised = proc.meter(0, 2), proc.meter()
    proc.passes(1.0, meter, nothing_promised, stolen_ticks={0: 10, 1: 1000, 2: 5})
    assert total(meter).stolen_s == pytest.approx(15 / TICKS_PER_S)
    assert total(nothing_promised).stolen_s == 0.0


@pytest.mark.parametrize(("field", "counts"), [(field, field not in ("idle", "iowait")) for field in FIELDS])
def test_what_others_ran_on_the_promised_cpus(proc: Proc, field: str, counts: bool) -> None:
    mine, elsewhere, nothing_promised = proc.meter(1, 2), proc.meter(0), proc.meter()
    proc.stolen_ticks[1] = 1000
    proc.write()
    proc.passes(1.0, mine, elsewhere, nothing_promised, **{field: 40})
    assert total(mine).others_s == pytest.approx(40 / TICKS_PER_S if counts else 0.0)
    assert mine.others == total(mine).others_s
    assert total(elsewhere).others_s == 0.0
    assert total(nothing_promised).others_s is None
    # Of the machine, whose guests are in the user's time, stolen time counts too.
    assert mine.machine_percent == (100.0 if counts else 0.0)
    proc.passes(1.0, mine, user=20, idle=20, stolen_ticks={0: 0, 1: 1020, 2: 0})
    assert mine.machine_percent == pytest.approx(100 * (80 if counts else 40) / 100)


@pytest.mark.parametrize(
    ("stretches", "others_s"),
    [
        # In ticks of 10 ms a stretch may seem to have run less than the process did.
        ([{"run_ms": 100, "user": 9}, {"run_ms": 200, "user": 24}], 0.33 - 0.2),
        # A thread that ended, and a child that it has waited for.
        ([{"user_ticks": 20, "kernel_ticks": 20, "user": 45}], 0.05),
        ([{"children_ticks": 20, "user": 45}], 0.05),
    ],
    ids=["counting", "thread", "child"],
)
def test_what_the_process_itself_ran_is_no_others(
    proc: Proc, stretches: list[dict[str, int]], others_s: float
) -> None:
    meter = proc.meter(1)
    for changes in stretches:
        threads = {PID: ("python", changes.pop("run_ms", 0), 0)}
        proc.passes(1.0, meter, threads=threads, **changes)
    assert total(meter).others_s == pytest.approx(others_s * 100 / TICKS_PER_S)


def test_a_stretch_of_a_few_ticks_tells_nothing_of_others(proc: Proc) -> None:
    meter = proc.meter(1)
    proc.passes(0.2, meter, user=10)
    assert meter.others == pytest.approx(10 / TICKS_PER_S / 0.2)
    proc.passes(0.05, meter, user=5)
    assert meter.others == 0.0
    assert total(meter).others_s == pytest.approx(15 / TICKS_PER_S)


def test_a_process_that_is_gone_leaves_the_stretches_before(proc: Proc) -> None:
    meter = proc.meter()
    proc.passes(1.0, meter, steps=2)
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
    meter.start()
    assert (meter.total(), meter.percent, meter.machine_percent) == (None, None, None)


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


# The readings of a GPU while a worker measures, through a stand-in for NVML.

ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of samples, which moves only when told."""
    clock = Clock(1000.0)
    monkeypatch.setattr(watch, "time", SimpleNamespace(time=clock, monotonic=clock))
    return clock


class Probe:
    """A watch over one GPU."""

    def __init__(self, index: int = 0) -> None:
        task = replace(TASK, point=changed(POINT, device="cuda"), device_indices=(index,))
        self._watch = Watch(task, os.getpid(), computes=True)

    def start(self) -> None:
        self._watch.begin(1, 0.0)

    def sample(self, now_s: float) -> None:
        self._watch.sample(now_s)

    def stop(self) -> Telemetry:
        return self._watch.close()


def test_samples(install: Install, clock: Clock) -> None:
    gpu = FakeGpu(power_mw=650_500)
    fake = install(gpu)
    probe = Probe()
    probe.start()
    clock.now_s, gpu.power_mw = 1001.0, 648_000
    probe.sample(1.0)
    clock.now_s = 1002.0
    telemetry = probe.stop()
    assert [sample.unix_s for sample in telemetry.samples] == [1000.0, 1001.0, 1002.0]
    assert [sample.power_w for sample in telemetry.samples] == [650.5, 648.0, 648.0]
    assert telemetry.samples[0] == Sample(
        unix_s=1000.0, utilisation_percent=98.0, power_w=650.5, sm_clock_mhz=1755.0,
        memory_used_bytes=9 << 30, temperature_c=61.0, device_index=0,
    )  # fmt: skip
    assert fake.initialised == 1


LACKS = frozenset({ENERGY})


@pytest.mark.parametrize(
    ("fields", "moves", "energy_j"),
    [
        ({}, [(1001.0, {"energy_mj": 7_640_000}), (1002.0, {"energy_mj": 8_250_250})], 1250.25),
        # Without a counter it is the integral of power.
        *(({"power_mw": 100_000, "lacks": lacks},
           [(1002.0, {"power_mw": 300_000}), (1003.0, {"power_mw": 200_000})], 2 * 200 + 1 * 250)
          for lacks in (LACKS, LACKS | {"nvmlDeviceGetTemperature"})),
        # A counter that went back is not believed.
        ({"power_mw": 100_000}, [(1010.0, {"energy_mj": 5})], 1000),
        # Without counter and power it is unknown.
        ({"lacks": LACKS | {"nvmlDeviceGetPowerUsage"}}, [(1001.0, {})], None),
        # A GPU that is lost leaves the readings before.
        ({"power_mw": 100_000}, [(1001.0, {}), (1005.0, {"lost": True})], 100),
    ],
)  # fmt: skip
def test_energy(
    install: Install, clock: Clock, fields: dict[str, Any], moves: list[tuple[float, dict[str, Any]]],
    energy_j: float | None,
) -> None:  # fmt: skip
    gpu = FakeGpu(**fields)
    install(gpu)
    probe = Probe()
    probe.start()
    for number, (clock.now_s, changes) in enumerate(moves, 1):
        for field, value in changes.items():
            setattr(gpu, field, value)
        probe.sample(number)
    telemetry = probe.stop()
    assert telemetry.energy_j == (None if energy_j is None else pytest.approx(energy_j))
    assert telemetry.samples[-1].unix_s == (1001.0 if gpu.lost else clock.now_s)


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
    probe = Probe()
    probe.start()
    assert [sample.throttle for sample in probe.stop().samples] == [words] * 2


def test_each_task_reads_its_own_gpu(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(*(FakeGpu(uuid=f"GPU-{bus}", bus=bus, power_mw=bus * 1000) for bus in range(1, 5)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    probes = [Probe(0), Probe(1)]
    for probe in probes:
        probe.start()
    assert [probe.stop().samples[0].power_w for probe in probes] == [4.0, 2.0]


@pytest.mark.parametrize(
    ("gpus", "fields"), [(0, {}), (1, {}), (0, {"init_error": real.NVML_ERROR_LIBRARY_NOT_FOUND})]
)
def test_without_that_gpu_there_are_no_samples(install: Install, gpus: int, fields: dict[str, Any]) -> None:
    install(*[FakeGpu()] * gpus, **fields)
    probe = Probe(gpus)
    probe.start()
    probe.sample(1.0)
    telemetry = probe.stop()
    assert (telemetry.samples, telemetry.energy_j) == ((), None)
    assert telemetry.affinity_cpus == len(os.sched_getaffinity(0))


def test_a_stop_without_a_start(install: Install) -> None:
    """A worker that fails before it measures."""
    fake = install(FakeGpu())
    telemetry = Probe().stop()
    assert (telemetry.energy_j, telemetry.cpu_percent, telemetry.affinity_cpus) == (None, None, None)
    assert fake.initialised == 1


@pytest.mark.parametrize(("device", "machine_percent"), [("cpu", None), ("emulated", 50.0)])
def test_cpu_tasks_do_not_touch_nvml_and_the_machine_is_read_where_devices_are_emulated(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, device: str, machine_percent: float | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace())
    monkeypatch.setattr(watch, "CpuMeter", lambda *_: proc.meter())
    one = Watch(replace(TASK, point=changed(POINT, device=device)), PID, computes=True)
    one.begin(1, 0.0)
    proc.stolen_ticks[1] = proc.cpu_ticks[1][3] = 50
    proc.cpu_ticks[1][3] += 4
    proc.write()
    telemetry = one.close()
    assert telemetry.samples == ()
    assert telemetry.machine_cpu_percent == pytest.approx(machine_percent)


def test_integral() -> None:
    def at(unix_s: float, power_w: float | None) -> Sample:
        return Sample(unix_s=unix_s, power_w=power_w)

    assert integral_j([]) is None
    assert integral_j([at(0, 5)]) is None
    assert integral_j([at(0, 10), at(1, None), at(2, 30), at(6, 10)]) == pytest.approx(2 * 20 + 4 * 20)
