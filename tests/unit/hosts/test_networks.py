"""Where ranks meet: the network that --interconnect names, or the fastest that all hosts share."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from scaling.errors import LaunchError, UsageError
from scaling.hosts.fabric import Entry
from scaling.hosts.networks import choose
from scaling.records.host import Hca, HostInfo, Nic
from scaling.records.network import Network, Place, describe
from tests.support import clouds
from tests.support.inline import host


def nic(name: str, address: str, gbit: float | None = None, *, up: bool = True) -> Nic:
    speed = None if gbit is None else gbit * 1e9
    return Nic(name=name, address=address, netmask="255.255.255.0", up=up, mtu=1500, speed_bits_per_s=speed)


LO = Nic(name="lo", address="127.0.0.1", netmask="255.0.0.0", up=True, mtu=65536)
MLX5 = Hca(name="mlx5_0", port=1, link_layer="InfiniBand", active=True, interfaces=("ib0",))


def on(name: str, *nics: Nic, hcas: tuple[Hca, ...] = ()) -> HostInfo:
    return host(name, nics=(LO, *nics), hcas=hcas)


def pair(*hcas: Hca) -> tuple[HostInfo, HostInfo]:
    """Two hosts with both networks, whose Ethernet cards have different names."""
    return (
        on("a", nic("eth0", "10.20.0.1", 10), nic("ib0", "10.10.0.1", 100), hcas=hcas),
        on("b", nic("eno1", "10.20.0.2", 10), nic("ib0", "10.10.0.2", 100), hcas=hcas),
    )


def interfaces(network: Network) -> dict[str, str]:
    return {name: place.interface for name, place in network.places.items()}


# ---------------------------------------------------------------- auto


def test_one_host_meets_on_loopback() -> None:
    assert choose([on("a", nic("eth0", "10.0.0.1"))]).places == {"a": Place(address="127.0.0.1", interface="lo")}


def test_the_fastest_shared_network_by_its_slowest_card() -> None:
    one, two = pair()
    found = choose([one, two])
    assert found.places == {
        "a": Place(address="10.10.0.1", interface="ib0"),
        "b": Place(address="10.10.0.2", interface="ib0"),
    }
    assert describe(found) == ("ib0 (10.10.0.0/24, 100 Gb/s): the fastest of 2 networks that all hosts share")
    slow = on("c", nic("eth0", "10.20.0.3", 10), nic("ib0", "10.10.0.3", 1))
    assert interfaces(choose([one, two, slow])) == {"a": "eth0", "b": "eno1", "c": "eth0"}


def test_the_fabric_file_knows_rates_better_than_the_kernel() -> None:
    known = {"ib": Entry(interface="ib0", rate_gbit=1), "ethernet": Entry(subnet="10.20.0.0/24", rate_gbit=5)}
    found = choose(pair(), named=known)
    assert (found.subnet, found.rate_bits_per_s) == ("10.20.0.0/24", 5e9)


def test_a_network_of_unknown_speed_is_not_called_the_fastest() -> None:
    hosts = [on(name, nic("eth0", f"10.0.0.{n}"), nic("eth1", f"10.0.1.{n}")) for n, name in ((1, "a"), (2, "b"))]
    assert choose(hosts).why == "one of 2 networks that all hosts share, of unknown speed; --interconnect chooses"


def test_a_bridge_with_the_same_address_everywhere_is_no_network() -> None:
    docker = nic("docker0", "172.17.0.1", 400)
    one, two = on("a", docker, nic("eth0", "10.0.0.1", 1)), on("b", docker, nic("eth0", "10.0.0.2", 1))
    found = choose([one, two])
    assert set(interfaces(found).values()) == {"eth0"}
    assert found.why == "the only network that all hosts share"


def test_nccl_may_choose_among_the_cards_that_every_host_has() -> None:
    assert {place.hca for place in choose(pair(MLX5)).places.values()} == {"any"}
    one, _ = pair(MLX5)
    _, without = pair()
    assert {place.hca for place in choose([one, without]).places.values()} == {""}


@pytest.mark.parametrize("other", [nic("eth1", "10.0.1.2"), nic("eth0", "10.0.0.2", up=False)])
def test_hosts_that_share_nothing_are_told_so(other: Nic) -> None:
    with pytest.raises(LaunchError, match="the hosts a, b share no IPv4 network, and no interface of each"):
        choose([on("a", nic("eth0", "10.0.0.1")), on("b", other)])


# ---------------------------------------------------------------- by name


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("ib0", {"a": "ib0", "b": "ib0"}),
        ("10.20.0.0/24", {"a": "eth0", "b": "eno1"}),
        ("ethernet", {"a": "eth0", "b": "eno1"}),
    ],
)
def test_a_network_is_an_interface_a_subnet_or_a_name_of_the_fabric(word: str, wanted: dict[str, str]) -> None:
    found = choose(pair(), word, {"ethernet": Entry(subnet="10.20.0.0/24")})
    assert (found.word, interfaces(found)) == (word, wanted)


@pytest.mark.parametrize(
    ("word", "entry", "card"),
    [
        ("ib0", None, "mlx5_0"),  # InfiniBand's own interface: RDMA
        ("ipoib", Entry(interface="ib0"), "mlx5_0"),
        ("roce", Entry(subnet="10.20.0.0/24", hca="mlx5_1"), "mlx5_1"),
        ("10.20.0.0/24", None, ""),  # Ethernet: sockets
    ],
)
def test_the_card_is_infinibands_own_or_what_the_fabric_says(word: str, entry: Entry | None, card: str) -> None:
    found = choose(pair(MLX5), word, {word: entry} if entry else {})
    assert {place.hca for place in found.places.values()} == {card}


def test_the_fabric_file_tells_of_an_interface_that_is_asked_for_by_itself() -> None:
    found = choose(pair(), "10.20.0.0/24", {"slow": Entry(interface="eth0", rate_gbit=0.1, hca="x")})
    assert describe(found) == "10.20.0.0/24 (eth0, eno1, 0.1 Gb/s, NCCL: RDMA by x)"
    named = choose(pair(), "ib", {"ib": Entry(interface="ib0")})
    assert describe(named) == "ib (ib0, 10.10.0.0/24, 100 Gb/s)"
    assert describe(choose(pair(), "ib0")) == "ib0 (10.10.0.0/24, 100 Gb/s)"


def test_a_card_that_is_not_active_carries_nothing() -> None:
    idle = Hca(name="mlx5_0", port=1, link_layer="InfiniBand", active=False, interfaces=("ib0",))
    assert {place.hca for place in choose(pair(idle), "ib0").places.values()} == {""}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("eth0", "--interconnect eth0: not on b, which has eno1 10.20.0.2, ib0 10.10.0.2"),
        ("ib1", "--interconnect ib1: not on a, which has eth0 10.20.0.1, ib0 10.10.0.1; did you mean"),
        ("10.30.0.0/24", "--interconnect 10.30.0.0/24: not on a"),
        ("10.20.0.1/24", "--interconnect 10.20.0.1/24: 10.20.0.1/24 has host bits set; write for example"),
        ("10.20/x", "--interconnect 10.20/x: "),
    ],
)
def test_what_is_not_there_is_named_with_what_is(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        choose(pair(), word)


def test_an_interface_that_is_down_is_said_to_be() -> None:
    down = on("b", nic("ib0", "10.10.0.2", up=False), nic("eth0", "10.20.0.2"))
    with pytest.raises(UsageError, match="ib0 is down on b; ip link set ib0 up"):
        choose([pair()[0], down], "ib0")


def test_a_bridge_is_no_network_even_if_it_is_named() -> None:
    docker = nic("docker0", "172.17.0.1")
    with pytest.raises(UsageError, match=r"docker0: a and b have one address there, 172\.17\.0\.1, so it"):
        choose([on("a", docker), on("b", docker)], "docker0")


@pytest.mark.parametrize(
    ("second", "third"),
    [
        (["10.0.0.2/24", "192.168.5.2/24"], ["192.168.5.3/24", "10.0.0.3/24"]),
        (["169.254.7.7/16", "10.0.0.2/24"], ["10.0.0.3/24"]),
        (["172.16.0.9/32", "10.0.0.2/24"], ["10.0.0.3/24", "10.0.0.4/24"]),
    ],
)
@pytest.mark.parametrize("word", ["eth0", "0.0.0.0/0"])
def test_of_several_addresses_of_an_interface_those_in_the_common_subnet(
    word: str, second: list[str], third: list[str]
) -> None:
    routes = [f"{net} dev eth0" for net in ("169.254.0.0/16", "10.0.0.0/24", "192.168.5.0/24")]
    addresses = {"a": ["10.0.0.1/24", "192.168.5.1/24"], "b": second, "c": third}
    hosts = [clouds.machine(name, [f"eth0 {one}" for one in mine], routes) for name, mine in addresses.items()]
    found = choose(hosts, word)
    assert [place.address for place in found.places.values()] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert not found.routed


def test_hosts_that_are_one_machine_may_share_an_address() -> None:
    both = [replace(on(name, nic("eth0", "10.20.0.1")), boot_id="one") for name in ("a", "b")]
    found = choose(both, "eth0")
    assert {place.address for place in found.places.values()} == {"10.20.0.1"}


def test_nccl_does_not_mix_cards_and_sockets() -> None:
    one, two = pair(MLX5)
    found = choose([one, replace(two, hcas=())], "ib0")
    assert {place.hca for place in found.places.values()} == {""}


def test_cards_by_node() -> None:
    entry = Entry(interface="ib0", hca={"a": "mlx5_0", "*": ("mlx5_2", "mlx5_3")})
    found = choose(pair(), "ib", {"ib": entry})
    assert {name: place.hca for name, place in found.places.items()} == {"a": "mlx5_0", "b": "mlx5_2,mlx5_3"}


def test_a_node_whose_card_the_file_forgot_is_named() -> None:
    with pytest.raises(UsageError, match=r"--interconnect ib: the fabric file's hca names no card of b; write"):
        choose(pair(), "ib", {"ib": Entry(interface="ib0", hca={"a": "mlx5_0"})})


def test_an_interface_without_ipv4_is_named_so() -> None:
    one = replace(on("a", nic("eth0", "10.0.0.1")), ipv6_only=("ib0",))
    with pytest.raises(
        UsageError, match="--interconnect ib0: ib0 on a has IPv6 addresses alone, and scaling uses IPv4"
    ):
        choose([one], "ib0")
