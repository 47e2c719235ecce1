"""The PCIe switches above a device, and whether they send what devices tell each other up to the root complex.

A switch joins the devices below it by itself unless Access Control Services (ACS) redirect them; then GPUs and
RDMA cards reach each other at the root complex's pace or not at all (NCCL user guide, Troubleshooting, "PCI Access
Control Services"). Registers after Linux's include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# What the kernel shows of a device's configuration to those who are not root, and where the extended part begins.
FOR_ALL_BYTES, EXTENDED = 64, 0x100
STATUS, CAPABILITY_LIST, FIRST, EXPRESS, DOWNSTREAM_PORT = 0x06, 0x10, 0x34, 0x10, 6
ACS, ACS_CONTROL, ACS_REDIRECTS = 0x0D, 0x06, 0x04 | 0x08  # of requests, of their completions


def redirecting(address: str, root: Path = Path("/")) -> tuple[str, ...] | None:
    """Addresses of the switch ports above a device that redirect; None where the kernel does not tell (it tells
    root). `address` is like 0000:3b:00.0."""
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
    """Kinds and places; as few as there can be, whatever the bytes say."""
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
