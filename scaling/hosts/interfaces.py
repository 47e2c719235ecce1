"""The RDMA cards of this host, and byte and error counters of its network interfaces and ports, from sysfs.

    /sys/class/net/NAME/
        statistics/{rx,tx}_{bytes,errors,dropped}
        dev_port                                     N - 1 for port N of its card; in older kernels dev_id
    /sys/class/infiniband/CARD/ports/N/              InfiniBand, RoCE, EFA, Omni-Path
        counters/port_{rcv,xmit}_data                in words of 4 bytes
        hw_counters/{rx,tx}_bytes                    EFA: all bytes of the port
        counters/{symbol_error,...}                 errors of the link, which stop at their largest value
        counters/port_xmit_wait                      ticks in which data waited to be sent
        hw_counters/{out_of_sequence,...}            RoCE: lost packets, and notifications of congestion (CNP)
    /sys/class/cxi/CARD/device/telemetry/hni_sts_{rx,tx}_ok_octets        Slingshot: VALUE@TIME

(linux/Documentation/ABI/stable/sysfs-class-infiniband, ABI/testing/sysfs-class-net and
sysfs-class-net-statistics; linux/drivers/infiniband/hw/efa/efa_verbs.c)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from scaling.hosts.proc import text
from scaling.records.host import Hca
from scaling.records.network import GBIT
from scaling.records.telemetry import Traffic

# ---------------------------------------------------------------- NCCL's plugins
# NCCL loads a network plugin with dlopen: libnccl-net.so, or what NCCL_NET_PLUGIN names (nccl/src/plugin).
# Google's FasTrak and TCPX need no RDMA card.


def nccl_plugins(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return the files of network plugins that NCCL would find, by LD_LIBRARY_PATH or the loader's cache."""
    folders = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    found = [str(file) for folder in folders for file in sorted(folder.glob("libnccl-net*.so*"))]
    with suppress(OSError):
        cache = (root / "etc/ld.so.cache").read_bytes()
        found += [path.decode(errors="replace") for path in re.findall(rb"/[^\0]*/libnccl-net[^\0/]*\.so", cache)]
    named = environ.get("NCCL_NET_PLUGIN", "")
    found += [named] if named not in ("", "none") else []
    return tuple(dict.fromkeys(found)) if named != "none" else ()


# ---------------------------------------------------------------- RDMA cards

ROOT = Path("/")
NET, INFINIBAND, SLINGSHOT = Path("sys/class/net"), Path("sys/class/infiniband"), Path("sys/class/cxi")
WORD_BYTES = 4
PORT_ERRORS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards")
# Of mlx5 (NVIDIA, "Understanding mlx5 Linux Counters and Status Parameters"); other drivers have some of them.
HW_ERRORS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "np_cnp_sent", "rp_cnp_handled")
MBIT = 1e6


def hcas(root: Path = ROOT) -> tuple[Hca, ...]:
    """Return the ports of this host's RDMA cards."""
    return tuple(describe(port, root) for port in ports(root))


def ports(root: Path = ROOT) -> list[Path]:
    """Return the folder of each port; a Slingshot card is one port."""
    return [*sorted((root / INFINIBAND).glob("*/ports/*")), *sorted((root / SLINGSHOT).glob("*"))]


def identity(port: Path) -> tuple[str, int, str]:
    """Return a port's card, its number there and its link layer, without asking the card: firmware is slow."""
    if _is_verbs(port):
        return port.parent.parent.name, int(port.name), text(port / "link_layer")
    return port.name, 1, "Slingshot"


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
        counts=carried(port) is not None,
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
    """Return the counters of errors and congestion of a verbs port; empty if it has none."""
    files = {
        **dict.fromkeys((*PORT_ERRORS, "port_xmit_wait"), "counters"),
        **dict.fromkeys(HW_ERRORS, "hw_counters"),
    }
    found = {name: count(port / folder / name) for name, folder in files.items()}
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


# ---------------------------------------------------------------- interfaces

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
            # without counters that did not rise
            errors={
                error: value - before[name].errors[error]
                for error, value in now[name].errors.items()
                if value > before[name].errors.get(error, value)
            },
        )
        for name, (received, sent) in moved.items()
        if received >= 0 and sent >= 0 and not now[name].is_part
    )


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
        received, sent = (count(folder / f"statistics/{way}_bytes") for way in ("rx", "tx"))
        if folder.name == "lo" or received is None or sent is None:
            continue
        stacked = tuple(link.name.removeprefix("upper_") for link in sorted(folder.glob("upper_*")))
        errors = {name: count(folder / f"statistics/{name}") for name in ERRORS}
        known = {name: value for name, value in errors.items() if value is not None}
        yield folder.name, Counter(received, sent, stacked, (folder / "master").exists(), known)


def _ports(root: Path) -> Iterator[tuple[str, Counter]]:
    for port in ports(root):
        if (found := carried(port)) is not None:
            card, number, link_layer = identity(port)
            own = netdevs(port, root) if link_layer in COUNT_ALL else ()
            yield port_name(card, number), Counter(*found, own, errors=errors(port))
