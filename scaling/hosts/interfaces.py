"""Byte and error counters of this host's network interfaces and RDMA ports, from the kernel.

Interfaces: /sys/class/net/NAME/statistics/{rx,tx}_{bytes,errors,dropped} (linux/Documentation/ABI/testing,
sysfs-class-net-statistics). Ports: hosts/rdma.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from scaling.hosts import rdma
from scaling.hosts.rdma import NET, ROOT
from scaling.records.telemetry import Traffic

# Link layers whose ports also count their interfaces' bytes. Ethernet ports count RDMA only (NVIDIA,
# "Understanding mlx5 Linux counters").
COUNT_ALL = ("InfiniBand", "Slingshot")
# Virtual interfaces with a real speed; a veth always reports 10 Gb/s.
LAYERED = ("bond", "vlan", "macvlan", "ipvlan")
ERRORS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")


class Counter(NamedTuple):
    """Bytes and errors of one interface or port; `includes` names interfaces whose bytes it also counts. If it
    belongs to a bond or bridge (`is_part`), that counts its bytes, and it is not reported."""

    received_bytes: int
    sent_bytes: int
    includes: tuple[str, ...] = ()
    is_part: bool = False
    errors: Mapping[str, int] = MappingProxyType({})


Reading = Mapping[str, Counter]


def read(root: Path = ROOT) -> Reading:
    """Read all counters of this host except the loopback's. A card includes its VLANs, a bond or bridge its cards,
    an InfiniBand port its IPoIB interfaces, a Slingshot port its Ethernet interface."""
    return {**dict(_interfaces(root)), **dict(_ports(root))}


def since(before: Reading, now: Reading) -> tuple[Traffic, ...]:
    """Return the traffic of each interface and port between two readings, without double counting except of
    tunnels. New counters and counters that went back (a reloaded driver) are left out."""
    moved = {
        name: (
            counter.received_bytes - before[name].received_bytes,
            counter.sent_bytes - before[name].sent_bytes,
        )
        for name, counter in now.items()
        if name in before
    }
    return tuple(
        Traffic(
            name=name,
            received_bytes=max(0, received - sum(moved.get(part, (0, 0))[0] for part in now[name].includes)),
            sent_bytes=max(0, sent - sum(moved.get(part, (0, 0))[1] for part in now[name].includes)),
            errors=_risen(before[name].errors, now[name].errors),
        )
        for name, (received, sent) in moved.items()
        if received >= 0 and sent >= 0 and not now[name].is_part
    )


def _risen(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return how far each counter rose, without those that did not."""
    return {name: value - before[name] for name, value in now.items() if value > before.get(name, value)}


def has_card(interface: str, root: Path = ROOT) -> bool:
    """Return whether the reported speed of an interface is that of a card."""
    folder = root / NET / interface
    if (folder / "device").exists():
        return True
    with suppress(OSError):
        return any(f"DEVTYPE={kind}\n" in (folder / "uevent").read_text() for kind in LAYERED)
    return False


def port_name(hca: str, port: int | str) -> str:
    """Return the name of a port in `Traffic`: `mlx5_0/1`."""
    return f"{hca}/{port}"


def _interfaces(root: Path) -> Iterator[tuple[str, Counter]]:
    for folder in sorted((root / NET).glob("*")):
        received, sent = (rdma.count(folder / f"statistics/{way}_bytes") for way in ("rx", "tx"))
        if folder.name == "lo" or received is None or sent is None:
            continue
        stacked = tuple(link.name.removeprefix("upper_") for link in sorted(folder.glob("upper_*")))
        errors = {name: rdma.count(folder / f"statistics/{name}") for name in ERRORS}
        known = {name: value for name, value in errors.items() if value is not None}
        yield folder.name, Counter(received, sent, stacked, (folder / "master").exists(), known)


def _ports(root: Path) -> Iterator[tuple[str, Counter]]:
    for port in rdma.ports(root):
        if (carried := rdma.carried(port)) is not None:
            card, number, link_layer = rdma.identity(port)
            own = rdma.netdevs(port, root) if link_layer in COUNT_ALL else ()
            yield port_name(card, number), Counter(*carried, own, errors=rdma.errors(port))
