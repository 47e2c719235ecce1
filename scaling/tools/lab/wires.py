"""The links of a lab, made with pyroute2: a bridge per network, a veth pair per node and network.

All of it is made inside the lab's namespaces, so no name can clash with one outside, and ends with them.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scaling.errors import LaunchError
from scaling.tools.lab import namespaces
from scaling.tools.lab.state import SWITCH, Lab, Nic

_LACKS = {
    errno.EOPNOTSUPP: "modprobe veth bridge",
    errno.ENOENT: "modprobe sch_tbf",
    errno.EPERM: "it takes root with CAP_NET_ADMIN",
}


def library() -> Any:
    """pyroute2. Raises LaunchError when it is not installed."""
    try:
        import pyroute2  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise LaunchError("the lab needs pyroute2, which is not installed: pip install 'pyroute2>=0.7'") from None
    return pyroute2


@contextmanager
def inside(lab: Lab, room: str) -> Iterator[Any]:
    """An IPRoute in the network namespace of a node or of the switch."""
    pyroute2 = library()
    with lab.opened(room) as descriptor, namespaces.network(descriptor), pyroute2.IPRoute() as ip:
        yield ip


@contextmanager
def needing(what: str) -> Iterator[None]:
    """Turns the kernel's refusal into a LaunchError: this kernel lacks `what`."""
    refusal = library().NetlinkError
    try:
        yield
    except refusal as error:
        mend = _LACKS.get(error.code, f"error {error.code}")
        raise LaunchError(f"this kernel makes no {what} ({error.args[1]}): {mend}") from None


def index(name: str) -> int:
    """Of an interface, in the network namespace that the thread is in."""
    return socket.if_nametoindex(name)


def connect(lab: Lab) -> None:
    """Make all links of a lab whose namespaces are new: addresses set, all up, not shaped yet."""
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
    """A veth pair from the bridge to a node's card."""
    port = lab.port(node, nic)
    with lab.opened(node) as descriptor, needing("veth pair"):
        ip.link("add", ifname=port, kind="veth", peer={"ifname": nic.name, "net_ns_fd": descriptor})
    ip.link("set", index=index(port), master=bridge, state="up")


def switch_card(lab: Lab, node: str, nic: Nic, state: str) -> None:
    """Take a node's card `down` or `up`; its address stays."""
    with inside(lab, node) as ip:
        ip.link("set", index=index(nic.name), state=state)
