"""Where ranks meet: the fastest network that all hosts share, and none that only looks shared."""

from __future__ import annotations

import pytest

from scaling.errors import LaunchError
from scaling.network import Place, choose
from scaling.records import HostInfo, Nic
from tests.inline import host


def nic(name: str, address: str, gbit: float | None = None, *, up: bool = True) -> Nic:
    speed = None if gbit is None else gbit * 1e9
    return Nic(name=name, address=address, netmask="255.255.255.0", up=up, mtu=1500, speed_bits_per_s=speed)


LO = Nic(name="lo", address="127.0.0.1", netmask="255.0.0.0", up=True, mtu=65536)


def on(name: str, *nics: Nic) -> HostInfo:
    return host(name, nics=(LO, *nics))


def test_one_host_meets_on_loopback() -> None:
    assert choose([on("a", nic("eth0", "10.0.0.1"))]) == {"a": Place(address="127.0.0.1", interface="lo")}


def test_the_fastest_shared_network_by_its_slowest_card() -> None:
    one = on("a", nic("eth0", "10.20.0.1", 10), nic("ib0", "10.10.0.1", 100))
    two = on("b", nic("eno1", "10.20.0.2", 10), nic("ib1", "10.10.0.2", 100))
    places = choose([one, two])
    assert places == {
        "a": Place(address="10.10.0.1", interface="ib0"),
        "b": Place(address="10.10.0.2", interface="ib1"),
    }
    slow = on("c", nic("eth0", "10.20.0.3", 10), nic("ib0", "10.10.0.3", 1))
    assert choose([one, two, slow])["a"].interface == "eth0"


def test_a_bridge_with_the_same_address_everywhere_is_no_network() -> None:
    docker = nic("docker0", "172.17.0.1", 400)
    one, two = on("a", docker, nic("eth0", "10.0.0.1", 1)), on("b", docker, nic("eth0", "10.0.0.2", 1))
    assert {place.interface for place in choose([one, two]).values()} == {"eth0"}


@pytest.mark.parametrize("other", [nic("eth0", "10.0.1.2"), nic("eth0", "10.0.0.2", up=False)])
def test_hosts_that_share_nothing_are_told_so(other: Nic) -> None:
    with pytest.raises(LaunchError, match="the hosts a, b share no IPv4 network"):
        choose([on("a", nic("eth0", "10.0.0.1")), on("b", other)])
