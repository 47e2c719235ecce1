"""Which address and interface a rank uses to meet the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Interface, IPv4Network

from scaling.errors import LaunchError
from scaling.points import Record
from scaling.records import HostInfo, Nic

LOOPBACK = "127.0.0.1"


class Place(Record, frozen=True):
    """A host's address and interface on the chosen network."""

    address: str
    interface: str


def choose(hosts: Iterable[HostInfo]) -> dict[str, Place]:
    """For each host name its place on the fastest network that all share; loopback for one host alone.

    Raises LaunchError when hosts share no IPv4 subnet.
    """
    by_name = {host.hostname: host for host in hosts}
    if len(by_name) == 1:
        return dict.fromkeys(by_name, Place(address=LOOPBACK, interface="lo"))
    networks = [_networks(host) for host in by_name.values()]
    shared = {network for network in set.intersection(*map(set, networks)) if _reaches(networks, network)}
    if not shared:
        raise LaunchError(f"the hosts {', '.join(sorted(by_name))} share no IPv4 network")
    best = max(shared, key=lambda network: (_slowest(networks, network), str(network)))
    return {
        name: Place(address=found[best].address, interface=found[best].name)
        for name, found in zip(by_name, networks, strict=True)
    }


def _networks(host: HostInfo) -> dict[IPv4Network, Nic]:
    usable = (nic for nic in host.nics if nic.up and not nic.address.startswith("127."))
    return {IPv4Interface(f"{nic.address}/{nic.netmask}").network: nic for nic in usable}


def _reaches(networks: list[dict[IPv4Network, Nic]], network: IPv4Network) -> bool:
    """Not a bridge of virtual machines or containers, which has the same address on every host."""
    addresses = [found[network].address for found in networks]
    return len(set(addresses)) == len(addresses)


def _slowest(networks: list[dict[IPv4Network, Nic]], network: IPv4Network) -> float:
    return min(found[network].speed_bits_per_s or 0.0 for found in networks)
