"""The state of this host's GPUs: settings and errors that spoil a measurement, from NVML, /proc and /sys.

Any value may be unknown: a GPU, a driver or a container may not report it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling.hosts import proc
from scaling.hosts.gpus import ask, lost, nvml_text, reachable, session, visible
from scaling.records.host import GpuHealth, GpuHost

# ---------------------------------------------------------------- pcie
# A PCIe switch joins the devices below it, unless Access Control Services (ACS) redirect peer traffic to the root
# complex. That is slow or impossible (NCCL user guide, Troubleshooting, "PCI Access Control Services").
# Registers: Linux, include/uapi/linux/pci_regs.h.


ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Bytes of a configuration readable without root, and the offset of the extended part.
FOR_ALL_BYTES, EXTENDED = 64, 0x100
STATUS, CAPABILITY_LIST, FIRST, EXPRESS, DOWNSTREAM_PORT = 0x06, 0x10, 0x34, 0x10, 6
ACS, ACS_CONTROL, ACS_REDIRECTS = 0x0D, 0x06, 0x04 | 0x08  # redirect requests, redirect completions


def redirecting(address: str, root: Path = Path("/")) -> tuple[str, ...] | None:
    """Return the switch ports above a device (0000:3b:00.0) that redirect; None if unknown, as without root."""
    device = root / "sys/bus/pci/devices" / address
    if not device.exists():
        return None
    above = [part for part in device.resolve().parts if ADDRESS.fullmatch(part)][:-1]
    configs = {one: _config(root / "sys/bus/pci/devices" / one / "config") for one in above}
    if any(len(config) <= FOR_ALL_BYTES for config in configs.values()):
        return None
    return tuple(one for one, config in configs.items() if _is_switch_port(config) and _redirects(config))


def _config(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _is_switch_port(config: bytes) -> bool:
    flags = next((_word(config, at + 2) for kind, at in _capabilities(config) if kind == EXPRESS), 0)
    return flags >> 4 & 0xF == DOWNSTREAM_PORT


def _redirects(config: bytes) -> bool:
    control = next((_word(config, at + ACS_CONTROL) for kind, at in _extended(config) if kind == ACS), 0)
    return bool(control & ACS_REDIRECTS)


def _capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    """Yield (kind, offset). The loop is bounded, since the bytes may be wrong."""
    at = config[FIRST] & ~3 if _word(config, STATUS) & CAPABILITY_LIST else 0
    for _ in range(48):
        if not FOR_ALL_BYTES <= at < len(config) - 4:
            return
        yield config[at], at
        at = config[at + 1] & ~3


def _extended(config: bytes) -> Iterator[tuple[int, int]]:
    at = EXTENDED
    for _ in range(480):
        if not EXTENDED <= at < len(config) - 8:
            return
        header = int.from_bytes(config[at : at + 4], "little")
        yield header & 0xFFFF, at
        at = header >> 20 & 0xFFC


def _word(config: bytes, at: int) -> int:
    return int.from_bytes(config[at : at + 2], "little")


# ---------------------------------------------------------------- gpu health

ROOT = Path("/")
# Files that NCCL checks (src/transport/net_ib, ibGdrSupportInitOnce).
PEER_MEMORY = {
    "nvidia_peermem": "sys/module/nvidia_peermem/version",
    "nv_mem": "sys/kernel/mm/memory_peers/nv_mem/version",
    "nv_mem_nc": "sys/kernel/mm/memory_peers/nv_mem_nc/version",
}
# The initial PID namespace (Linux, include/linux/proc_ns).
HOSTS_OWN = "pid:[4026531836]"
OPEN = "Open Kernel Module"  # else "Kernel Module"
FABRIC = {1: "not started", 2: "in progress", 3: "completed"}
COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}


def gather(root: Path = ROOT) -> GpuHost:
    """Read the state of the GPUs that a framework in this process would see."""
    nvml, _ = session()
    if nvml is None:
        return GpuHost()
    wholes = {nvml_text(ask(nvml, "nvmlDeviceGetUUID", one.whole)): one.whole for one in visible(nvml)}
    return GpuHost(
        gpus=tuple(_health(nvml, handle, root) for handle in wholes.values()),
        cuda=_release(ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")),
        reachable=len(reachable(nvml)),
        lost=lost(nvml),
        peer_memory=next((name for name, file in PEER_MEMORY.items() if (root / file).exists()), ""),
        is_open=_is_open(root),
    )


def _release(number: int | None) -> str:
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _is_open(root: Path) -> bool | None:
    with suppress(OSError):
        return OPEN in (root / "proc/driver/nvidia/version").read_text(errors="replace")
    return None


def _health(nvml: Any, handle: Any, root: Path) -> GpuHealth:
    errors = (handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    pending, failed = _repairs(nvml, handle)
    fabric, fault = _fabric(nvml, handle)
    return GpuHealth(
        uuid=nvml_text(ask(nvml, "nvmlDeviceGetUUID", handle)),
        name=nvml_text(ask(nvml, "nvmlDeviceGetName", handle)),
        index=ask(nvml, "nvmlDeviceGetIndex", handle),
        serial=nvml_text(ask(nvml, "nvmlDeviceGetSerial", handle)),
        compute_capability=".".join(map(str, capability)) if capability else "",
        is_persistent=_flag(ask(nvml, "nvmlDeviceGetPersistenceMode", handle)),
        compute_mode=COMPUTE_MODES.get(ask(nvml, "nvmlDeviceGetComputeMode", handle), ""),
        is_mig=_flag(_first(ask(nvml, "nvmlDeviceGetMigMode", handle))),
        is_ecc=_flag(_first(ask(nvml, "nvmlDeviceGetEccMode", handle))),
        uncorrected_errors=ask(nvml, "nvmlDeviceGetTotalEccErrors", *errors),
        is_repair_pending=pending,
        is_repair_failed=failed,
        processes=_processes(nvml, handle, root),
        fabric=fabric,
        fabric_fault=fault,
        acs_redirects=_acs_redirects(nvml, handle, root),
        **_pcie(nvml, handle),
        **_clocks_and_power(nvml, handle),
    )


def _pcie(nvml: Any, handle: Any) -> dict[str, Any]:
    return {
        "pcie_generation": ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_generation_max": ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_generation_own": ask(nvml, "nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        "pcie_width": ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
    }


def _acs_redirects(nvml: Any, handle: Any, root: Path) -> tuple[str, ...] | None:
    pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    return None if pci is None else redirecting(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0", root)


def _clocks_and_power(nvml: Any, handle: Any) -> dict[str, Any]:
    return {
        "sm_mhz_max": ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        "application_sm_mhz": ask(nvml, "nvmlDeviceGetApplicationsClock", handle, nvml.NVML_CLOCK_SM),
        "default_sm_mhz": ask(nvml, "nvmlDeviceGetDefaultApplicationsClock", handle, nvml.NVML_CLOCK_SM),
        "power_limit_w": _watts(ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)),
        "default_power_limit_w": _watts(ask(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", handle)),
    }


def _repairs(nvml: Any, handle: Any) -> tuple[bool | None, bool | None]:
    """Return whether a memory repair is pending, and whether one failed (unknown before Ampere)."""
    remapped = ask(nvml, "nvmlDeviceGetRemappedRows", handle)
    if remapped is not None:
        return bool(remapped[2]), bool(remapped[3])
    return _flag(ask(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle)), None


def _fabric(nvml: Any, handle: Any) -> tuple[str, str]:
    info = nvml.c_nvmlGpuFabricInfo_t() if hasattr(nvml, "c_nvmlGpuFabricInfo_t") else None
    if info is None or ask(nvml, "nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
        return "", ""
    # NVML fills one byte (`unsigned char` in nvml.h); nvidia-ml-py 13 also reads its three bytes of padding.
    state = FABRIC.get(info.state & 0xFF, "")
    fault = nvml_text(str(nvml.NVMLError(info.status))) if info.status and state == "completed" else ""
    return state, fault


def _processes(nvml: Any, handle: Any, root: Path) -> tuple[str, ...]:
    """Name the processes on a GPU. NVML uses the host's process numbers, which are wrong in a container."""
    running = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or []
    named = proc.link(root / "proc/self/ns/pid") == HOSTS_OWN
    return tuple(_process_name(one.pid) if named else f"process {one.pid}" for one in running)


def _process_name(pid: int) -> str:
    with suppress(psutil.Error, ValueError):
        return str(psutil.Process(pid).name())
    return f"process {pid}"


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _first(pair: Any) -> Any:
    return None if pair is None else pair[0]


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
