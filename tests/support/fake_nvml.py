"""A stand-in for pynvml: the real constants and error classes, over GPUs that a test describes.

As the real one it refuses to answer before `nvmlInit`, raises NotSupported for what a GPU lacks, and refuses
arguments that ctypes would refuse. Using a function that nvidia-ml-py does not have fails the test.
`nvml_library` is another stand-in, below nvidia-ml-py.
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

from scaling.hosts import gpus

SWITCH, GPU, UNKNOWN = 2, 0, 255

Readings = Callable[["FakeGpu"], Any]


@dataclass
class FakeGpu:
    """One GPU, or with `whole` a slice of one. `nvlinks` are (kind of the far end, bus of the far end), one for
    each active link; `near` are the CPUs of its NUMA node; `lacks` names the NVML functions that it does not
    support; `slices` is None without MIG mode; `health` has other answers than HEALTH."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-aaaa0000-1111"
    bus: int = 0
    nvlinks: tuple[tuple[int, int], ...] = ()
    topology: dict[int, int] = field(default_factory=dict)
    p2p: dict[int, set[int]] = field(default_factory=dict)
    power_mw: int = 500_000
    energy_mj: int = 7_000_000
    throttle: int = 0
    near: tuple[int, ...] = ()
    capability: tuple[int, int] = (9, 0)
    slices: tuple[FakeGpu, ...] | None = None
    whole: FakeGpu | None = None
    lacks: frozenset[str] = frozenset()
    lost: bool = False
    health: dict[str, Any] = field(default_factory=dict)


# What a sound H200 behind NVSwitches answers, by function; its PCIe generation has fallen since it idles.
HEALTH: dict[str, Any] = {
    "nvmlDeviceGetSerial": "1654922003917",
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetRetiredPagesPendingStatus": 0,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": 5,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetApplicationsClock": 1980,
    "nvmlDeviceGetDefaultApplicationsClock": 1980,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetGpuFabricInfo": (3, 0),
}
PLAIN = HEALTH.keys() - {"nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetGpuFabricInfo"}


def _reading(name: str) -> Readings:
    return lambda gpu: gpu.health.get(name, HEALTH[name])


READINGS: dict[str, Readings] = {
    **{name: _reading(name) for name in PLAIN},
    "nvmlDeviceGetName": lambda gpu: gpu.name,
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
    "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(domain=0, bus=gpu.bus, device=0),
    "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=150 << 30, used=9 << 30, free=141 << 30),
    "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
    "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: gpu.energy_mj,
    "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=98, memory=40),
    "nvmlDeviceGetCudaComputeCapability": lambda gpu: gpu.capability,
    "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
    "nvmlDeviceGetMaxClockInfo": lambda _: 1980,
    "nvmlDeviceGetClockInfo": lambda _: 1755,
    "nvmlDeviceGetTemperature": lambda _: 61,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.throttle,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.throttle,
}
# Of functions with one more argument, the argument that is allowed.
ARGUMENT = {
    **dict.fromkeys(
        ("nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock"), real.NVML_CLOCK_SM
    ),
    **dict.fromkeys(("nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetClockInfo"), real.NVML_CLOCK_SM),
    "nvmlDeviceGetTemperature": real.NVML_TEMPERATURE_GPU,
}


class FakeNvml(ModuleType):
    """Install it with `install`; `initialised` counts the inits."""

    def __init__(
        self, gpus: list[FakeGpu], *, init_error: int | None = None, as_bytes: bool = False, cuda: int = 12080
    ) -> None:
        super().__init__("pynvml")
        self.gpus = gpus
        self.init_error = init_error
        self.as_bytes = as_bytes
        self.cuda = cuda
        self.initialised = 0

    def __getattr__(self, name: str) -> Any:
        if name in ARGUMENT:
            return lambda gpu, kind: self._answer(name, gpu, {ARGUMENT[name]: READINGS[name](gpu)}[kind])
        if name in READINGS:
            return lambda gpu: self._answer(name, gpu, READINGS[name](gpu))
        if not hasattr(real, name):
            pytest.fail(f"nvidia-ml-py has no {name}")  # not an Exception, which costs one fact
        if name.startswith("nvml"):
            pytest.fail(f"the stand-in has no {name}")
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

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return b"570.86.15" if self.as_bytes else "570.86.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    nvmlSystemGetCudaDriverVersion = nvmlSystemGetCudaDriverVersion_v2

    def nvmlDeviceGetIndex(self, gpu: FakeGpu) -> Any:
        return self._answer("nvmlDeviceGetIndex", gpu, next(n for n, one in enumerate(self.gpus) if one is gpu))

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> Any:
        assert (kind, counter) == (real.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, real.NVML_VOLATILE_ECC)
        return self._healthy("nvmlDeviceGetTotalEccErrors", gpu)

    def nvmlDeviceGetGpuFabricInfo(self, gpu: FakeGpu, info: Any) -> Any:
        info._obj.state, info._obj.status = self._healthy("nvmlDeviceGetGpuFabricInfo", gpu)
        return real.NVML_SUCCESS

    def _healthy(self, name: str, gpu: FakeGpu) -> Any:
        return self._answer(name, gpu, gpu.health.get(name, HEALTH[name]))

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        gpu = self.gpus[index]
        self._answer("nvmlDeviceGetHandleByIndex", gpu, None)
        return gpu

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        found = [piece for gpu in self.gpus for piece in gpu.slices or () if piece.uuid == uuid]
        if not found:
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        return found[0]

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> Any:
        if gpu.whole is not None:
            raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
        return self._answer("nvmlDeviceGetMigMode", gpu, [int(gpu.slices is not None)] * 2)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if gpu.slices is None or index >= len(gpu.slices):
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        return gpu.slices[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, piece: FakeGpu) -> FakeGpu:
        if piece.whole is None:
            raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
        return piece.whole

    def nvmlDeviceGetCpuAffinityWithinScope(self, gpu: FakeGpu, words: int, scope: int) -> Any:
        assert scope == real.NVML_AFFINITY_SCOPE_NODE
        return self._answer("nvmlDeviceGetCpuAffinityWithinScope", gpu, _masks(gpu, words))

    def nvmlDeviceGetCpuAffinity(self, gpu: FakeGpu, words: int) -> Any:
        return self._answer("nvmlDeviceGetCpuAffinity", gpu, _masks(gpu, words))

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


def _masks(gpu: FakeGpu, words: int) -> list[int]:
    return [sum(1 << cpu % 64 for cpu in gpu.near if cpu // 64 == word) for word in range(words)]


Install = Callable[..., FakeNvml]


def sliced(gpu: FakeGpu, *uuids: str) -> FakeGpu:
    """The GPU in MIG mode, with a slice of each UUID, of which NVML says as little as it does."""
    no_parts = frozenset({"nvmlDeviceGetPciInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo"})
    gpu.slices = tuple(
        FakeGpu(name=f"{gpu.name} MIG 1g.18gb", uuid=uuid, lacks=no_parts, whole=gpu) for uuid in uuids
    )
    return gpu


def installer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """The body of a fixture: `install(*gpus, **options)` puts a FakeNvml where `import pynvml` looks.

    At the end it must have been initialised once at most, however often it was read.
    """
    installed: list[FakeNvml] = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*gpus: FakeGpu, **options: Any) -> FakeNvml:
        installed.append(FakeNvml(list(gpus), **options))
        monkeypatch.setitem(sys.modules, "pynvml", installed[-1])
        forget()
        return installed[-1]

    forget()
    yield install
    forget()
    assert all(fake.initialised <= 1 for fake in installed)


def forget() -> None:
    """What this process has read of NVML: it does so once."""
    gpus.session.cache_clear()
    gpus.gather_gpus.cache_clear()
