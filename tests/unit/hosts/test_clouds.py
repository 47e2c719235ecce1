"""Where ranks meet on machines and pods as clouds and clusters make them, and what a report says of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from scaling.errors import LaunchError
from scaling.hosts.fabric import Entry
from scaling.hosts.networks import choose
from scaling.records.host import HostInfo
from scaling.records.network import Network, describe
from tests.support import clouds


def interfaces(network: Network) -> dict[str, str]:
    return {name: place.interface for name, place in network.places.items()}


def three(make: Callable[[str, int], HostInfo]) -> list[HostInfo]:
    return [make(name, number) for number, name in enumerate("abc", 1)]


@pytest.mark.parametrize(
    ("make", "interface"),
    [
        (clouds.calico, "eth0"),
        (clouds.cilium, "eth0"),
        (clouds.flannel, "eth0"),
        (clouds.gce, "ens4"),
        (clouds.rails, "rail1"),
    ],
)
def test_where_no_subnet_is_shared_the_routes_tell(make: Callable[[str, int], HostInfo], interface: str) -> None:
    found = choose(three(make))
    assert set(interfaces(found).values()) == {interface}
    assert (found.routed, found.subnet) == (True, "")


def test_what_is_routed_is_said_to_be_and_how_far_it_is_proved() -> None:
    found = choose(three(clouds.calico))
    why = "the hosts share no subnet; their routes to each other take this interface"
    assert describe(found) == f"eth0 (routed, not tried): {why}"
    assert describe(replace(found, connections=6)).startswith("eth0 (routed, proved by 6 connections): ")
    rails = choose(three(clouds.rails))
    assert describe(rails) == (
        "rail1 (routed, not tried, 400 Gb/s): the fastest of 3 networks that are routed between all hosts, which "
        "share no subnet"
    )


def test_a_faster_network_is_taken_though_it_is_routed() -> None:
    found = choose(three(clouds.racks))
    assert describe(found) == (
        "data0 (routed, not tried, 25 Gb/s): the fastest of 2 networks between all hosts, whose subnet they share "
        "or that are routed"
    )
    slow = {"data": Entry(interface="data0", rate_gbit=1)}
    assert set(interfaces(choose(three(clouds.racks), named=slow)).values()) == {"mgmt0"}


def test_pods_on_one_node_and_on_others() -> None:
    loopback, eth0 = clouds.flannel("d", 1).nics
    near = replace(clouds.flannel("d", 1), nics=(loopback, replace(eth0, address="10.244.1.9")))
    assert set(interfaces(choose([*three(clouds.flannel), near])).values()) == {"eth0"}


def test_an_interface_that_leads_elsewhere_is_not_taken() -> None:
    """b reaches a by its second interface, a's route comes back to the first."""
    one = clouds.machine("a", ["eth0 10.1.0.1/24"], ["default via 10.1.0.254 dev eth0"])
    routes = ["default via 10.2.0.254 dev eth1", "10.3.0.0/24 dev eth0"]
    two = clouds.machine("b", ["eth0 10.3.0.2/24"], routes)
    with pytest.raises(LaunchError, match="no interface of each leads to the others"):
        choose([one, two])
    named = choose([one, two], "eth0")  # asked for by name it is taken, and a connection has the last word
    assert named.routed


@pytest.mark.parametrize("word", ["eth0", "10.244.0.0/16", "pods"])
def test_a_named_network_needs_no_common_subnet(word: str) -> None:
    found = choose(three(clouds.flannel), word, {"pods": Entry(subnet="10.244.0.0/16", rate_gbit=25)})
    assert {name: place.address for name, place in found.places.items()} == {
        "a": "10.244.1.7",
        "b": "10.244.2.7",
        "c": "10.244.3.7",
    }
    assert (
        describe(found)
        == {
            "eth0": "eth0 (routed, not tried, 25 Gb/s)",
            "10.244.0.0/16": "10.244.0.0/16 (eth0, routed, not tried, 25 Gb/s)",
            "pods": "pods (eth0, 10.244.0.0/16, routed, not tried, 25 Gb/s)",
        }[word]
    )


def test_infiniband_is_the_fastest_though_the_kernel_knows_no_speed_of_it() -> None:
    found = choose(three(clouds.dgx))
    assert describe(found) == (
        "ib7 (172.16.7.0/24, 400 Gb/s, NCCL: RDMA, its own choice of mlx5_0..7 at 400 Gb/s each): the fastest of "
        "9 networks that all hosts share"
    )


def test_what_nccl_takes_beside_ethernet_is_said() -> None:
    found = choose(three(clouds.azure))
    assert set(interfaces(found).values()) == {"ib0"}
    slow = choose(three(clouds.azure), named={"ib": Entry(interface="ib0", rate_gbit=1)})
    assert describe(slow) == (
        "eth0 (10.0.0.0/24, 50 Gb/s, NCCL: RDMA, its own choice of mlx5_an0, mlx5_ib0 at 100 Gb/s each): the "
        "fastest of 2 networks that all hosts share"
    )
    assert describe(slow, nccl=False) == (
        "eth0 (10.0.0.0/24, 50 Gb/s): the fastest of 2 networks that all hosts share"
    )


def test_one_rail_of_eight_is_said_to_be_one() -> None:
    assert describe(choose(three(clouds.dgx), "ib0")) == (
        "ib0 (172.16.0.0/24, 400 Gb/s, NCCL: RDMA by mlx5_0, 1 of 8 cards)"
    )


def test_of_cards_in_one_subnet_the_one_that_packets_take() -> None:
    for word in ("auto", "172.31.0.0/16"):
        assert set(interfaces(choose(three(clouds.p4d), word)).values()) == {"ens32"}


def test_efa_is_left_to_nccls_plugin() -> None:
    auto = choose(three(clouds.p4d))
    assert describe(auto) == (
        "ens32 (172.31.0.0/16, NCCL: its plugin, its own choice of rdmap144s27, rdmap160s27, rdmap16s27, "
        "rdmap32s27 at 100 Gb/s each): the only network that all hosts share"
    )
    named = choose(three(clouds.p4d), "efa", {"efa": Entry(interface="ens32", hca="rdmap16s27")})
    assert {(place.hca, place.plugin) for place in named.places.values()} == {("rdmap16s27", True)}
    assert describe(named) == "efa (ens32, 172.31.0.0/16, NCCL: its plugin by rdmap16s27, 1 of 4 cards)"
    sockets = choose(three(clouds.p4d), "ens32")
    assert {(place.hca, place.plugin) for place in sockets.places.values()} == {("", False)}


def test_cards_that_a_container_was_not_given_are_not_taken() -> None:
    hosts = [replace(one, hcas=tuple(replace(hca, opens=False) for hca in one.hcas)) for one in three(clouds.dgx)]
    for word in ("auto", "ib0"):
        assert {place.hca for place in choose(hosts, word).places.values()} == {""}


def test_a_port_of_several_is_named_with_its_number() -> None:
    two_ports = [clouds.card("mlx4_0", f"ib{n - 1}", port=n) for n in (1, 2)]
    hosts = [clouds.machine(name, [f"ib1 10.0.0.{n}/24"], [], *two_ports) for n, name in enumerate("ab", 1)]
    assert {place.hca for place in choose(hosts, "ib1").places.values()} == {"mlx4_0:2"}
