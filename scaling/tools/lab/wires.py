"""The links of a lab, made with pyroute2: a bridge per network, a veth pair per node and network.

They are created inside the lab's namespaces, so names cannot clash and links end with the namespaces.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from socket import if_nametoindex
from typing import Any

from msgspec.structs import replace

from scaling.errors import LaunchError
from scaling.tools.lab import namespaces, state
from scaling.tools.lab.state import SWITCH, Lab, Nic

# ---------------------------------------------------------------- shaping
# The burst must hold one segmentation offload packet (64 KiB): with 16 kB, TCP delivers 0.28 of the rate (ceiling:
# 0.956). Without offload the processor is the limit at high rates (0.32 at 4 Gb/s).


DISCIPLINE = "tbf"
OFFLOAD_BYTES, LEAST_OFFLOAD_BYTES = 65536, 3100  # one segmentation offload packet; two frames
PACKET_S = 0.005
QUEUE_S = 0.32
MOST_IN_32_BITS = 0xFFFFFFFF


def bucket(rate_bits_per_s: float) -> tuple[int, int, int]:
    """Compute burst, queue, and largest packet of the sender's segmentation offload, in bytes. Below 100 Mb/s
    packets shrink to 5 ms, so small messages are slow too."""
    bytes_per_s = rate_bits_per_s / 8
    offload = int(min(OFFLOAD_BYTES, max(LEAST_OFFLOAD_BYTES, bytes_per_s * PACKET_S)))
    burst = 1_000_000 if rate_bits_per_s >= 5e9 else 256_000 if rate_bits_per_s > 1e9 else offload + offload // 10
    return burst, int(min(4_000_000, max(2 * burst, 128_000, bytes_per_s * QUEUE_S))), offload


def shape(lab: Lab, rates_bits_per_s: Mapping[str, float]) -> Lab:
    """Shape all links of these networks (by card) and save it; also inside a node, by root. Raises UsageError."""
    with state.locked():
        lab = state.load(lab.name)
        for name in rates_bits_per_s:
            lab.nic(name, name)
        rates = ((nic, rates_bits_per_s.get(nic.name, nic.shaped_bits_per_s)) for nic in lab.nics)
        lab = replace(lab, nics=tuple(replace(nic, shaped_bits_per_s=float(rate)) for nic, rate in rates))
        apply(lab, [nic for nic in lab.nics if nic.name in rates_bits_per_s])
        state.save(lab)
        return lab


def apply(lab: Lab, nics: Iterable[Nic]) -> None:
    """Set the links of these networks to the lab's state. Raises LaunchError."""
    links = [(node, nic) for node in lab.nodes for nic in nics]
    with inside(lab, SWITCH) as ip:
        for node, nic in links:
            _set_rate(ip, lab.port(node, nic), lab.link_bits_per_s(node, nic))
    for room in lab.nodes:
        with inside(lab, room) as ip:
            for node, nic in links:
                if node == room:
                    _set_rate(ip, nic.name, lab.link_bits_per_s(node, nic))


def _set_rate(ip: Any, interface: str, rate_bits_per_s: float) -> None:
    register_tbf()
    burst, limit, offload = bucket(rate_bits_per_s)
    link, rate = if_nametoindex(interface), rate_bits_per_s / 8
    with needing(DISCIPLINE):
        ip.tc("replace", DISCIPLINE, index=link, rate=rate, burst=burst, limit=limit)
    ip.link("set", index=link, gso_max_size=offload)


@cache
def register_tbf() -> Any:
    """Extend pyroute2's tbf (once): rates above 34 Gb/s (64 bits of bytes/s), and a burst in bytes."""
    from pyroute2.netlink.rtnl import TC_H_ROOT, tcmsg  # type: ignore[import-untyped, unused-ignore]
    from pyroute2.netlink.rtnl.tcmsg import sched_tbf  # type: ignore[import-untyped, unused-ignore]

    class Tbf:
        """A discipline for `IPRoute.tc`; `rate` is in bytes/s, sizes in bytes."""

        parent = TC_H_ROOT

        class options(sched_tbf.options):  # type: ignore[misc, unused-ignore]
            added = (("TCA_TBF_RATE64", "uint64"), ("TCA_TBF_PRATE64", "uint64"), ("TCA_TBF_BURST", "uint32"))
            nla_map = (*sched_tbf.options.nla_map, *added)

        @staticmethod
        def fix_request(request: dict[str, Any]) -> None:
            """Remove `rate`, which is also an attribute of all disciplines, of another type."""
            request.pop("rate", None)

        @staticmethod
        def get_parameters(wanted: dict[str, Any]) -> dict[str, Any]:
            rate, burst, limit = (int(wanted[name]) for name in ("rate", "burst", "limit"))
            sizes = {"rate": min(rate, MOST_IN_32_BITS), "mtu": 0, "buffer": 0, "limit": limit}
            attributes = [["TCA_TBF_PARMS", sizes], ["TCA_TBF_RTAB", True], ["TCA_TBF_BURST", burst]]
            return {"attrs": [*attributes, *([["TCA_TBF_RATE64", rate]] if rate > MOST_IN_32_BITS else [])]}

    tcmsg.plugins["tbf"] = Tbf
    return Tbf


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


def connect(lab: Lab) -> None:
    """Create all links of a new lab: with addresses and up, not shaped yet."""
    with inside(lab, SWITCH) as ip:
        for position, nic in enumerate(lab.nics):
            bridge = f"br{position}"
            with needing("bridge"):
                ip.link("add", ifname=bridge, kind="bridge")
            ip.link("set", index=if_nametoindex(bridge), state="up")
            for node in lab.nodes:
                _plug(ip, lab, node, nic, if_nametoindex(bridge))
    for number, node in enumerate(lab.nodes, 1):
        with inside(lab, node) as ip:
            ip.link("set", index=if_nametoindex("lo"), state="up")
            for nic in lab.nics:
                prefix = int(nic.subnet.partition("/")[2])
                ip.addr("add", index=if_nametoindex(nic.name), address=nic.address(number), prefixlen=prefix)
                ip.link("set", index=if_nametoindex(nic.name), state="up")


def _plug(ip: Any, lab: Lab, node: str, nic: Nic, bridge: int) -> None:
    port = lab.port(node, nic)
    with lab.opened(node) as descriptor, needing("veth pair"):
        ip.link("add", ifname=port, kind="veth", peer={"ifname": nic.name, "net_ns_fd": descriptor})
    ip.link("set", index=if_nametoindex(port), master=bridge, state="up")
