"""What NVML tells of GPUs' health, through a stand-in for it; and what /proc and /sys tell of the driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil  # type: ignore[import-untyped, unused-ignore]
import pynvml as real  # type: ignore[import-untyped, unused-ignore]
import pytest

from scaling.hosts import gpu_health
from scaling.hosts.gpus import gather_gpus
from scaling.records.host import GpuHealth, GpuHost
from tests.support.fake_nvml import HEALTH, FakeGpu, Install, installer, sliced


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from installer(monkeypatch)


def gathered(root: Path = Path("/nowhere")) -> GpuHost:
    return gpu_health.gather(root)


def with_health(install: Install, **answers: object) -> GpuHealth:
    install(FakeGpu(health={f"nvmlDeviceGet{name}": answer for name, answer in answers.items()}))
    (gpu,) = gathered().gpus
    return gpu


def test_without_a_driver_nothing_is_known(install: Install) -> None:
    install(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert gathered() == GpuHost()


def test_a_sound_gpu(install: Install) -> None:
    install(FakeGpu(), cuda=13000)
    found = gathered()
    assert (found.cuda, found.reachable) == ("13.0", 1)
    assert found.gpus == (
        GpuHealth(
            uuid="GPU-aaaa0000-1111",
            name="NVIDIA H200",
            compute_capability="9.0",
            is_persistent=True,
            compute_mode="Default",
            is_mig=False,
            is_ecc=True,
            uncorrected_errors=0,
            is_repair_pending=False,
            is_repair_failed=False,
            pcie_generation=1,
            pcie_generation_max=5,
            pcie_generation_own=5,
            pcie_width=16,
            pcie_width_max=16,
            sm_mhz_max=1980,
            application_sm_mhz=1980,
            default_sm_mhz=1980,
            power_limit_w=700.0,
            default_power_limit_w=700.0,
            fabric="completed",
        ),
    )


@pytest.mark.parametrize("name", [*HEALTH, "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetEnforcedPowerLimit"])
def test_what_a_gpu_does_not_support_is_unknown_and_costs_nothing_else(install: Install, name: str) -> None:
    install(FakeGpu(lacks=frozenset({name})))
    (gpu,) = gathered().gpus
    assert gpu.uuid == "GPU-aaaa0000-1111"
    install(FakeGpu())
    (sound,) = gathered().gpus
    differing = [field for field in gpu.__struct_fields__ if getattr(gpu, field) != getattr(sound, field)]
    if name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetRetiredPagesPendingStatus"):
        assert differing == []
    elif name == "nvmlDeviceGetRemappedRows":
        assert differing == ["is_repair_failed"]  # whether a repair waits is known of older GPUs too
    else:
        (field,) = differing
        assert getattr(gpu, field) in (None, "")


def test_a_gpu_that_supports_nothing(install: Install) -> None:
    every = {*HEALTH, "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetEnforcedPowerLimit"}
    every |= {"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMigMode"}
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
    ("namespace", "name"),
    [(gpu_health.HOSTS_OWN, "{process}"), ("pid:[4026532201]", "process {pid}")],
)
def test_who_computes_there(install: Install, tmp_path: Path, namespace: str, name: str) -> None:
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


def test_nvml_is_initialised_once_for_all_that_is_asked(install: Install) -> None:
    nvml = install(FakeGpu())
    gather_gpus()
    gathered()
    assert nvml.initialised == 1


# ---------------------------------------------------------------- the kernel's side


@pytest.mark.parametrize("name", gpu_health.PEER_MEMORY)
def test_the_module_by_which_rdma_reaches_gpus(install: Install, tmp_path: Path, name: str) -> None:
    install(FakeGpu())
    assert gathered(tmp_path).peer_memory == ""
    file = tmp_path / gpu_health.PEER_MEMORY[name]
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
