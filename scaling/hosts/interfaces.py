"""What this host's network interfaces and RDMA cards have carried, from the kernel's counters.

    /sys/class/net/NAME/statistics/{rx,tx}_bytes     (linux/Documentation/ABI/testing/sysfs-class-net-statistics)

Every reader takes the `root` under which they lie, and answers with nothing where there is nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scaling.hosts import rdma
from scaling.hosts.rdma import NET, ROOT
from scaling.records.telemetry import Traffic

# Link layers whose ports count what the interfaces on them carry; those of Ethernet count RDMA alone (NVIDIA,
# "Understanding mlx5 Linux counters").
COUNT_ALL = ("InfiniBand", "Slingshot")
# Interfaces without a card of their own whose speed is real all the same; a veth claims 10 Gb/s whatever it does.
LAYERED = ("bond", "vlan", "macvlan", "ipvlan")


class Counter(NamedTuple):
    """Bytes received and sent by one interface or port, and the names of those whose bytes it counts as well.

    Of one that serves a bond or a bridge (`is_part`) nothing is told, since that counts its bytes; but they are
    not counted for the port below it either.
    """

    received_bytes: int
    sent_bytes: int
    includes: tuple[str, ...] = ()
    is_part: bool = False


Reading = Mapping[str, Counter]


def read(root: Path = ROOT) -> Reading:
    """All counters of this host by name, but not the loopback's.

    A card that carries VLANs counts theirs, a bond or a bridge its cards', an InfiniBand port those of its IPoIB
    interfaces, a Slingshot port those of its Ethernet interface.
    """
    return {**dict(_interfaces(root)), **dict(_ports(root))}


def since(before: Reading, now: Reading) -> tuple[Traffic, ...]:
    """What each interface and port carried between two readings, no byte twice but those of tunnels (WireGuard,
    tun), of which the kernel does not say over which card they go. A counter that is new or went back (a driver
    that was reloaded) is left out."""
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
        )
        for name, (received, sent) in moved.items()
        if received >= 0 and sent >= 0 and not now[name].is_part
    )


def has_card(interface: str, root: Path = ROOT) -> bool:
    """Whether the speed that the kernel tells of an interface is that of a card."""
    folder = root / NET / interface
    if (folder / "device").exists():
        return True
    with suppress(OSError):
        return any(f"DEVTYPE={kind}\n" in (folder / "uevent").read_text() for kind in LAYERED)
    return False


def port_name(hca: str, port: int | str) -> str:
    """How a port is called in `Traffic`: `mlx5_0/1`."""
    return f"{hca}/{port}"


# ---------------------------------------------------------------- Linux's files


def _interfaces(root: Path) -> Iterator[tuple[str, Counter]]:
    for folder in sorted((root / NET).glob("*")):
        received, sent = (rdma.count(folder / f"statistics/{way}_bytes") for way in ("rx", "tx"))
        if folder.name == "lo" or received is None or sent is None:
            continue
        stacked = tuple(link.name.removeprefix("upper_") for link in sorted(folder.glob("upper_*")))
        yield folder.name, Counter(received, sent, stacked, is_part=(folder / "master").exists())


def _ports(root: Path) -> Iterator[tuple[str, Counter]]:
    for port in rdma.ports(root):
        if (carried := rdma.carried(port)) is not None:
            card, number, link_layer = rdma.identity(port)
            own = rdma.netdevs(port, root) if link_layer in COUNT_ALL else ()
            yield port_name(card, number), Counter(*carried, own)
