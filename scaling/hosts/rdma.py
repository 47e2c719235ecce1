"""The RDMA cards of this host, from sysfs: ports, their interfaces, byte counters.

    /sys/class/infiniband/CARD/ports/N/              InfiniBand, RoCE, EFA, Omni-Path
        counters/port_{rcv,xmit}_data                in words of 4 bytes
        hw_counters/{rx,tx}_bytes                    EFA: all bytes of the port
        counters/{symbol_error,...}                 errors of the link, which stop at their largest value
    /sys/class/cxi/CARD/device/telemetry/hni_sts_{rx,tx}_ok_octets        Slingshot: VALUE@TIME
    /sys/class/net/NAME/dev_port                     N - 1 for port N of its card; in older kernels dev_id

(linux/Documentation/ABI/stable/sysfs-class-infiniband, ABI/testing/sysfs-class-net;
linux/drivers/infiniband/hw/efa/efa_verbs.c)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scaling.hosts.proc import text
from scaling.records.host import Hca
from scaling.records.network import GBIT

ROOT = Path("/")
NET, INFINIBAND, SLINGSHOT = Path("sys/class/net"), Path("sys/class/infiniband"), Path("sys/class/cxi")
WORD_BYTES = 4
ERRORS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards")
MBIT = 1e6


def hcas(root: Path = ROOT) -> tuple[Hca, ...]:
    """Return the ports of this host's RDMA cards."""
    return tuple(describe(port, root) for port in ports(root))


def ports(root: Path = ROOT) -> list[Path]:
    """Return the folder of each port; a Slingshot card is one port."""
    return [*sorted((root / INFINIBAND).glob("*/ports/*")), *sorted((root / SLINGSHOT).glob("*"))]


class Identity(NamedTuple):
    """A port's card, its number there and its link layer."""

    card: str
    port: int
    link_layer: str


def identity(port: Path) -> Identity:
    """Identify a port without asking the card, whose firmware is slow."""
    if _is_verbs(port):
        return Identity(port.parent.parent.name, int(port.name), text(port / "link_layer"))
    return Identity(port.name, 1, "Slingshot")


def describe(port: Path, root: Path = ROOT) -> Hca:
    """Describe a port, with its interfaces and the interfaces on top of these."""
    card, number, link_layer = identity(port)
    own = netdevs(port, root)
    if _is_verbs(port):
        found = re.match(r"([\d.]+) Gb/sec", text(port / "rate"))
        active, rate = "ACTIVE" in text(port / "state"), float(found[1]) * GBIT if found else None
    else:
        speeds = [count(root / NET / name / "speed") for name in own]
        active = any(text(root / NET / name / "operstate") == "up" for name in own)
        rate = next((speed * MBIT for speed in speeds if speed), None)
    return Hca(
        name=card,
        port=number,
        link_layer=link_layer,
        active=active,
        rate_bits_per_s=rate,
        interfaces=tuple(sorted(_with_uppers(own, root))),
        opens=_opens(port, root),
    )


def carried(port: Path) -> tuple[int, int] | None:
    """Return the bytes received and sent; None if unknown."""
    if not _is_verbs(port):
        return _pair(port / f"device/telemetry/hni_sts_{way}_ok_octets" for way in ("rx", "tx"))
    words = _pair(port / f"counters/port_{way}_data" for way in ("rcv", "xmit"))
    if words is not None:
        return WORD_BYTES * words[0], WORD_BYTES * words[1]
    return _pair(port / f"hw_counters/{way}_bytes" for way in ("rx", "tx"))


def errors(port: Path) -> dict[str, int]:
    """Return the error counters of a verbs port; empty if it has none."""
    found = {name: count(port / f"counters/{name}") for name in ERRORS}
    return {name: value for name, value in found.items() if value is not None}


def netdevs(port: Path, root: Path = ROOT) -> tuple[str, ...]:
    """Return the names of a port's own network interfaces."""
    card = port.parent.parent if _is_verbs(port) else port
    names = sorted(folder.name for folder in (card / "device/net").glob("*"))
    if not _is_verbs(port) or len(list(port.parent.iterdir())) == 1:
        return tuple(names)
    return tuple(name for name in names if _port_of(name, root) == int(port.name))


def _opens(port: Path, root: Path) -> bool:
    """Return whether this process may open the card. In a container only /dev shows which cards are granted."""
    devices = sorted((port.parent.parent / "device/infiniband_verbs").glob("uverbs*"))
    return all(os.access(root / "dev/infiniband" / device.name, os.R_OK | os.W_OK) for device in devices)


def _port_of(interface: str, root: Path) -> int:
    folder = root / NET / interface
    with suppress(ValueError):
        return 1 + (count(folder / "dev_port") or int(text(folder / "dev_id") or "0", 16))
    return 1


def _with_uppers(interfaces: Iterable[str], root: Path) -> set[str]:
    found: set[str] = set()
    wanted = set(interfaces)
    while wanted:
        found |= wanted
        links = (link for name in wanted for link in (root / NET / name).glob("upper_*"))
        wanted = {link.name.removeprefix("upper_") for link in links} - found
    return found


def _is_verbs(port: Path) -> bool:
    return port.parent.name == "ports"


def _pair(files: Iterable[Path]) -> tuple[int, int] | None:
    received, sent = (count(file) for file in files)
    return None if received is None or sent is None else (received, sent)


def count(path: Path) -> int | None:
    """Read a counter, with or without `@TIME`; None if missing."""
    found = text(path).partition("@")[0]
    return int(found) if found.isdecimal() else None
