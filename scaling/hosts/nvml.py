"""NVML as one process has it, initialised once, and the devices in it that a launch may use.

Speaks to NVML through nvidia-ml-py alone. Nothing here raises: no driver is an answer, and so is a function that a
driver or a GPU does not support.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

# NVML_ERROR_INSUFFICIENT_POWER, _IRQ_ISSUE, _GPU_IS_LOST, and _UNKNOWN, which some drivers say instead.
LOST = (8, 11, 15, 999)


@lru_cache(maxsize=1)
def session() -> tuple[Any, str]:
    """NVML, initialised: (the pynvml module, ""), or (None, why not); "" where no driver is installed.

    It stays so until the process ends. Without persistence mode the driver lets go of every GPU when its last
    client leaves, and sets it up anew for the next, which takes seconds each (docs.nvidia.com, "Driver
    Persistence").
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


def text(value: str | bytes | None) -> str:
    """A string of NVML's, which is bytes in old releases of nvidia-ml-py; "" where there is none."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


class Visible(NamedTuple):
    """A GPU, or a slice of one (MIG): then `parent` is the handle of the GPU that it is a slice of, or its own
    where NVML does not tell."""

    uuid: str
    handle: Any
    parent: Any = None

    @property
    def whole(self) -> Any:
        """The handle of the GPU itself, which answers what slices do not."""
        return self.handle if self.parent is None else self.parent


def visible(nvml: Any) -> list[Visible]:
    """The devices that workers of this process may be given, in the order in which frameworks number GPUs.

    CUDA_VISIBLE_DEVICES is read as CUDA does: indices, UUIDs or unique beginnings of UUIDs, MIG UUIDs; the first
    entry that is not valid ends the list, and one given twice empties it (CUDA programming guide, "CUDA
    Environment Variables"). NVML counts by PCI bus; CUDA does so too on hosts with different GPUs only under
    CUDA_DEVICE_ORDER=PCI_BUS_ID.

    A GPU in MIG mode counts as its slices. A CUDA process sees one slice only, and no whole GPU beside it (MIG
    user guide, "CUDA Device Enumeration"): whoever computes on one is shown that one alone.
    """
    all_gpus = reachable(nvml)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [device for gpu in all_gpus for device in _devices(nvml, gpu)]
    chosen: dict[str, Visible] = {}
    selected = (_select(nvml, all_gpus, word.strip()) for word in wanted.split(","))
    for devices in takewhile(bool, selected):
        if any(device.uuid in chosen for device in devices):
            return []
        chosen |= {device.uuid: device for device in devices}
    return list(chosen.values())


def find(nvml: Any, device_index: int, uuid: str) -> Any:
    """The handle of a visible device: by UUID, where a worker is shown no other, else by its number; None if it is
    gone."""
    devices = visible(nvml)
    if uuid:
        return next((device.handle for device in devices if device.uuid == uuid), None)
    return devices[device_index].handle if device_index < len(devices) else None


def reachable(nvml: Any) -> list[Visible]:
    """Every GPU that this process may open, visible or not, in NVML's order."""
    found: list[Visible] = []
    for index in range(ask(nvml, "nvmlDeviceGetCount") or 0):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        if handle is not None:
            found.append(Visible(text(ask(nvml, "nvmlDeviceGetUUID", handle)) or f"#{index}", handle))
    return found


def lost(nvml: Any) -> tuple[str, ...]:
    """`GPU 3: GPU is lost` of each that NVML counts and that does not answer (nvmlDeviceGetHandleByIndex: off the
    bus, without power), by its number there. What a container or a batch system withholds is none."""
    found: list[str] = []
    for index in range(ask(nvml, "nvmlDeviceGetCount") or 0):
        try:
            nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            if error.value in LOST:
                found.append(f"GPU {index}: {error}")
    return tuple(found)


def _devices(nvml: Any, gpu: Visible) -> list[Visible]:
    """The GPU itself, or its slices where it is in MIG mode."""
    mode = ask(nvml, "nvmlDeviceGetMigMode", gpu.handle)
    if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return [gpu]
    most = ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", gpu.handle) or 0
    handles = (ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, index) for index in range(most))
    slices = [(text(ask(nvml, "nvmlDeviceGetUUID", handle)), handle) for handle in handles if handle is not None]
    return [Visible(uuid, handle, gpu.handle) for uuid, handle in slices if uuid]


def _select(nvml: Any, all_gpus: list[Visible], word: str) -> list[Visible]:
    """The devices that one entry of CUDA_VISIBLE_DEVICES means; none where it means nothing."""
    if word.startswith("MIG-"):
        handle = ask(nvml, "nvmlDeviceGetHandleByUUID", word)
        if handle is None:
            return []
        parent = ask(nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return [Visible(text(ask(nvml, "nvmlDeviceGetUUID", handle)) or word, handle, parent or handle)]
    if word.startswith("GPU-"):
        fitting = [gpu for gpu in all_gpus if gpu.uuid.startswith(word)]
        return _devices(nvml, fitting[0]) if len(fitting) == 1 else []
    number = re.match(r"\+?\d+", word)
    index = int(number.group()) if number else -1
    return _devices(nvml, all_gpus[index]) if 0 <= index < len(all_gpus) else []
