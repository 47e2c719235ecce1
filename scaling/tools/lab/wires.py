"""The links of a lab, made with pyroute2: a bridge per network, a veth pair per node and network.

They are created inside the lab's namespaces, so names cannot clash and links end with the namespaces.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from scaling.errors import LaunchError, UsageError, near
from scaling.records.point import Record
from scaling.tools.lab import namespaces, state
from scaling.tools.lab.state import SWITCH, Lab, Nic

# ---------------------------------------------------------------- shaping
# The burst must hold one segmentation offload packet (64 KiB): with 16 kB, TCP delivers 0.28 of the rate (ceiling:
# 0.956). Without offload the processor is the limit at high rates (0.32 at 4 Gb/s).


DISCIPLINE = "tbf"
OFFLOAD_BYTES, LEAST_OFFLOAD_BYTES = 65536, 3100  # one segmentation offload packet; two frames
PACKET_S = 0.005
QUEUE_S = 0.32


class Bucket(Record, frozen=True, kw_only=True):
    """Sizes in bytes: burst, queue, and largest packet of the sender's segmentation offload."""

    burst_bytes: int
    limit_bytes: int
    offload_bytes: int


def bucket(rate_bits_per_s: float) -> Bucket:
    """Compute the bucket of a rate. Below 100 Mb/s packets shrink to 5 ms, so small messages are slow too."""
    bytes_per_s = rate_bits_per_s / 8
    offload = int(min(OFFLOAD_BYTES, max(LEAST_OFFLOAD_BYTES, bytes_per_s * PACKET_S)))
    burst = 1_000_000 if rate_bits_per_s >= 5e9 else 256_000 if rate_bits_per_s > 1e9 else offload + offload // 10
    limit = int(min(4_000_000, max(2 * burst, 128_000, bytes_per_s * QUEUE_S)))
    return Bucket(burst_bytes=burst, limit_bytes=limit, offload_bytes=offload)


def shape(lab: Lab, rates_bits_per_s: Mapping[str, float]) -> Lab:
    """Shape all links of these networks (by card) and save it; also inside a node, by root. Raises UsageError."""
    with state.locked():
        lab = state.load(lab.name)
        for name in rates_bits_per_s:
            nic_of(lab, name, name)
        rates = ((nic, rates_bits_per_s.get(nic.name, nic.shaped_bits_per_s)) for nic in lab.nics)
        lab = replace(lab, nics=tuple(replace(nic, shaped_bits_per_s=float(rate)) for nic, rate in rates))
        apply(lab, [nic for nic in lab.nics if nic.name in rates_bits_per_s])
        state.save(lab)
        return lab


def apply(lab: Lab, nics: Iterable[Nic]) -> None:
    """Set the links of these networks to the lab's state. Raises LaunchError."""
    nics = tuple(nics)
    with inside(lab, SWITCH) as ip:
        for node in lab.nodes:
            for nic in nics:
                _set_rate(ip, lab.port(node, nic), lab.link_bits_per_s(node, nic))
    for node in lab.nodes:
        with inside(lab, node) as ip:
            for nic in nics:
                _set_rate(ip, nic.name, lab.link_bits_per_s(node, nic))


def _set_rate(ip: Any, interface: str, rate_bits_per_s: float) -> None:
    from scaling.tools.lab import tbf

    tbf.register()
    found, link = bucket(rate_bits_per_s), index(interface)
    with needing(DISCIPLINE):
        sizes = {"burst": found.burst_bytes, "limit": found.limit_bytes}
        ip.tc("replace", DISCIPLINE, index=link, rate=rate_bits_per_s / 8, **sizes)
    ip.link("set", index=link, gso_max_size=found.offload_bytes)


def nic_of(lab: Lab, name: str, source: str) -> Nic:
    """Find a network by its card. Raises UsageError with `source`."""
    nic = lab.nic(name)
    if nic is None:
        raise UsageError(
            f"{source}: lab {lab.name} has no card {name!r}; {near(name, [n.name for n in lab.nics])}"
        )
    return nic


# ---------------------------------------------------------------- wires

_LACKS = {
    errno.EOPNOTSUPP: "modprobe veth bridge",
    errno.ENOENT: "modprobe sch_tbf",
    errno.EPERM: "root with CAP_NET_ADMIN is needed",
}


def library() -> Any:
    """Import pyroute2. Raises LaunchError if it is not installed."""
    try:
        import pyroute2  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise LaunchError("the lab needs pyroute2, which is not installed: pip install 'pyroute2>=0.7'") from None
    return pyroute2


@contextmanager
def inside(lab: Lab, room: str) -> Iterator[Any]:
    pyroute2 = library()
    with lab.opened(room) as descriptor, namespaces.network(descriptor), pyroute2.IPRoute() as ip:
        yield ip


@contextmanager
def needing(what: str) -> Iterator[None]:
    """Turn the kernel's refusal into a LaunchError: this kernel lacks `what`."""
    refusal = library().NetlinkError
    try:
        yield
    except refusal as error:
        mend = _LACKS.get(error.code, f"error {error.code}")
        raise LaunchError(f"this kernel provides no {what} ({error.args[1]}): {mend}") from None


def index(name: str) -> int:
    return socket.if_nametoindex(name)


def connect(lab: Lab) -> None:
    """Create all links of a new lab: with addresses and up, not shaped yet."""
    with inside(lab, SWITCH) as ip:
        for position, nic in enumerate(lab.nics):
            bridge = f"br{position}"
            with needing("bridge"):
                ip.link("add", ifname=bridge, kind="bridge")
            ip.link("set", index=index(bridge), state="up")
            for node in lab.nodes:
                _plug(ip, lab, node, nic, index(bridge))
    for number, node in enumerate(lab.nodes, 1):
        with inside(lab, node) as ip:
            ip.link("set", index=index("lo"), state="up")
            for nic in lab.nics:
                ip.addr("add", index=index(nic.name), address=nic.address(number), prefixlen=nic.prefix)
                ip.link("set", index=index(nic.name), state="up")


def _plug(ip: Any, lab: Lab, node: str, nic: Nic, bridge: int) -> None:
    port = lab.port(node, nic)
    with lab.opened(node) as descriptor, needing("veth pair"):
        ip.link("add", ifname=port, kind="veth", peer={"ifname": nic.name, "net_ns_fd": descriptor})
    ip.link("set", index=index(port), master=bridge, state="up")


def switch_card(lab: Lab, node: str, nic: Nic, state: str) -> None:
    with inside(lab, node) as ip:
        ip.link("set", index=index(nic.name), state=state)
