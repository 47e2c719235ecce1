"""What an all-reduce alone reaches between the devices of one node, by bus and device.

Rates are of one direction of one device ("busbw" of nccl-tests). A training reaches a share of them, which is
learned (`bus.*` in priors.toml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from scaling.tools.predict.setting import Bus

# of devices that are not in DEVICES: PCIe 4.0 x16 by its data sheet, the links of a V100, the switch of an A100
USUAL_BYTES_PER_S: Mapping[Bus, float] = {
    "pcie": 31.5e9, "nvlink": 120e9, "nvswitch": 240e9, "host": 15.75e9, "loopback": 1e9, "unknown": 40e9,
}  # fmt: skip


class Device(NamedTuple):
    """Rates of a device: between devices that have links, and by PCIe; 0 if it has none."""

    pattern: str
    links_bytes_per_s: float
    pcie_bytes_per_s: float
    source: str


_PROTOCOL = "data sheet, less 20 % for the protocol (github.com/NVIDIA/nccl-tests/issues/212)"
# The first whose pattern is in the name.
DEVICES = (
    Device(r"h[12]00|h800|gh200|h20\b", 476e9, 63e9, "github.com/NVIDIA/nccl-tests/issues/290 and 272"),
    Device(r"b[23]00", 720e9, 63e9, _PROTOCOL),
    Device(r"a100|a800", 240e9, 31.5e9, _PROTOCOL),
    Device(r"mi3\d\d", 336e9, 63e9, "7 links of 48 GB/s: rocm.blogs.amd.com, mi300x-rccl-xgmi, 2025-03-02"),
    Device(r"mi250", 100e9, 31.5e9, "data sheet: 2 links of 50 GB/s to the next device of a ring"),
    Device(r"v100|titan v", 120e9, 15.75e9, _PROTOCOL),
    Device(r"p100", 64e9, 15.75e9, _PROTOCOL),
    Device(r"50[89]0|rtx pro", 0.0, 63e9, "PCIe 5.0 x16: data sheet"),
    Device(r"k80|k520|m60|p40|t4\b|1080|20[78]0|titan", 0.0, 15.75e9, "PCIe 3.0 x16: data sheet"),
)


def bytes_per_s(bus: Bus, device: str) -> float:
    """Return the rate of a bus between devices of this name; 0 if the device is unknown or has no such bus."""
    known = next((one for one in DEVICES if re.search(one.pattern, device.lower())), None)
    if known is None or bus not in ("pcie", "nvlink", "nvswitch"):
        return 0.0
    return known.pcie_bytes_per_s if bus == "pcie" else known.links_bytes_per_s
