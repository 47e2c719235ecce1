"""What this host's network interfaces and RDMA cards have carried, from the kernel's counters.

    /sys/class/net/NAME/statistics/{rx,tx}_bytes
    /sys/class/infiniband/CARD/ports/N/counters/port_{rcv,xmit}_data      in words of 4 bytes
    (linux/Documentation/ABI/stable/sysfs-class-net, sysfs-class-infiniband)

Every reader takes the `root` under which they lie, and answers with nothing where there is nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scaling.records.host import Hca
from scaling.records.network import GBIT
from scaling.records.telemetry import Traffic

ROOT = Path("/")
WORD_BYTES = 4


class Counter(NamedTuple):
    """Bytes received and sent by one interface or port, and the names of those whose bytes it counts as well."""

    received_bytes: int
    sent_bytes: int
    includes: tuple[str, ...] = ()


Reading = Mapping[str, Counter]


def read(root: Path = ROOT) -> Reading:
    """All counters of this host by name, but not the loopback's.

    A network card that serves a bond or a bridge is left out, since those count its bytes; one that carries
    VLANs counts theirs, and an InfiniBand port those of its IPoIB interface.
    """
    return {**dict(_interfaces(root)), **dict(_ports(root))}


def since(before: Reading, now: Reading) -> tuple[Traffic, ...]:
    """What each interface and port carried between two readings, no byte twice. A counter that is new or went
    back (a driver that was reloaded) is left out."""
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
        if received >= 0 and sent >= 0
    )


def hcas(root: Path = ROOT) -> tuple[Hca, ...]:
    """The ports of this host's RDMA cards."""
    return tuple(_hca(port) for port in _port_folders(root))


def port_name(hca: str, port: int | str) -> str:
    """How a port is called in `Traffic`: `mlx5_0/1`."""
    return f"{hca}/{port}"


# ---------------------------------------------------------------- Linux's files


def _interfaces(root: Path) -> Iterator[tuple[str, Counter]]:
    for folder in sorted((root / "sys/class/net").glob("*")):
        counts = [_count(folder / f"statistics/{way}_bytes") for way in ("rx", "tx")]
        if folder.name == "lo" or (folder / "master").exists() or None in counts:
            continue
        stacked = tuple(link.name.removeprefix("upper_") for link in sorted(folder.glob("upper_*")))
        yield folder.name, Counter(counts[0] or 0, counts[1] or 0, stacked)


def _ports(root: Path) -> Iterator[tuple[str, Counter]]:
    for port in _port_folders(root):
        counts = [_count(port / f"counters/port_{way}_data") for way in ("rcv", "xmit")]
        if None in counts:
            continue
        hca = _hca(port)
        ipoib = hca.interfaces if hca.link_layer == "InfiniBand" else ()
        counter = Counter(WORD_BYTES * (counts[0] or 0), WORD_BYTES * (counts[1] or 0), ipoib)
        yield port_name(hca.name, hca.port), counter


def _port_folders(root: Path) -> list[Path]:
    return sorted((root / "sys/class/infiniband").glob("*/ports/*"))


def _hca(port: Path) -> Hca:
    card = port.parent.parent
    rate = re.match(r"([\d.]+) Gb/sec", _text(port / "rate"))
    return Hca(
        name=card.name,
        port=int(port.name),
        link_layer=_text(port / "link_layer"),
        active="ACTIVE" in _text(port / "state"),
        rate_bits_per_s=float(rate[1]) * GBIT if rate else None,
        interfaces=tuple(sorted(each.name for each in (card / "device/net").glob("*"))),
    )


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def _count(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None
