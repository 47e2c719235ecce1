"""The readings of a device while a worker measures, through a stand-in for NVML."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pynvml as real  # type: ignore[import-untyped, unused-ignore]
import pytest

from scaling.agent.device_probe import DeviceProbe, integral_j
from scaling.records.telemetry import Sample
from tests.support import probe_clock
from tests.support.fake_nvml import FakeGpu, Install, installer
from tests.support.probe_clock import ProbeClock

ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from installer(monkeypatch)


@pytest.fixture
def clock() -> Iterator[ProbeClock]:
    with probe_clock.replaced() as clock:
        yield clock


def cuda(index: int = 0) -> DeviceProbe:
    return DeviceProbe.open("cuda", (index,), os.getpid())


def test_samples_and_the_energy_counter(install: Install, clock: ProbeClock) -> None:
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
    install: Install, clock: ProbeClock, lacking: set[str]
) -> None:
    gpu = FakeGpu(power_mw=100_000, lacks=frozenset(lacking))
    install(gpu)
    probe = cuda()
    probe.start()
    clock.now_s, gpu.power_mw = 1002.0, 300_000
    probe.sample()
    clock.now_s, gpu.power_mw = 1003.0, 200_000
    assert probe.stop().energy_j == pytest.approx(2 * 200 + 1 * 250)


def test_a_counter_that_went_back_is_not_believed(install: Install, clock: ProbeClock) -> None:
    gpu = FakeGpu(power_mw=100_000)
    install(gpu)
    probe = cuda()
    probe.start()
    clock.now_s, gpu.energy_mj = 1010.0, 5
    assert probe.stop().energy_j == pytest.approx(1000)


def test_energy_is_unknown_without_counter_and_power(install: Install, clock: ProbeClock) -> None:
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


def test_a_gpu_that_is_lost_leaves_what_is_known(install: Install, clock: ProbeClock) -> None:
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
    probe = DeviceProbe.open("cpu", (), os.getpid())
    probe.start()
    assert probe.stop().samples == ()


def test_integral() -> None:
    def at(unix_s: float, power_w: float | None) -> Sample:
        return Sample(unix_s=unix_s, power_w=power_w)

    assert integral_j([]) is None
    assert integral_j([at(0, 5)]) is None
    assert integral_j([at(0, 10), at(1, None), at(2, 30), at(6, 10)]) == pytest.approx(2 * 20 + 4 * 20)
