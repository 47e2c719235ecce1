"""GPUs through a stand-in for NVML: which are listed, what they are, how they are linked."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml as real  # type: ignore[import-untyped, unused-ignore]
import pytest

from scaling.agent import device_probe
from scaling.hosts import gpu_health, gpus
from scaling.hosts import gpus as gpuinfo
from scaling.hosts.gpus import P2P_NVLINK, P2P_READ, Found, gather_gpus
from tests.support.fake_nvml import (
    GPU,
    READINGS,
    SWITCH,
    UNKNOWN,
    FakeGpu,
    FakeNvml,
    Install,
    forget,
    installer,
)
from tests.support.topologies import two_pairs

SINGLE, HOSTBRIDGE, NODE, SYSTEM = 10, 30, 40, 50
AFFINITIES = frozenset({"nvmlDeviceGetCpuAffinityWithinScope", "nvmlDeviceGetCpuAffinity"})


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from installer(monkeypatch)


def uuids() -> list[str]:
    return [gpu.uuid for gpu in gather_gpus()[0]]


# ---------------------------------------------------------------- none


def test_without_the_driver_there_is_no_gpu(install: Install) -> None:
    install(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert gather_gpus() == Found()


def test_without_nvidia_ml_py_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    forget()
    assert gather_gpus() == Found()


def test_a_driver_that_does_not_work_is_named(install: Install) -> None:
    install(FakeGpu(), init_error=real.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert gather_gpus() == Found(driver="unusable: RM has detected an NVML/RM version mismatch.")


def test_a_driver_without_gpus(install: Install) -> None:
    install()
    assert gather_gpus() == Found(driver="570.86.15", cuda=(12, 8))


def test_a_lost_gpu_is_not_listed(install: Install) -> None:
    gpus = two_pairs()
    gpus[1].lost = True
    install(*gpus)
    assert uuids() == ["GPU-a000-0", "GPU-c000-2", "GPU-d000-3"]


# ---------------------------------------------------------------- what they are


@pytest.mark.parametrize("as_bytes", [False, True])
def test_one_gpu(install: Install, as_bytes: bool) -> None:
    install(FakeGpu(), as_bytes=as_bytes)
    (gpu,), driver, *_ = gather_gpus()
    assert driver == "570.86.15"
    assert (gpu.index, gpu.name, gpu.uuid) == (0, "NVIDIA H200", "GPU-aaaa0000-1111")
    assert (gpu.memory_bytes, gpu.power_limit_w, gpu.max_sm_clock_mhz) == (150 << 30, 700.0, 1980.0)
    assert gpu.compute_capability == (9, 0)
    assert (gpu.links, gpu.p2p) == (("self",), (True,))


def test_what_a_gpu_does_not_support_is_unknown(install: Install) -> None:
    lacks = {"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetMemoryInfo"}
    install(FakeGpu(lacks=frozenset(lacks)))
    (gpu,) = gather_gpus().gpus
    assert (gpu.memory_bytes, gpu.power_limit_w, gpu.max_sm_clock_mhz) == (0, None, None)
    assert gpu.name == "NVIDIA H200"


# ---------------------------------------------------------------- links


def test_four_gpus_in_two_nvlinked_pairs(install: Install) -> None:
    install(*two_pairs())
    gpus = gather_gpus().gpus
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
    assert [gpu.links for gpu in gpus] == [
        ("self", "NV4", "SYS", "SYS"),
        ("NV4", "self", "SYS", "SYS"),
        ("SYS", "SYS", "self", "NV4"),
        ("SYS", "SYS", "NV4", "self"),
    ]
    assert [gpu.p2p for gpu in gpus] == [
        (True, True, False, False),
        (True, True, False, False),
        (False, False, True, True),
        (False, False, True, True),
    ]


@pytest.mark.parametrize("far", [SWITCH, UNKNOWN])
def test_links_through_an_nvswitch(install: Install, far: int) -> None:
    """Inside a virtual machine the far end's kind may be unknown."""
    p2p = {bus: {P2P_READ, P2P_NVLINK} for bus in range(4)}
    hub = ((far, 200),) * 18
    install(*(FakeGpu(uuid=f"GPU-{bus}", bus=bus, nvlinks=hub, p2p=p2p) for bus in range(4)))
    gpus = gather_gpus().gpus
    assert gpus[2].links == ("NV18", "NV18", "self", "NV18")


def test_a_switch_that_does_not_join_two_gpus_is_no_link(install: Install) -> None:
    hub = ((SWITCH, 200),) * 18
    install(*(FakeGpu(uuid=f"GPU-{b}", bus=b, nvlinks=hub, topology={0: NODE, 1: NODE}) for b in range(2)))
    assert [gpu.links for gpu in gather_gpus()[0]] == [("self", "NODE"), ("NODE", "self")]


def test_links_to_another_gpu_do_not_count_for_this_one(install: Install) -> None:
    """GPU 0 has links to a GPU that this process does not see, and none to GPU 1."""
    first = FakeGpu(bus=0, nvlinks=((GPU, 77),) * 2, topology={1: HOSTBRIDGE}, p2p={1: {P2P_READ, P2P_NVLINK}})
    install(first, FakeGpu(uuid="GPU-b", bus=1))
    assert gather_gpus()[0][0].links == ("self", "PHB")


def test_an_unknown_topology(install: Install) -> None:
    install(FakeGpu(), FakeGpu(uuid="GPU-b", bus=1))
    gpus = gather_gpus().gpus
    assert (gpus[0].links, gpus[0].p2p) == (("self", "?"), (True, False))


# ---------------------------------------------------------------- what is near, what runs on it


def test_cores_near_a_gpu_that_this_process_may_use(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1, 3, 64, 70})
    install(FakeGpu(near=(0, 1, 2, 64)), FakeGpu(uuid="GPU-b", bus=1, lacks=AFFINITIES))
    near, unknown = gather_gpus().gpus
    assert {cpu for core in near.cores for cpu in core} == {1, 64}
    assert unknown.cores == ()


def test_nvml_is_read_once_in_a_process(install: Install) -> None:
    fake = install(*two_pairs())
    assert gather_gpus() is gather_gpus()
    for index in range(4):
        device_probe.GpuMeter.open(index)
    assert fake.initialised == 1


def test_what_the_driver_knows_of_cuda(install: Install) -> None:
    install(FakeGpu(capability=(7, 0)))
    assert gather_gpus().cuda == (12, 8)
    assert gather_gpus().gpus[0].compute_capability == (7, 0)


@pytest.mark.parametrize(
    ("place", "driver", "said"),
    [
        ("sys/class/kfd", "", "AMD GPU found, not supported"),
        ("dev/kfd", "580.1", "AMD GPU found, not supported"),
        ("dev/nvidiactl", "", "NVIDIA GPU found without libnvidia-ml: NVIDIA_DRIVER_CAPABILITIES lacks utility"),
        ("dev/nvidiactl", "580.1", ""),
        ("dev/null", "", ""),
    ],
)
def test_gpus_that_are_of_no_use_are_said_to_be_there(place: str, driver: str, said: str, tmp_path: Path) -> None:
    (tmp_path / place).mkdir(parents=True)
    assert gpuinfo.unsupported(Found(driver=driver), tmp_path) == said


@pytest.mark.parametrize(
    ("board", "driver", "said"),
    [
        (
            b"nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0",
            "",
            "NVIDIA Jetson found, not supported: its driver ",
        ),
        (b"nvidia,p3834-0008\0nvidia,tegra264\0", "580.00", ""),  # one with NVML
        (b"raspberrypi,5-model-b\0brcm,bcm2712\0", "", ""),
    ],
)
def test_a_jetson_without_nvml_is_said_to_be_one(board: bytes, driver: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/compatible").write_bytes(board)
    found = gpuinfo.unsupported(Found(driver=driver), tmp_path)
    assert found.startswith(said) and bool(found) is bool(said)


# ---------------------------------------------------------------- the stand-in against the real module


def test_every_nvml_function_in_use_exists_and_takes_as_many_arguments() -> None:
    modules = (gpuinfo, gpu_health, gpus, device_probe)
    text = "".join(Path(inspect.getfile(module)).read_text() for module in modules)
    used = set(re.findall(r"\bnvml(?:Device|System|Init)\w*", text))
    assert len(used) > 15
    for name in used:
        taken = len(inspect.signature(getattr(real, name)).parameters)
        faked = READINGS.get(name) or getattr(FakeNvml, name)
        given = len(inspect.signature(faked).parameters) - (name not in READINGS)
        assert given in (taken, taken - (name == "nvmlDeviceGetMemoryInfo")), name


def test_peer_capabilities_are_numbers_that_ctypes_takes() -> None:
    """pynvml 13 defines the first of them as a tuple by a stray comma."""
    assert real.NVML_P2P_CAPS_INDEX_READ in (P2P_READ, (P2P_READ,))
    assert real.NVML_P2P_CAPS_INDEX_NVLINK == P2P_NVLINK
