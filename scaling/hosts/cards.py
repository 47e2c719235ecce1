"""Which RDMA cards stand behind a network's interfaces, and how fast they are. Pure.

NCCL's own verbs take ports whose link layer is InfiniBand or Ethernet (nccl/src/transport/net_ib/init.cc); others
(EFA, Slingshot) it reaches by a plugin, which NCCL_NET=IB would exclude (nccl/src/transport/net.cc).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scaling.records.host import Hca, HostInfo, Nic
from scaling.records.network import ANY

INFINIBAND = "InfiniBand"
VERBS = (INFINIBAND, "Ethernet")


def behind(host: HostInfo, interface: str) -> tuple[Hca, ...]:
    """The InfiniBand ports behind an interface, up or not. An Ethernet card does RDMA only where a fabric file
    says so: networks that are not set up for RoCE lose packets with it."""
    return tuple(hca for hca in host.hcas if interface in hca.interfaces and hca.link_layer == INFINIBAND)


def up(ports: Iterable[Hca]) -> tuple[Hca, ...]:
    """Those that are active and open."""
    return tuple(port for port in ports if port.active and port.opens)


def named(host: HostInfo, ports: Iterable[Hca]) -> tuple[str, ...]:
    """As NCCL_IB_HCA calls ports: `mlx5_0`, or `mlx4_0:2` for one of several that the card has."""
    all_ports = [hca.name for hca in host.hcas]
    called = (hca.name if all_ports.count(hca.name) == 1 else f"{hca.name}:{hca.port}" for hca in ports)
    return tuple(dict.fromkeys(called))


def of_hosts(hosts: Iterable[HostInfo]) -> dict[str, float | None]:
    """The active ports of all hosts and the rate of the slowest of each name."""
    found: dict[str, float | None] = {}
    for host in hosts:
        for port in up(host.hcas):
            (name,) = named(host, [port])
            known = [rate for rate in (found.get(name), port.rate_bits_per_s) if rate]
            found[name] = min(known, default=None)
    return found


def need_plugin(hosts: Mapping[str, HostInfo], wanted: Mapping[str, str]) -> bool:
    """Whether NCCL reaches any of these cards (by host, with commas) by a plugin alone; cards that no host tells
    of are taken to have verbs."""
    return any(
        card.link_layer not in VERBS
        for name, cards in wanted.items()
        for card in hosts[name].hcas
        if card.link_layer and _is_among(card, cards)
    )


def _is_among(card: Hca, cards: str) -> bool:
    return bool(up([card])) if cards == ANY else card.name in {one.partition(":")[0] for one in cards.split(",")}


def rate_bits_per_s(host: HostInfo, nic: Nic) -> float | None:
    """What an interface carries: as the kernel says, or else its card's port. IPoIB tells of no speed on many
    kernels (openshift/assisted-installer-agent pull request 1492)."""
    if nic.speed_bits_per_s is not None:
        return nic.speed_bits_per_s
    rates = [hca.rate_bits_per_s for hca in host.hcas if nic.name in hca.interfaces and hca.active]
    return min((rate for rate in rates if rate), default=None)
