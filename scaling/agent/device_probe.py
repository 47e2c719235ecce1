"""Readings of a child's process (/proc) and GPUs (NVML) during measured windows.

If a process or GPU disappears, earlier readings are kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling.hosts.gpus import ask, find_visible, session
from scaling.records.point import Device
from scaling.records.telemetry import POWER_CAP, Sample, Telemetry

# Bits of NVML's nvmlClocksEventReasons that are a loss: not idle, the user's clocks, sync boost, display clocks.
THROTTLE = {
    0x08: "hw slowdown",
    0x40: "hw thermal",
    0x20: "sw thermal",
    0x80: "power brake",
    0x04: POWER_CAP,
}


class DeviceProbe:
    """The readings of the devices of one task: `start`, `sample` about once a second, `pause`, perhaps
    `start` again, `stop`. Without `start`, `stop` reports only the load of the host."""

    interval_s: ClassVar[float] = 1.0

    def __init__(self, device: Device, device_indices: Sequence[int], pid: int, *, shown_gpu: str = "") -> None:
        """Open the readings of process `pid`, of its GPUs, and of the whole machine if the device is emulated.
        `shown_gpu` is the UUID of the only GPU that the process sees, if it sees only one."""
        indices = device_indices if device == "cuda" else ()
        self._task_gpus = len(indices)
        self._gpus = [gpu for index in indices if (gpu := GpuMeter.open(index, shown_gpu)) is not None]
        self._process = ProcessMeter(pid)
        self._machine = MachineMeter() if device == "emulated" else None
        self._meters: Sequence[ProcessMeter | MachineMeter | GpuMeter] = (
            self._process, *([self._machine] if self._machine else ()), *self._gpus,
        )  # fmt: skip

    def now(self) -> tuple[Sample, ...]:
        """Read the GPUs once, outside measured windows."""
        return tuple(found for gpu in self._gpus if (found := gpu.now()) is not None)

    def start(self) -> None:
        for meter in self._meters:
            meter.start()

    def sample(self) -> None:
        self._process.read()
        for gpu in self._gpus:
            gpu.read()

    def pause(self) -> None:
        for meter in self._meters:
            meter.pause()

    def stop(self) -> Telemetry:
        self.pause()
        known_j = [energy_j for gpu in self._gpus if (energy_j := gpu.stop()) is not None]
        # The energy is unknown if that of any GPU is: a part would pass for the whole.
        energy_j = sum(known_j) if known_j and len(known_j) == self._task_gpus else None
        clocks_mhz = [gpu.max_sm_clock_mhz for gpu in self._gpus if gpu.max_sm_clock_mhz is not None]
        return Telemetry(
            samples=tuple(chain.from_iterable(gpu.samples for gpu in self._gpus)),
            energy_j=energy_j,
            energy_is_integral=energy_j is not None and any(gpu.energy_is_integral for gpu in self._gpus),
            max_sm_clock_mhz=min(clocks_mhz, default=None),
            load_1m=os.getloadavg()[0],
            affinity_cpus=self._process.affinity_cpus,
            masks=tuple(sorted(self._process.masks)),
            cpu_percent=self._process.cpu_percent,
            machine_cpu_percent=self._machine.busy_percent if self._machine is not None else None,
        )


class ProcessMeter:
    """CPU time and affinity of one process. `masks`: CPU sets of its threads at both ends of all stretches.
    `affinity_cpus`: the number of CPUs in all masks together, the least of all ends; None if unknown."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process: Any = None
        self._readings: list[tuple[float, float]] = []
        self._span_s = self._used_s = 0.0
        self.affinity_cpus: int | None = None
        self.masks: set[tuple[int, ...]] = set()
        with suppress(psutil.Error):
            self._process = psutil.Process(pid)

    def start(self) -> None:
        self._readings = []
        self._read_masks()
        self.read()

    def pause(self) -> None:
        self.read()
        if len(self._readings) > 1:
            self._read_masks()
            (start_s, used_before_s), (end_s, used_s) = self._readings
            self._span_s += end_s - start_s
            self._used_s += used_s - used_before_s
        self._readings = []

    def _read_masks(self) -> None:
        if masks := _masks(self._pid):
            self.masks |= masks
            count = len({cpu for mask in masks for cpu in mask})
            self.affinity_cpus = min(count, self.affinity_cpus or count)

    def read(self) -> None:
        if self._process is None:
            return
        with suppress(psutil.Error):
            times = self._process.cpu_times()
            self._readings[1:] = [(time.monotonic(), times.user + times.system)]

    @property
    def cpu_percent(self) -> float | None:
        """Mean over all stretches: 100 is one busy core; None without a stretch."""
        return 100 * self._used_s / self._span_s if self._span_s > 0 else None


def _masks(pid: int) -> set[tuple[int, ...]]:
    """CPU sets of all threads: OpenMP may bind each one, and `taskset -p` moves the main thread alone."""
    masks: set[tuple[int, ...]] = set()
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                masks.add(tuple(sorted(os.sched_getaffinity(int(thread.name)))))
    return masks


class MachineMeter:
    """CPU use of all cores of the machine; containers and nodes of a lab read the machine's /proc/stat too."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None
        self._busy_s = self._all_s = 0.0

    def start(self) -> None:
        self._before = _busy_and_all()

    def pause(self) -> None:
        if self._before is not None:
            (busy_before_s, all_before_s), (busy_s, all_s) = self._before, _busy_and_all()
            self._busy_s += busy_s - busy_before_s
            self._all_s += all_s - all_before_s
            self._before = None

    @property
    def busy_percent(self) -> float | None:
        """Mean over all stretches: 100 is all cores busy; None without a stretch, or within one clock tick."""
        return 100 * self._busy_s / self._all_s if self._all_s > 0 else None


def _busy_and_all() -> tuple[float, float]:
    """CPU seconds since boot: busy, and in all. The user's time includes that of guests."""
    times = psutil.cpu_times()
    idle_s = times.idle + times.iowait
    all_s = sum(times) - times.guest - times.guest_nice
    return all_s - idle_s, all_s


class GpuMeter:
    """Readings of one GPU. `energy_is_integral`: whether part of its energy is an integral of power readings."""

    def __init__(self, nvml: Any, handle: Any, device_index: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self._device_index = device_index
        self._energy_before_mj: int | None = None
        self._first: int | None = None  # index of the stretch's first sample
        self._used_j: list[float | None] = []
        self.energy_is_integral = False
        self.samples: list[Sample] = []
        self.max_sm_clock_mhz: float | None = self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM)

    @classmethod
    def open(cls, device_index: int, shown_gpu: str = "") -> GpuMeter | None:
        """Return the meter of visible GPU `device_index`, or of `shown_gpu`; None if NVML cannot reach it."""
        nvml, _ = session()
        handle = None if nvml is None else find_visible(nvml, device_index, shown_gpu)
        return None if handle is None else cls(nvml, handle, device_index)

    def start(self) -> None:
        self._first = len(self.samples)
        self._energy_before_mj = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        self.read()

    def read(self) -> None:
        if (sample := self.now()) is not None:
            self.samples.append(sample)

    def now(self) -> Sample | None:
        """Return what NVML reads now; None if it reads nothing."""
        nvml = self._nvml
        power_mw = self._ask("nvmlDeviceGetPowerUsage")
        clock_mhz = self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM)
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        utilisation = self._ask("nvmlDeviceGetUtilizationRates")
        if all(answer is None for answer in (power_mw, clock_mhz, memory, utilisation)):
            return None
        return Sample(
            unix_s=time.time(),
            utilisation_percent=utilisation.gpu if utilisation else None,
            power_w=None if power_mw is None else power_mw / 1000,
            sm_clock_mhz=clock_mhz,
            memory_used_bytes=memory.used if memory else None,
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            throttle=self._throttle(),
            device_index=self._device_index,
        )

    def pause(self) -> None:
        if self._first is None:
            return
        self.read()
        before_mj = self._energy_before_mj
        after_mj: int | None = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if before_mj is None or after_mj is None or after_mj < before_mj:  # it falls when the driver is reloaded
            self._used_j.append(integral_j(self.samples[self._first :]))
            self.energy_is_integral = True
        else:
            self._used_j.append((after_mj - before_mj) / 1000)
        self._first = None

    def stop(self) -> float | None:
        """Return the energy in J, by the GPU's counter or from power samples; None if a stretch is unknown."""
        self.pause()
        known_j = [used_j for used_j in self._used_j if used_j is not None]
        return sum(known_j) if known_j and len(known_j) == len(self._used_j) else None

    def _throttle(self) -> tuple[str, ...]:
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(word for bit, word in THROTTLE.items() if (reasons or 0) & bit)

    def _ask(self, name: str, *args: Any) -> Any:
        return ask(self._nvml, name, self._handle, *args)


def integral_j(samples: list[Sample]) -> float | None:
    """Integrate the power samples by the trapezoidal rule, in J; None with fewer than two power readings."""
    known = [(sample.unix_s, sample.power_w) for sample in samples if sample.power_w is not None]
    if len(known) < 2:
        return None
    return sum((end_s - start_s) * (a_w + b_w) / 2 for (start_s, a_w), (end_s, b_w) in pairwise(known))
