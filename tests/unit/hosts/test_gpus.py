"""GPUs of a host: NVML, visible devices, PCIe bridges, health."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import pynvml as real  # type: ignore[import-untyped, unused-ignore]
import pytest

from scaling.agent import watch
from scaling.hosts import gpus
from scaling.hosts import gpus as gpuinfo
from scaling.hosts.gpus import P2P_NVLINK, P2P_READ, Found, gather_gpus
from scaling.records.host import GpuHealth, GpuHost
from tests.support.fake_nvml import (
    ARGUMENT,
    GPU,
    HEALTH,
    READINGS,
    SWITCH,
    UNKNOWN,
    FakeGpu,
    FakeNvml,
    Install,
    forget,
    sliced,
)
from tests.support.topologies import two_pairs

# GPUs through a stand-in for NVML: which are listed, what they are, how they are linked.

SINGLE, HOSTBRIDGE, NODE, SYSTEM = 10, 30, 40, 50
AFFINITIES = frozenset({"nvmlDeviceGetCpuAffinityWithinScope", "nvmlDeviceGetCpuAffinity"})


def uuids() -> list[str]:
    return [gpu.uuid for gpu in gather_gpus()[0]]


@pytest.mark.parametrize(
    ("gpus", "fields", "found"),
    [
        ((), {"init_error": real.NVML_ERROR_LIBRARY_NOT_FOUND}, Found()),
        (
            (FakeGpu(),),
            {"init_error": real.NVML_ERROR_LIB_RM_VERSION_MISMATCH},
            Found(driver="unusable: RM has detected an NVML/RM version mismatch."),
        ),
        ((), {}, Found(driver="570.86.15", cuda=(12, 8))),
    ],
    ids=["no driver", "a driver that does not work", "no GPU"],
)
def test_drivers_without_gpus(
    install: Install, gpus: tuple[FakeGpu, ...], fields: dict[str, Any], found: Found
) -> None:
    install(*gpus, **fields)
    assert gather_gpus() == found


def test_without_nvidia_ml_py_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    forget()
    assert gather_gpus() == Found()


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
    nv4, far = ("self", "NV4"), ("SYS", "SYS")
    assert [gpu.links for gpu in gpus] == [nv4 + far, nv4[::-1] + far, far + nv4, far + nv4[::-1]]
    assert [gpu.p2p for gpu in gpus] == [(True, True, False, False)] * 2 + [(False, False, True, True)] * 2


def _hub(count: int, far: int, **fields: Any) -> list[FakeGpu]:
    return [FakeGpu(uuid=f"GPU-{bus}", bus=bus, nvlinks=((far, 200),) * 18, **fields) for bus in range(count)]


PEERS = {bus: {P2P_READ, P2P_NVLINK} for bus in range(4)}


@pytest.mark.parametrize(
    ("gpus", "links"),
    [
        # Through an NVSwitch. Inside a virtual machine the far end's kind may be unknown.
        (_hub(4, SWITCH, p2p=PEERS), ("self", "NV18", "NV18", "NV18")),
        (_hub(4, UNKNOWN, p2p=PEERS), ("self", "NV18", "NV18", "NV18")),
        # A switch that does not join the two.
        (_hub(2, SWITCH, topology={0: NODE, 1: NODE}), ("self", "NODE")),
        # GPU 0 has links to a GPU that this process does not see, and none to GPU 1.
        (
            [
                FakeGpu(nvlinks=((GPU, 77),) * 2, topology={1: HOSTBRIDGE}, p2p={1: {P2P_READ, P2P_NVLINK}}),
                FakeGpu(uuid="GPU-b", bus=1),
            ],
            ("self", "PHB"),
        ),
        ([FakeGpu(), FakeGpu(uuid="GPU-b", bus=1)], ("self", "?")),
    ],
)
def test_links_of_the_first_gpu(install: Install, gpus: list[FakeGpu], links: tuple[str, ...]) -> None:
    install(*gpus)
    first = gather_gpus().gpus[0]
    assert first.links == links
    assert first.p2p == (True, *(bool(gpus[0].p2p),) * (len(gpus) - 1))


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
        watch.GpuMeter.open(index)
    gathered()
    assert fake.initialised == 1


def test_what_the_driver_knows_of_cuda(install: Install) -> None:
    install(FakeGpu(capability=(7, 0)))
    assert gather_gpus().cuda == (12, 8)
    assert gather_gpus().gpus[0].compute_capability == (7, 0)


JETSON = b"nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0"


@pytest.mark.parametrize(
    ("place", "content", "driver", "said"),
    [
        ("sys/class/kfd", b"", "", "AMD GPU found, not supported"),
        ("dev/kfd", b"", "580.1", "AMD GPU found, not supported"),
        (
            "dev/nvidiactl",
            b"",
            "",
            "NVIDIA GPU found without libnvidia-ml: NVIDIA_DRIVER_CAPABILITIES lacks utility",
        ),
        ("dev/nvidiactl", b"", "580.1", ""),
        ("dev/null", b"", "", ""),
        ("proc/device-tree/compatible", JETSON, "", "NVIDIA Jetson found, not supported: its driver has no NVML"),
        ("proc/device-tree/compatible", JETSON, "580.00", ""),  # one with NVML
        ("proc/device-tree/compatible", b"raspberrypi,5-model-b\0brcm,bcm2712\0", "", ""),
    ],
)
def test_gpus_that_are_of_no_use_are_said_to_be_there(
    place: str, content: bytes, driver: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_bytes(content)
    assert gpuinfo.unsupported(Found(driver=driver), tmp_path) == said


# ---------------------------------------------------------------- the stand-in against the real module


def test_every_nvml_function_in_use_exists_and_takes_as_many_arguments() -> None:
    modules = (gpuinfo, gpus, watch)
    text = "".join(Path(inspect.getfile(module)).read_text() for module in modules)
    used = set(re.findall(r"\bnvml(?:Device|System|Init)\w*", text))
    assert len(used) > 15
    for name in used:
        taken = len(inspect.signature(getattr(real, name)).parameters)
        faked = READINGS.get(name) or getattr(FakeNvml, name)
        given = len(inspect.signature(faked).parameters) - (name not in READINGS) + (name in ARGUMENT)
        assert given in (taken, taken - (name == "nvmlDeviceGetMemoryInfo")), name


def test_peer_capabilities_are_numbers_that_ctypes_takes() -> None:
    """pynvml 13 defines the first of them as a tuple by a stray comma."""
    assert real.NVML_P2P_CAPS_INDEX_READ in (P2P_READ, (P2P_READ,))
    assert real.NVML_P2P_CAPS_INDEX_NVLINK == P2P_NVLINK


# Which GPUs, or slices of them, workers may be given: CUDA_VISIBLE_DEVICES and MIG, by a stand-in for NVML.


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2", "c"),
        ("3,1", "db"),
        (" 0 , 2 ", "ac"),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("1,9,0", "b"),
        ("1,-1,0", "b"),
        ("1,1", ""),
        ("GPU-d", "d"),
        ("GPU-c000-2,0", "ca"),
        ("2,GPU-c000-2", ""),
        ("GPU-", ""),
        ("GPU-x", ""),
    ],
)
def test_visible_devices(install: Install, monkeypatch: pytest.MonkeyPatch, visible: str, expected: str) -> None:
    install(*two_pairs())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert "".join(uuid[4] for uuid in uuids()) == expected


def test_links_count_visible_gpus_only(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(*two_pairs())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2,0")
    gpus = gather_gpus().gpus
    assert [gpu.index for gpu in gpus] == [0, 1, 2]
    assert gpus[0].links == ("self", "NV4", "SYS")


def test_a_gpu_in_mig_mode_counts_as_its_slices(install: Install) -> None:
    """Told apart from the whole GPU beside them, with what the GPU itself knows of CPUs and code."""
    a, b = two_pairs()[:2]
    a.near, a.capability = (0,), (8, 0)
    install(sliced(a, "MIG-1", "MIG-2"), b)
    first, second, whole = gather_gpus().gpus
    assert [gpu.uuid for gpu in (first, second, whole)] == ["MIG-1", "MIG-2", "GPU-b000-1"]
    assert [gpu.parent for gpu in (first, second, whole)] == ["GPU-a000-0", "GPU-a000-0", ""]
    assert first.whole == second.whole == "GPU-a000-0"
    assert (first.name, first.compute_capability, first.cores) == ("NVIDIA H200 MIG 1g.18gb", (8, 0), ((0,),))
    assert first.links == ("self", "?", "?")
    assert gather_gpus().reachable == 2


def test_mig_mode_without_slices_leaves_nothing_to_compute_on(install: Install) -> None:
    install(sliced(two_pairs()[0]))
    assert uuids() == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("MIG-2", ["MIG-2"]),
        ("MIG-2,MIG-1,MIG-gone,1", ["MIG-2", "MIG-1"]),
        ("0", ["MIG-1", "MIG-2"]),
        ("1,GPU-a", ["GPU-b000-1", "MIG-1", "MIG-2"]),
        ("MIG-1,0", []),
    ],
)
def test_slices_by_name_or_all_of_a_gpu(
    install: Install, monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[str]
) -> None:
    """What workers may be given, one each: a process sees no more than one of them itself."""
    a, b = two_pairs()[:2]
    install(sliced(a, "MIG-1", "MIG-2"), b)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert uuids() == expected


def test_a_slice_whose_gpu_nvml_does_not_tell(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one all the same: its worker must be shown it alone."""
    a = sliced(two_pairs()[0], "MIG-1")
    assert a.slices is not None
    a.slices[0].whole = None
    install(a)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    (gpu,) = gather_gpus().gpus
    assert (gpu.uuid, gpu.parent) == ("MIG-1", "MIG-1")


# Switch ports above a GPU that redirect its peers' bytes, of configuration spaces as the kernel shows them.

ROOT_PORT, UPSTREAM, DOWNSTREAM = 4, 5, 6
# lspci: "ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-".
ON, SOURCES_ALONE = 0x1D, 0x01
PCIE_GPU = "0000:04:00.0"


def config(kind: int, control: int | None, *, size: int = 4096) -> bytes:
    """A bridge: power management and PCI Express among its capabilities, error reporting and perhaps ACS among its
    extended ones."""
    space = bytearray(4096)
    space[0x06] = 0x10
    space[0x34] = 0x40
    space[0x40:0x42] = (0x01, 0x68)
    space[0x68:0x6C] = (0x10, 0x00, kind << 4 | 2, 0x00)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    last = 0x0019 if control is None else 0x000D
    space[0x148:0x14C] = (last | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = (control or 0).to_bytes(2, "little")
    return bytes(space[:size])


def machine(root: Path, *bridges: bytes) -> None:
    folder = root / "sys/devices/pci0000:00"
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for bus, space in enumerate((*bridges, bytes(4096))):
        address = f"0000:{bus:02x}:00.0" if bus < len(bridges) else PCIE_GPU
        folder /= address
        folder.mkdir(parents=True)
        (folder / "config").write_bytes(space)
        (devices / address).symlink_to(folder)


@pytest.mark.parametrize(
    ("bridges", "ports"),
    [
        ([config(ROOT_PORT, ON), config(UPSTREAM, None), config(DOWNSTREAM, ON)], ("0000:02:00.0",)),
        *(
            ([config(ROOT_PORT, ON), config(UPSTREAM, None), config(DOWNSTREAM, control)], ())
            for control in (0, SOURCES_ALONE, None)
        ),
        # What GPUs below two root ports tell each other takes the root complex anyhow.
        ([config(ROOT_PORT, ON)], ()),
        # Without root it is unknown.
        ([config(ROOT_PORT, ON), config(DOWNSTREAM, ON, size=64)], None),
        # Bytes that make no sense end. A device that has fallen off the bus answers with ones.
        *(([(filled * 4096)[:4096]], ()) for filled in (b"\x00", b"\xff", b"\x10", b"\x0d\x00\x01\x10")),
    ],
)
def test_which_switches_redirect(tmp_path: Path, bridges: list[bytes], ports: tuple[str, ...] | None) -> None:
    machine(tmp_path, *bridges)
    assert gpus.redirecting(PCIE_GPU, tmp_path) == ports
    assert gpus.redirecting("0000:99:00.0", tmp_path) is None


def test_it_is_part_of_a_gpus_health(install: Install, tmp_path: Path) -> None:
    machine(tmp_path, config(ROOT_PORT, ON), config(DOWNSTREAM, ON))
    install(FakeGpu(bus=4), FakeGpu(uuid="GPU-b", bus=5))
    first, second = gpus.gather_health(tmp_path).gpus
    assert first.acs_redirects == ("0000:01:00.0",)
    assert second.acs_redirects is None


# What NVML tells of GPUs' health, through a stand-in for it; and what /proc and /sys tell of the driver.


def gathered(root: Path = Path("/nowhere")) -> GpuHost:
    return gpus.gather_health(root)


def with_health(install: Install, **answers: object) -> GpuHealth:
    install(FakeGpu(health={f"nvmlDeviceGet{name}": answer for name, answer in answers.items()}))
    (gpu,) = gathered().gpus
    return gpu


def test_without_a_driver_nothing_is_known(install: Install) -> None:
    install(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert gathered() == GpuHost()


SOUND = GpuHealth(
    uuid="GPU-aaaa0000-1111", name="NVIDIA H200", index=0, serial="1654922003917", compute_capability="9.0",
    is_persistent=True, compute_mode="Default", is_mig=False, is_ecc=True, uncorrected_errors=0,
    is_repair_pending=False, is_repair_failed=False, pcie_generation=1, pcie_generation_max=5,
    pcie_generation_own=5, pcie_width=16, pcie_width_max=16, sm_mhz_max=1980, application_sm_mhz=1980,
    default_sm_mhz=1980, power_limit_w=700.0, default_power_limit_w=700.0, fabric="completed",
)  # fmt: skip


def test_a_sound_gpu(install: Install) -> None:
    install(FakeGpu(), cuda=13000)
    found = gathered()
    assert (found.cuda, found.reachable, found.gpus) == ("13.0", 1, (SOUND,))


@pytest.mark.parametrize("name", [*HEALTH, "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetEnforcedPowerLimit"])
def test_what_a_gpu_does_not_support_is_unknown_and_costs_nothing_else(install: Install, name: str) -> None:
    install(FakeGpu(lacks=frozenset({name})))
    (gpu,) = gathered().gpus
    assert gpu.uuid == "GPU-aaaa0000-1111"
    differing = [field for field in gpu.__struct_fields__ if getattr(gpu, field) != getattr(SOUND, field)]
    if name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetRetiredPagesPendingStatus"):
        assert differing == []
    elif name == "nvmlDeviceGetRemappedRows":
        assert differing == ["is_repair_failed"]  # whether a repair waits is known of older GPUs too
    else:
        (field,) = differing
        assert getattr(gpu, field) in (None, "")


def test_a_gpu_that_supports_nothing(install: Install) -> None:
    every = {*HEALTH, "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetEnforcedPowerLimit"}
    every |= {"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMigMode", "nvmlDeviceGetIndex"}
    install(FakeGpu(name="NVIDIA GeForce GTX 1080", lacks=frozenset(every)))
    (gpu,) = gathered().gpus
    assert gpu == GpuHealth(uuid="GPU-aaaa0000-1111", name="NVIDIA GeForce GTX 1080")


def test_memory_that_is_repaired_or_not(install: Install) -> None:
    gpu = with_health(install, RemappedRows=(0, 2, 1, 1), TotalEccErrors=3)
    assert (gpu.is_repair_pending, gpu.is_repair_failed, gpu.uncorrected_errors) == (True, True, 3)


def test_older_gpus_retire_pages(install: Install) -> None:
    lacks = frozenset({"nvmlDeviceGetRemappedRows"})
    install(FakeGpu(name="Tesla V100", lacks=lacks, health={"nvmlDeviceGetRetiredPagesPendingStatus": 1}))
    (gpu,) = gathered().gpus
    assert (gpu.is_repair_pending, gpu.is_repair_failed) == (True, None)


@pytest.mark.parametrize(
    ("answer", "state", "fault"),
    [
        ((0, 0), "", ""),
        ((1, 0), "not started", ""),
        ((2, 0), "in progress", ""),
        ((2, 999), "in progress", ""),  # the error counts once it is completed
        ((3, 0), "completed", ""),
        ((0xABCD03, 0), "completed", ""),  # nothing says what is in the padding
        ((3, real.NVML_ERROR_NOT_SUPPORTED), "completed", "Not Supported"),
    ],
)
def test_the_fabric(install: Install, answer: tuple[int, int], state: str, fault: str) -> None:
    gpu = with_health(install, GpuFabricInfo=answer)
    assert (gpu.fabric, gpu.fabric_fault) == (state, fault)


@pytest.mark.parametrize(
    ("namespace", "name"), [(gpus.HOSTS_OWN, "{process}"), ("pid:[4026532201]", "process {pid}")]
)
def test_processes_on_a_gpu_are_named(install: Install, tmp_path: Path, namespace: str, name: str) -> None:
    """A container has numbers of its own, and another process would be named."""
    name = name.format(process=psutil.Process().name(), pid=os.getpid())
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(namespace)
    here, nowhere = SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=2**30)
    install(FakeGpu(health={"nvmlDeviceGetComputeRunningProcesses": [here, nowhere]}))
    (gpu,) = gathered(tmp_path).gpus
    assert gpu.processes == (name, f"process {2**30}")


def test_modes(install: Install) -> None:
    modes = {"ComputeMode": 3, "EccMode": [0, 1], "PersistenceMode": 0}
    whole = FakeGpu(health={f"nvmlDeviceGet{name}": mode for name, mode in modes.items()})
    install(sliced(whole, "MIG-a", "MIG-b"))
    (gpu,) = gathered().gpus
    assert (gpu.compute_mode, gpu.is_mig, gpu.is_ecc, gpu.is_persistent) == (
        "Exclusive_Process",
        True,
        False,
        False,
    )


def test_only_visible_gpus_are_told_of_and_all_reachable_ones_counted(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b"), FakeGpu(uuid="GPU-c", lost=True))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = gathered()
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-b"]
    assert found.reachable == 2
    assert found.lost == ("GPU 2: GPU is lost",)


def test_a_gpu_that_is_withheld_is_not_lost(install: Install) -> None:
    install(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", lacks=frozenset({"nvmlDeviceGetHandleByIndex"})))
    assert (gathered().reachable, gathered().lost) == (1, ())


# ---------------------------------------------------------------- the kernel's side


@pytest.mark.parametrize("name", gpus.PEER_MEMORY)
def test_the_module_by_which_rdma_reaches_gpus(install: Install, tmp_path: Path, name: str) -> None:
    install(FakeGpu())
    assert gathered(tmp_path).peer_memory == ""
    file = tmp_path / gpus.PEER_MEMORY[name]
    file.parent.mkdir(parents=True)
    file.write_text("570.86.15\n")
    assert gathered(tmp_path).peer_memory == name


@pytest.mark.parametrize(
    ("line", "is_open"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", False),
    ],
)
def test_whether_the_kernel_modules_are_open(install: Install, tmp_path: Path, line: str, is_open: bool) -> None:
    install(FakeGpu())
    assert gathered(tmp_path).is_open is None
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{line}\nGCC version:  gcc version 12.3.0\n")
    assert gathered(tmp_path).is_open is is_open
