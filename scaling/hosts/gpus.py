"""The GPUs of this host as NVML reports them: properties, near cores, links, and what spoils a measurement.

No framework is imported. Without a driver or a GPU the result is empty, and an unsupported field is unknown: None,
0, "?", () or False. agent/watch.py reads what changes while a worker runs.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections import Counter
from contextlib import suppress
from functools import cache, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped, unused-ignore]

from scaling.hosts import proc
from scaling.records.host import Gpu, GpuHealth, GpuHost

# ---------------------------------------------------------------- nvml
# NVML through nvidia-ml-py, initialised once. Nothing here raises.


LOST = (8, 11, 15, 999)


@lru_cache(maxsize=1)
def session() -> tuple[Any, str]:
    """Return (pynvml, "") with NVML initialised, or (None, reason); the reason is "" without a driver.
    NVML stays initialised: without persistence mode the driver sets up every GPU anew for its next client, which
    takes seconds (docs.nvidia.com, "Driver Persistence")."""
    try:
        import pynvml  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError:
        return None, ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return None, ""
    except Exception as error:
        return None, f"unusable: {error}"
    return pynvml, ""


def ask(nvml: Any, name: str, *args: Any) -> Any:
    """Call an NVML function; return None if the driver, the GPU or nvidia-ml-py does not support it. nvidia-ml-py
    raises errors of its own too, as NVMLLibraryMismatchError: any exception costs this one fact."""
    try:
        return getattr(nvml, name)(*args)
    except Exception:
        return None


def nvml_text(value: str | bytes | None) -> str:
    """Decode a string of NVML, which is bytes in old releases of nvidia-ml-py; "" for None."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


class Visible(NamedTuple):
    """A GPU, or a slice of one (MIG). `parent` is then the handle of its GPU, or its own handle if unknown."""

    uuid: str
    handle: Any
    parent: Any = None

    @property
    def whole(self) -> Any:
        """The handle of the whole GPU, which answers questions that slices do not."""
        return self.handle if self.parent is None else self.parent


def visible(nvml: Any) -> list[Visible]:
    """Return the devices that workers of this process may use, in the frameworks' order.

    CUDA_VISIBLE_DEVICES is read as CUDA does: indices, UUIDs or unique prefixes, MIG UUIDs. The first invalid
    entry ends the list, a repeated entry empties it (CUDA programming guide, "CUDA Environment Variables"). NVML
    orders by PCI bus; CUDA may differ on mixed hosts without CUDA_DEVICE_ORDER=PCI_BUS_ID. A GPU in MIG mode
    counts as its slices; a CUDA process sees one slice and no other GPU (MIG user guide, "CUDA Device
    Enumeration").
    """
    all_gpus = reachable(nvml)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [device for gpu in all_gpus for device in _visible_devices(nvml, gpu)]
    chosen: dict[str, Visible] = {}
    selected = (_select(nvml, all_gpus, word.strip()) for word in wanted.split(","))
    for devices in takewhile(bool, selected):
        if any(device.uuid in chosen for device in devices):
            return []
        chosen |= {device.uuid: device for device in devices}
    return list(chosen.values())


def find_visible(nvml: Any, device_index: int, uuid: str) -> Any:
    """Return the handle of a visible device, by UUID if given, else by index; None if it is gone."""
    devices = visible(nvml)
    if uuid:
        return next((device.handle for device in devices if device.uuid == uuid), None)
    return devices[device_index].handle if device_index < len(devices) else None


def reachable(nvml: Any) -> list[Visible]:
    """Return every GPU that this process may open, visible or not, in NVML's order."""
    found: list[Visible] = []
    for index in range(ask(nvml, "nvmlDeviceGetCount") or 0):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            found.append(Visible(nvml_text(ask(nvml, "nvmlDeviceGetUUID", handle)) or f"#{index}", handle))
    return found


def lost(nvml: Any) -> tuple[str, ...]:
    """Return `GPU 3: GPU is lost` for each GPU that NVML counts but that fails (off the bus, without power).
    GPUs that a container or batch system withholds are not lost."""
    found: list[str] = []
    for index in range(ask(nvml, "nvmlDeviceGetCount") or 0):
        try:
            nvml.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:
            if getattr(error, "value", None) in LOST:
                found.append(f"GPU {index}: {error}")
    return tuple(found)


def _visible_devices(nvml: Any, gpu: Visible) -> list[Visible]:
    mode = ask(nvml, "nvmlDeviceGetMigMode", gpu.handle)
    if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return [gpu]
    most = ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", gpu.handle) or 0
    handles = (ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, index) for index in range(most))
    slices = [
        (nvml_text(ask(nvml, "nvmlDeviceGetUUID", handle)), handle) for handle in handles if handle is not None
    ]
    return [Visible(uuid, handle, gpu.handle) for uuid, handle in slices if uuid]


def _select(nvml: Any, all_gpus: list[Visible], word: str) -> list[Visible]:
    if word.startswith("MIG-"):
        handle = ask(nvml, "nvmlDeviceGetHandleByUUID", word)
        if handle is None:
            return []
        parent = ask(nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return [Visible(nvml_text(ask(nvml, "nvmlDeviceGetUUID", handle)) or word, handle, parent or handle)]
    if word.startswith("GPU-"):
        fitting = [gpu for gpu in all_gpus if gpu.uuid.startswith(word)]
        return _visible_devices(nvml, fitting[0]) if len(fitting) == 1 else []
    number = re.match(r"\+?\d+", word)
    index = int(number.group()) if number else -1
    return _visible_devices(nvml, all_gpus[index]) if 0 <= index < len(all_gpus) else []


# ---------------------------------------------------------------- gpus

# pynvml 13 defines NVML_P2P_CAPS_INDEX_READ as the tuple (0,), which ctypes refuses.
P2P_READ, P2P_NVLINK = 0, 2
CPU_WORDS = 16

PciAddress = tuple[int, int, int]


class Found(NamedTuple):
    """The GPUs that workers of this process may use.

    `driver`: its version, "unusable: <error>", or "" if not installed.
    `cuda`: the newest CUDA release that it supports, like (12, 4).
    `reachable`: the number of GPUs that this process may open.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    cuda: tuple[int, int] | None = None
    reachable: int = 0


@lru_cache(maxsize=1)
def gather_gpus() -> Found:
    """Read the GPUs once per process: hosts with many GPUs answer slowly."""
    nvml, why = session()
    if nvml is None:
        return Found(driver=why)
    nodes = [_node(nvml, device) for device in visible(nvml)]
    return Found(
        gpus=tuple(_gpu(nvml, index, nodes) for index in range(len(nodes))),
        driver=nvml_text(ask(nvml, "nvmlSystemGetDriverVersion")),
        cuda=_cuda(nvml),
        reachable=len(reachable(nvml)),
    )


def none_here(instead: str) -> str | None:
    """Return why a strategy that needs a GPU cannot run here, and that `instead` can; None if there is a GPU."""
    found = gather_gpus()
    if found.gpus:
        return None
    others = f"; {words}" if (words := unsupported(found)) else ""
    return f"no NVIDIA GPU on this host (driver {found.driver or 'not installed'}{others}); use {instead}"


def unsupported(found: Found, root: Path = proc.ROOT) -> str:
    """Describe GPUs of this host that this program cannot use; "" if there are none.
    AMD's kernel driver has the device `kfd` (docs.kernel.org, "AMDKFD"). Containers need the capability `utility`
    for NVML (NVIDIA container toolkit, "Driver Capabilities"). A Jetson is a Tegra (Linux, arm/tegra); early ones
    have no NVML (NVIDIA/k8s-device-plugin issue 132, vllm issue 9728)."""
    said = []
    if not found.driver and (root / "dev/nvidiactl").exists():
        said.append("NVIDIA GPU found without libnvidia-ml: NVIDIA_DRIVER_CAPABILITIES lacks utility")
    if not found.driver and "nvidia,tegra" in proc.text(root / "proc/device-tree/compatible"):
        said.append("NVIDIA Jetson found, not supported: its driver has no NVML")
    if any((root / place).exists() for place in ("sys/class/kfd", "dev/kfd")):
        said.append("AMD GPU found, not supported")
    return "; ".join(said)


def _cuda(nvml: Any) -> tuple[int, int] | None:
    """Return the CUDA release of the libcuda in use (CUDA compatibility package), else of the driver."""
    number = ask(nvml, "nvmlSystemGetCudaDriverVersion_v2") or ask(nvml, "nvmlSystemGetCudaDriverVersion")
    return (number // 1000, number % 1000 // 10) if number else None


class _Node(NamedTuple):
    """A GPU in the host's topology.

    `far_ends`: PCI addresses at the other ends of its NVLinks; `switched`: how many of these are NVSwitches.
    """

    device: Visible
    address: PciAddress | None
    far_ends: Counter[PciAddress | None]
    switched: int


def _node(nvml: Any, device: Visible) -> _Node:
    """Read a GPU's NVLinks. An unknown far end, as in virtual machines, counts as an NVSwitch, as in NCCL."""
    named = (nvml.NVML_NVLINK_DEVICE_TYPE_GPU, nvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU)
    far_ends: Counter[PciAddress | None] = Counter()
    switched = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if ask(nvml, "nvmlDeviceGetNvLinkState", device.handle, link):
            far_ends[_address(ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", device.handle, link))] += 1
            switched += ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", device.handle, link) not in named
    return _Node(device, _address(ask(nvml, "nvmlDeviceGetPciInfo", device.handle)), far_ends, switched)


def _address(pci: Any) -> PciAddress | None:
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _gpu(nvml: Any, index: int, nodes: list[_Node]) -> Gpu:
    me = nodes[index]
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", me.device.handle)
    return Gpu(
        index=index,
        name=nvml_text(ask(nvml, "nvmlDeviceGetName", me.device.handle)),
        uuid=nvml_text(ask(nvml, "nvmlDeviceGetUUID", me.device.handle)),
        memory_bytes=memory.total if memory else 0,
        power_limit_w=_watts(ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", me.device.handle)),
        max_sm_clock_mhz=ask(nvml, "nvmlDeviceGetMaxClockInfo", me.device.handle, nvml.NVML_CLOCK_SM),
        links=tuple("self" if other is me else _link(nvml, me, other) for other in nodes),
        p2p=tuple(other is me or _peers(nvml, me, other, P2P_READ) for other in nodes),
        cores=_cores(nvml, me.device.whole),
        compute_capability=ask(nvml, "nvmlDeviceGetCudaComputeCapability", me.device.whole),
        parent="" if me.device.parent is None else nvml_text(ask(nvml, "nvmlDeviceGetUUID", me.device.parent)),
        compute_mode=_compute_mode(nvml, me.device.whole),
    )


def _compute_mode(nvml: Any, handle: Any) -> str:
    return COMPUTE_MODES.get(ask(nvml, "nvmlDeviceGetComputeMode", handle), "")


def _cores(nvml: Any, handle: Any) -> tuple[tuple[int, ...], ...]:
    words = max(CPU_WORDS, -(-os.sysconf("SC_NPROCESSORS_CONF") // 64))
    mask = ask(nvml, "nvmlDeviceGetCpuAffinityWithinScope", handle, words, nvml.NVML_AFFINITY_SCOPE_NODE)
    if mask is None:  # drivers before 455 do not know scopes
        mask = ask(nvml, "nvmlDeviceGetCpuAffinity", handle, words)
    near = {64 * word + bit for word, bits in enumerate(mask or ()) for bit in range(64) if bits >> bit & 1}
    return _grouped(frozenset(near & os.sched_getaffinity(0)))


@cache
def _grouped(cpus: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """Group CPUs by core. Cached: GPUs of one NUMA node have the same CPUs, and sysfs is slow."""
    return proc.physical_cores(cpus)


def _link(nvml: Any, gpu: _Node, other: _Node) -> str:
    """Return the link between two GPUs in the words of `nvidia-smi topo -m`; "?" if unknown."""
    count = gpu.far_ends[other.address] if other.address else 0
    if not count and _peers(nvml, gpu, other, P2P_NVLINK):
        count = min(gpu.switched, other.switched)
    if count:
        return f"NV{count}"
    levels = {
        nvml.NVML_TOPOLOGY_INTERNAL: "PIX",
        nvml.NVML_TOPOLOGY_SINGLE: "PIX",
        nvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
        nvml.NVML_TOPOLOGY_NODE: "NODE",
        nvml.NVML_TOPOLOGY_SYSTEM: "SYS",
    }
    return levels.get(
        ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", gpu.device.handle, other.device.handle), "?"
    )


def _peers(nvml: Any, gpu: _Node, other: _Node, capability: int) -> bool:
    status = ask(nvml, "nvmlDeviceGetP2PStatus", gpu.device.handle, other.device.handle, capability)
    return bool(status == nvml.NVML_P2P_STATUS_OK)


# ---------------------------------------------------------------- pcie
# A PCIe switch joins the devices below it, unless Access Control Services (ACS) redirect peer traffic to the root
# complex. That is slow or impossible (NCCL user guide, Troubleshooting, "PCI Access Control Services").
# Registers: Linux, include/uapi/linux/pci_regs.h.


ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Bytes of a configuration readable without root, and the offset of the extended part.
FOR_ALL_BYTES, EXTENDED = 64, 0x100
FIRST, EXPRESS, DOWNSTREAM_PORT = 0x34, 0x10, 6
ACS, ACS_CONTROL, ACS_REDIRECTS = 0x0D, 0x06, 0x04 | 0x08  # redirect requests, redirect completions


def redirecting(address: str, root: Path = Path("/")) -> tuple[str, ...] | None:
    """Return the switch ports above a device (0000:3b:00.0) that redirect; None if unknown, as without root."""
    devices = root / "sys/bus/pci/devices"
    if not (devices / address).exists():
        return None
    found = []
    for port in [part for part in (devices / address).resolve().parts if ADDRESS.fullmatch(part)][:-1]:
        config = b""
        with suppress(OSError):
            config = (devices / port / "config").read_bytes()
        if len(config) <= FOR_ALL_BYTES:
            return None
        if _redirects(config):
            found.append(port)
    return tuple(found)


def _redirects(config: bytes) -> bool:
    """Return whether this is a switch's port, and redirects."""
    express, acs = _capability(config, EXPRESS, config[FIRST] & 0xFC), _capability(config, ACS, EXTENDED)
    is_switch = bool(express) and config[express + 2] >> 4 == DOWNSTREAM_PORT
    return is_switch and bool(acs and config[acs + ACS_CONTROL] & ACS_REDIRECTS)


def _capability(config: bytes, kind: int, at: int) -> int:
    """Find a capability in the list that begins at `at`; 0 for none. The walk is bounded: bytes may be wrong."""
    for _ in range(480):
        if not FOR_ALL_BYTES <= at < len(config) - 8:
            return 0
        header = int.from_bytes(config[at : at + 4], "little")
        is_extended = at >= EXTENDED
        if header & (0xFFFF if is_extended else 0xFF) == kind:
            return at
        at = header >> 20 & 0xFFC if is_extended else header >> 8 & 0xFC
    return 0


# ---------------------------------------------------------------- settings and errors that spoil a measurement

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
# Fields of GpuHealth that NVML answers.
PLAIN = {
    "index": "nvmlDeviceGetIndex",
    "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_generation_max": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_generation_own": "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
}
CLOCKS = {
    "sm_mhz_max": "nvmlDeviceGetMaxClockInfo",
    "application_sm_mhz": "nvmlDeviceGetApplicationsClock",
    "default_sm_mhz": "nvmlDeviceGetDefaultApplicationsClock",
}


def gather_health(root: Path = proc.ROOT) -> GpuHost:
    """Read the state of the GPUs that a framework in this process would see."""
    nvml, _ = session()
    if nvml is None:
        return GpuHost()
    wholes = {nvml_text(ask(nvml, "nvmlDeviceGetUUID", one.whole)): one.whole for one in visible(nvml)}
    module = proc.text(root / "proc/driver/nvidia/version")
    return GpuHost(
        gpus=tuple(_health(nvml, handle, root) for handle in wholes.values()),
        cuda=".".join(map(str, _cuda(nvml) or ())),
        reachable=len(reachable(nvml)),
        lost=lost(nvml),
        peer_memory=next((name for name, file in PEER_MEMORY.items() if (root / file).exists()), ""),
        is_open=OPEN in module if module else None,
    )


def _health(nvml: Any, handle: Any, root: Path) -> GpuHealth:
    def get(name: str, *args: Any) -> Any:
        return ask(nvml, name, handle, *args)

    capability, pci = get("nvmlDeviceGetCudaComputeCapability"), get("nvmlDeviceGetPciInfo")
    # Of remapped rows the third tells whether a repair is pending, the fourth whether one failed. Before Ampere
    # there are retired pages.
    remapped = get("nvmlDeviceGetRemappedRows") or (0, 0, get("nvmlDeviceGetRetiredPagesPendingStatus"), None)
    fabric, fault = _fabric(nvml, handle)
    running = get("nvmlDeviceGetComputeRunningProcesses") or []
    # NVML uses the host's process numbers, which are wrong in a container.
    named = proc.link(root / "proc/self/ns/pid") == HOSTS_OWN
    return GpuHealth(
        uuid=nvml_text(get("nvmlDeviceGetUUID")),
        name=nvml_text(get("nvmlDeviceGetName")),
        serial=nvml_text(get("nvmlDeviceGetSerial")),
        compute_capability=".".join(map(str, capability or ())),
        is_persistent=_flag(get("nvmlDeviceGetPersistenceMode")),
        compute_mode=_compute_mode(nvml, handle),
        is_mig=_flag((get("nvmlDeviceGetMigMode") or [None])[0]),
        is_ecc=_flag((get("nvmlDeviceGetEccMode") or [None])[0]),
        uncorrected_errors=get(
            "nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        is_repair_pending=_flag(remapped[2]),
        is_repair_failed=_flag(remapped[3]),
        processes=tuple(_process_name(one.pid) if named else f"process {one.pid}" for one in running),
        fabric=fabric,
        fabric_fault=fault,
        acs_redirects=pci and redirecting(f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0", root),
        **{field: get(question) for field, question in PLAIN.items()},
        **{field: get(question, nvml.NVML_CLOCK_SM) for field, question in CLOCKS.items()},
        power_limit_w=_watts(get("nvmlDeviceGetEnforcedPowerLimit")),
        default_power_limit_w=_watts(get("nvmlDeviceGetPowerManagementDefaultLimit")),
    )


def _fabric(nvml: Any, handle: Any) -> tuple[str, str]:
    info = nvml.c_nvmlGpuFabricInfo_t() if hasattr(nvml, "c_nvmlGpuFabricInfo_t") else None
    if info is None or ask(nvml, "nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
        return "", ""
    # NVML fills one byte (`unsigned char` in nvml.h); nvidia-ml-py 13 also reads its three bytes of padding.
    state = FABRIC.get(info.state & 0xFF, "")
    fault = nvml_text(str(nvml.NVMLError(info.status))) if info.status and state == "completed" else ""
    return state, fault


def _process_name(pid: int) -> str:
    with suppress(psutil.Error, ValueError):
        return str(psutil.Process(pid).name())
    return f"process {pid}"


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
