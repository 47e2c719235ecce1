"""A stand-in for pynvml: the real constants and error classes, over GPUs that a test describes.

As the real one it refuses to answer before `nvmlInit` and after the last `nvmlShutdown`, raises
NotSupported for what a GPU lacks, and refuses arguments that ctypes would refuse. Using a function that
nvidia-ml-py does not have fails the test.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml as real  # type: ignore[import-untyped, unused-ignore]
import pytest

SWITCH, GPU, UNKNOWN = 2, 0, 255

Readings = Callable[["FakeGpu"], Any]


@dataclass
class FakeGpu:
    """One GPU. `nvlinks` are (kind of the far end, bus of the far end), one for each active link;
    `lacks` names the NVML functions that it does not support."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-aaaa0000-1111"
    bus: int = 0
    nvlinks: tuple[tuple[int, int], ...] = ()
    topology: dict[int, int] = field(default_factory=dict)
    p2p: dict[int, set[int]] = field(default_factory=dict)
    power_mw: int = 500_000
    energy_mj: int = 7_000_000
    throttle: int = 0
    capability: tuple[int, int] = (9, 0)
    lacks: frozenset[str] = frozenset()
    lost: bool = False


READINGS: dict[str, Readings] = {
    "nvmlDeviceGetName": lambda gpu: gpu.name,
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
    "nvmlDeviceGetCudaComputeCapability": lambda gpu: gpu.capability,
    "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(domain=0, bus=gpu.bus, device=0),
    "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=150 << 30, used=9 << 30, free=141 << 30),
    "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
    "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: gpu.energy_mj,
    "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=98, memory=40),
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.throttle,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.throttle,
}


class FakeNvml(ModuleType):
    """Install it with `install`; `initialised` counts the inits that no shutdown has answered."""

    def __init__(self, gpus: list[FakeGpu], *, init_error: int | None = None, as_bytes: bool = False) -> None:
        super().__init__("pynvml")
        self.gpus = gpus
        self.init_error = init_error
        self.as_bytes = as_bytes
        self.initialised = 0

    def __getattr__(self, name: str) -> Any:
        if name in READINGS:
            return lambda gpu: self._answer(name, gpu, READINGS[name](gpu))
        if not hasattr(real, name):
            raise AssertionError(f"nvidia-ml-py has no {name}")
        if name.startswith("nvml"):
            raise NotImplementedError(name)
        return getattr(real, name)

    def _answer(self, name: str, gpu: FakeGpu, value: Any) -> Any:
        if not self.initialised:
            raise real.NVMLError(real.NVML_ERROR_UNINITIALIZED)
        if gpu.lost:
            raise real.NVMLError(real.NVML_ERROR_GPU_IS_LOST)
        if name in gpu.lacks:
            raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)
        return value.encode() if self.as_bytes and isinstance(value, str) else value

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise real.NVMLError(self.init_error)
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        if not self.initialised:
            raise real.NVMLError(real.NVML_ERROR_UNINITIALIZED)
        self.initialised -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return b"570.86.15" if self.as_bytes else "570.86.15"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        gpu = self.gpus[index]
        self._answer("nvmlDeviceGetHandleByIndex", gpu, None)
        return gpu

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        """As for MIG devices, which have UUIDs and no index."""
        if not uuid.startswith("MIG-known"):
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        no_parts = frozenset({"nvmlDeviceGetPciInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo"})
        return FakeGpu(name="NVIDIA H200 MIG 1g.18gb", uuid=uuid, lacks=no_parts)

    def nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, kind: int) -> Any:
        return self._answer("nvmlDeviceGetMaxClockInfo", gpu, {real.NVML_CLOCK_SM: 1980}[kind])

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> Any:
        return self._answer("nvmlDeviceGetClockInfo", gpu, {real.NVML_CLOCK_SM: 1755}[kind])

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> Any:
        return self._answer("nvmlDeviceGetTemperature", gpu, {real.NVML_TEMPERATURE_GPU: 61}[sensor])

    def nvmlDeviceGetNvLinkState(self, gpu: FakeGpu, link: int) -> Any:
        if not gpu.nvlinks:
            raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)
        if link >= 18:
            raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
        return self._answer("nvmlDeviceGetNvLinkState", gpu, int(link < len(gpu.nvlinks)))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: FakeGpu, link: int) -> Any:
        return self._answer("nvmlDeviceGetNvLinkRemoteDeviceType", gpu, gpu.nvlinks[link][0])

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: FakeGpu, link: int) -> Any:
        far = SimpleNamespace(domain=0, bus=gpu.nvlinks[link][1], device=0)
        return self._answer("nvmlDeviceGetNvLinkRemotePciInfo", gpu, far)

    def nvmlDeviceGetTopologyCommonAncestor(self, gpu: FakeGpu, other: FakeGpu) -> Any:
        level = gpu.topology.get(other.bus)
        if level is None:
            raise real.NVMLError(real.NVML_ERROR_UNKNOWN)
        return self._answer("nvmlDeviceGetTopologyCommonAncestor", gpu, level)

    def nvmlDeviceGetP2PStatus(self, gpu: FakeGpu, other: FakeGpu, capability: int) -> Any:
        if not isinstance(capability, int):
            raise ctypes.ArgumentError("argument 3: TypeError: Don't know how to convert parameter 3")
        works = capability in gpu.p2p.get(other.bus, ())
        status = real.NVML_P2P_STATUS_OK if works else real.NVML_P2P_STATUS_NOT_SUPPORTED
        return self._answer("nvmlDeviceGetP2PStatus", gpu, status)


Install = Callable[..., FakeNvml]


def installer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """The body of a fixture: `install(*gpus, **options)` puts a FakeNvml where `import pynvml` looks.

    At the end every init must have had its shutdown.
    """
    installed: list[FakeNvml] = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*gpus: FakeGpu, **options: Any) -> FakeNvml:
        installed.append(FakeNvml(list(gpus), **options))
        monkeypatch.setitem(sys.modules, "pynvml", installed[-1])
        return installed[-1]

    yield install
    assert [fake.initialised for fake in installed] == [0] * len(installed)
