"""Machines and pods as clouds and clusters make them: addresses and routes, as `ip addr` and `ip route` print.

Calico after what users posted (projectcalico/calico issue 1469, and the project's FAQ on 169.254.1.1, which AWS's
VPC CNI uses as well), GCE after `ip addr` and `ip route` of its Debian images. DGX, p4d, Azure and rails as their
guides describe them; the numbers are made up.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from scaling.records.host import Hca, HostInfo, Nic, Route
from tests.support.inline import host

LO = Nic(name="lo", address="127.0.0.1", netmask="255.0.0.0", up=True, mtu=65536)
DOCKER = ("docker0 172.17.0.1/16", "172.17.0.0/16 dev docker0")


def machine(name: str, addresses: Iterable[str], routes: Iterable[str], *hcas: Hca) -> HostInfo:
    """A host of `eth0 10.0.0.1/24 10` (the speed in Gb/s, if the kernel knows one), `default via ... dev eth0`."""
    nics = (LO, *map(_nic, addresses))
    return host(name, nics=nics, routes=tuple(map(_route, routes)), hcas=hcas, boot_id=f"boot-{name}")


def _nic(text: str) -> Nic:
    name, address, *gbit = text.split()
    one = IPv4Interface(address)
    speed = float(gbit[0]) * 1e9 if gbit else None
    return Nic(name=name, address=str(one.ip), netmask=str(one.netmask), up=True, mtu=1500, speed_bits_per_s=speed)


def _route(text: str) -> Route:
    words = text.split()
    to = "0.0.0.0/0" if words[0] == "default" else str(IPv4Network(words[0]))
    metric = int(words[words.index("metric") + 1]) if "metric" in words else 0
    return Route(destination=to, interface=words[words.index("dev") + 1], metric=metric)


def card(name: str, *nets: str, link_layer: str = "InfiniBand", gbit: float | None = 200, port: int = 1) -> Hca:
    rate = None if gbit is None else gbit * 1e9
    return Hca(name=name, port=port, link_layer=link_layer, active=True, rate_bits_per_s=rate, interfaces=nets)


# ---------------------------------------------------------------- pods and machines of clouds


def calico(name: str, number: int) -> HostInfo:
    """A pod, also of AWS's VPC CNI: an address of its own, and all else by a made-up gateway."""
    routes = ("default via 169.254.1.1 dev eth0", "169.254.1.1 dev eth0 scope link")
    return machine(name, [f"eth0 192.168.{number}.131/32"], routes)


def cilium(name: str, number: int) -> HostInfo:
    gateway = f"10.0.{number}.170"
    return machine(name, [f"eth0 10.0.{number}.23/32"], [f"default via {gateway} dev eth0", f"{gateway} dev eth0"])


def flannel(name: str, number: int) -> HostInfo:
    """A pod of a node that has a /24."""
    gateway = f"10.244.{number}.1"
    routes = [f"default via {gateway} dev eth0", f"10.244.0.0/16 via {gateway} dev eth0"]
    return machine(name, [f"eth0 10.244.{number}.7/24"], [*routes, f"10.244.{number}.0/24 dev eth0 scope link"])


def gce(name: str, number: int) -> HostInfo:
    address, route = DOCKER
    routes = ["default via 10.128.0.1 dev ens4", "10.128.0.1 dev ens4 scope link", route]
    return machine(name, [address, f"ens4 10.128.0.{number + 1}/32"], routes)


def racks(name: str, number: int) -> HostInfo:
    """Management in one subnet, and a faster network with a subnet per rack."""
    routes = [f"default via 10.20.{number}.1 dev data0", f"10.20.{number}.0/24 dev data0", "10.0.0.0/24 dev mgmt0"]
    return machine(name, [f"mgmt0 10.0.0.{number}/24 1", f"data0 10.20.{number}.9/24 25"], routes)


def rails(name: str, number: int) -> HostInfo:
    """Two rails of RoCE, each link to its leaf a /31, and management in a subnet per rack."""
    addresses = [f"eno1 10.0.{number}.9/24 10"]
    routes = [f"default via 10.0.{number}.1 dev eno1", f"10.0.{number}.0/24 dev eno1"]
    for rail in (0, 1):
        mine = IPv4Address(f"10.10{rail}.0.{2 * number}")
        addresses.append(f"rail{rail} {mine + 1}/31 400")
        routes += [f"10.10{rail}.0.0/16 via {mine} dev rail{rail}", f"{mine}/31 dev rail{rail}"]
    return machine(name, addresses, routes)


# ---------------------------------------------------------------- machines with InfiniBand or EFA


def dgx(name: str, number: int) -> HostInfo:
    """Eight rails of IPoIB, whose speed the kernel does not tell, beside 10 GbE and a service processor."""
    docker, route = DOCKER
    ib = [f"ib{rail} 172.16.{rail}.{number}/24" for rail in range(8)]
    cards = (card(f"mlx5_{rail}", f"ib{rail}", gbit=400) for rail in range(8))
    routes = ["default via 10.33.0.1 dev eno1", "10.33.0.0/16 dev eno1", route]
    routes += [f"172.16.{rail}.0/24 dev ib{rail}" for rail in range(8)]
    addresses = [f"bmc0 169.254.3.{number}/24", docker, f"eno1 10.33.0.{number}/16 10", *ib]
    return machine(name, addresses, routes, *cards)


def p4d(name: str, number: int) -> HostInfo:
    """Four cards in one subnet, of which packets take the second, and four of EFA beside them."""
    names = ("ens96", "ens32", "ens64", "ens128")
    addresses = [f"{nic} 172.31.1{place}.{number}/16" for place, nic in enumerate(names)]
    metrics = {"ens32": 512, "ens64": 768, "ens96": 1024, "ens128": 1280}
    routes = [f"172.31.0.0/16 dev {nic} metric {metrics[nic]}" for nic in names]
    efa = (card(f"rdmap{bus}s27", link_layer="Unknown", gbit=100) for bus in (16, 32, 144, 160))
    return machine(name, addresses, ["default via 172.31.0.1 dev ens32 metric 512", *routes], *efa)


def azure(name: str, number: int) -> HostInfo:
    """InfiniBand in a /16 of its own beside accelerated Ethernet, whose virtual function is an RDMA card too."""
    routes = ["default via 10.0.0.1 dev eth0", "10.0.0.0/24 dev eth0", "172.16.0.0/16 dev ib0"]
    cards = (card("mlx5_an0", "eth0", link_layer="Ethernet", gbit=100), card("mlx5_ib0", "ib0"))
    return machine(name, [f"eth0 10.0.0.{number + 3}/24 50", f"ib0 172.16.1.{number}/16"], routes, *cards)


# ---------------------------------------------------------------- /proc/net/route


def _line(interface: str, to: str, via: str, mask: str, metric: int = 0) -> str:
    numbers = [f"{struct.unpack('=I', IPv4Address(text).packed)[0]:08X}" for text in (to, via, mask)]
    fields = (interface, numbers[0], numbers[1], "0003", "0", "0", str(metric), numbers[2], "0", "0", "0")
    return "\t".join(fields)


def _file(*lines: str) -> str:
    head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    return "".join(f"{line}\n" for line in (head, *lines))


ROUTE_FILES = {
    "flannel": _file(
        _line("eth0", "0.0.0.0", "10.244.1.1", "0.0.0.0"),
        _line("eth0", "10.244.0.0", "10.244.1.1", "255.255.0.0"),
        _line("eth0", "10.244.1.0", "0.0.0.0", "255.255.255.0"),
    ),
    "a node of many": _file(
        *(_line("vxlan.calico", f"10.244.{node}.0", f"10.244.{node}.0", "255.255.255.0") for node in range(256)),
        _line("eth0", "0.0.0.0", "192.168.1.254", "0.0.0.0"),
    ),
    "a node of calico": _file(
        _line("eno2", "0.0.0.0", "192.168.1.254", "0.0.0.0"),
        _line("tunl0", "10.244.4.64", "192.168.5.105", "255.255.255.192"),
        _line("cali89835606d4a", "10.244.72.3", "0.0.0.0", "255.255.255.255"),
        _line("*", "10.244.72.0", "0.0.0.0", "255.255.255.192"),
        _line("eno2", "192.168.0.0", "0.0.0.0", "255.255.240.0"),
    ),
}
