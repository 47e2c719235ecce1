"""The GPUs of this host as NVML tells them: what they are and how they reach each other.

Speaks to NVML through nvidia-ml-py alone and imports no framework. No driver, or no GPU, is an
answer and not an error; a field that a GPU does not support is unknown: 0.0, "?" or False.
What changes while a worker runs is read by its agent (agent/device_probe.py).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any, NamedTuple

from scaling.records.host import Gpu

# Written out because pynvml 13 defines NVML_P2P_CAPS_INDEX_READ as the tuple (0,), which ctypes refuses.
P2P_READ, P2P_NVLINK = 0, 2

PciAddress = tuple[int, int, int]


def initialise() -> tuple[Any, str]:
    """Initialise NVML; who gets a module owes it one `nvmlShutdown`.

    Returns (the pynvml module, "") or (None, why not); the reason is "" where no driver is installed.
    """
    try:
        import pynvml  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError:
        return None, ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return None, ""
    except pynvml.NVMLError as error:
        return None, f"unusable: {error}"
    return pynvml, ""


def ask(nvml: Any, name: str, *args: Any) -> Any:
    """Call an NVML function; None where the driver, the GPU or nvidia-ml-py cannot answer."""
    function = getattr(nvml, name, None)
    if function is None:
        return None
    try:
        return function(*args)
    except nvml.NVMLError:
        return None


def gather_gpus() -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that a framework in this process's environment would see, and the driver's version.

    Without a driver: ((), ""). With one that does not work: ((), "unusable: <NVML's words>").
    """
    nvml, why = initialise()
    if nvml is None:
        return (), why
    try:
        nodes = [_node(nvml, handle) for handle in visible_handles(nvml)]
        gpus = tuple(_gpu(nvml, index, nodes) for index in range(len(nodes)))
        return gpus, _text(ask(nvml, "nvmlSystemGetDriverVersion"))
    finally:
        ask(nvml, "nvmlShutdown")


def none_here(instead: str) -> str | None:
    """Why what needs a GPU cannot run on this host, and that `instead` can; None where there is one."""
    gpus, driver = gather_gpus()
    return None if gpus else f"no NVIDIA GPU on this host (driver {driver or 'not installed'}); use {instead}"


# ---------------------------------------------------------------- which GPUs


def visible_handles(nvml: Any) -> list[Any]:
    """NVML handles in the order in which frameworks number devices under CUDA_VISIBLE_DEVICES.

    As CUDA reads it: indices, UUIDs or unique beginnings of UUIDs, MIG UUIDs; the first entry that is
    not valid ends the list, and one given twice empties it (CUDA programming guide, "CUDA Environment
    Variables"). NVML counts by PCI bus; CUDA does so too on hosts with different GPUs only under
    CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    all_gpus = _all_handles(nvml)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(all_gpus.values())
    chosen: dict[str, Any] = {}
    for word in wanted.split(","):
        selected = _select(nvml, all_gpus, word.strip())
        if selected is None:
            break
        uuid, handle = selected
        if uuid in chosen:
            return []
        chosen[uuid] = handle
    return list(chosen.values())


def _all_handles(nvml: Any) -> dict[str, Any]:
    """By UUID, the handle of every GPU that NVML can reach, in NVML's order."""
    handles: dict[str, Any] = {}
    for index in range(ask(nvml, "nvmlDeviceGetCount") or 0):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            handles[_text(ask(nvml, "nvmlDeviceGetUUID", handle)) or f"#{index}"] = handle
    return handles


def _select(nvml: Any, all_gpus: dict[str, Any], word: str) -> tuple[str, Any] | None:
    """The (UUID, handle) that one entry of CUDA_VISIBLE_DEVICES means, None where it means nothing."""
    if word.startswith("MIG-"):
        handle = ask(nvml, "nvmlDeviceGetHandleByUUID", word)
        return None if handle is None else (word, handle)
    if word.startswith("GPU-"):
        fitting = [item for item in all_gpus.items() if item[0].startswith(word)]
        return fitting[0] if len(fitting) == 1 else None
    number = re.match(r"\+?\d+", word)
    index = int(number.group()) if number else -1
    return list(all_gpus.items())[index] if 0 <= index < len(all_gpus) else None


# ---------------------------------------------------------------- what they are


class _Node(NamedTuple):
    """A GPU in the host's topology. `far_ends` are the PCI addresses at the other ends of its NVLinks,
    `switched` counts those of them that lead into an NVSwitch."""

    handle: Any
    address: PciAddress | None
    far_ends: Counter[PciAddress | None]
    switched: int


def _node(nvml: Any, handle: Any) -> _Node:
    """A GPU with its NVLinks. Inside a virtual machine NVML may not know what a link leads to; it is an NVSwitch
    then, as NCCL takes it, and `_link` still asks whether the two GPUs reach each other over NVLink."""
    named = (nvml.NVML_NVLINK_DEVICE_TYPE_GPU, nvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU)
    far_ends: Counter[PciAddress | None] = Counter()
    switched = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if ask(nvml, "nvmlDeviceGetNvLinkState", handle, link):
            far_ends[_address(ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link))] += 1
            switched += ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) not in named
    return _Node(handle, _address(ask(nvml, "nvmlDeviceGetPciInfo", handle)), far_ends, switched)


def _address(pci: Any) -> PciAddress | None:
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _gpu(nvml: Any, index: int, nodes: list[_Node]) -> Gpu:
    me = nodes[index]
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", me.handle)
    limit_mw = ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", me.handle)
    return Gpu(
        index=index,
        name=_text(ask(nvml, "nvmlDeviceGetName", me.handle)),
        uuid=_text(ask(nvml, "nvmlDeviceGetUUID", me.handle)),
        memory_bytes=memory.total if memory else 0,
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        max_sm_clock_mhz=ask(nvml, "nvmlDeviceGetMaxClockInfo", me.handle, nvml.NVML_CLOCK_SM),
        links=tuple("self" if other is me else _link(nvml, me, other) for other in nodes),
        compute_capability=ask(nvml, "nvmlDeviceGetCudaComputeCapability", me.handle),
        p2p=tuple(other is me or _peers(nvml, me, other, P2P_READ) for other in nodes),
    )


def _link(nvml: Any, gpu: _Node, other: _Node) -> str:
    """How two GPUs reach each other, in the words of `nvidia-smi topo -m`; "?" where NVML does not say."""
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
    return levels.get(ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", gpu.handle, other.handle), "?")


def _peers(nvml: Any, gpu: _Node, other: _Node, capability: int) -> bool:
    status = ask(nvml, "nvmlDeviceGetP2PStatus", gpu.handle, other.handle, capability)
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def _text(value: str | bytes | None) -> str:
    """A string of NVML's, which is bytes in old releases of nvidia-ml-py; "" where there is none."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
