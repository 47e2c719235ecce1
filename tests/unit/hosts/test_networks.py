"""Where ranks meet: the network that --interconnect names, or the fastest that all hosts share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.errors import LaunchError, UsageError
from scaling.hosts import networks
from scaling.hosts.networks import Entry, choose
from scaling.records.host import Hca, HostInfo, Nic, Route
from scaling.records.network import Network, Place, describe
from tests.support import clouds
from tests.support.clouds import ROUTE_FILES
from tests.support.inline import host


def interfaces_clouds(network: Network) -> dict[str, str]:
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
    assert set(interfaces_clouds(found).values()) == {interface}
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
        "data0 (routed, not tried, 25 Gb/s): the fastest of 2 networks that all hosts share "
        "or that are routed between them"
    )
    slow = {"data": Entry(interface="data0", rate_gbit=1)}
    assert set(interfaces_clouds(choose(three(clouds.racks), named=slow)).values()) == {"mgmt0"}


def test_pods_on_one_node_and_on_others() -> None:
    loopback, eth0 = clouds.flannel("d", 1).nics
    near = replace(clouds.flannel("d", 1), nics=(loopback, replace(eth0, address="10.244.1.9")))
    assert set(interfaces_clouds(choose([*three(clouds.flannel), near])).values()) == {"eth0"}


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
    assert set(interfaces_clouds(found).values()) == {"ib0"}
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
        assert set(interfaces_clouds(choose(three(clouds.p4d), word)).values()) == {"ens32"}


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


def test_cards_that_count_no_bytes_are_told() -> None:
    hosts = [replace(one, hcas=tuple(replace(hca, counts=False) for hca in one.hcas)) for one in three(clouds.dgx)]
    assert "no byte counters: mlx5_0" in describe(choose(hosts))
    assert describe(choose(hosts, "ib0")).endswith("1 of 8 cards, no byte counters: mlx5_0)")
    assert "byte counters" not in describe(choose(hosts), nccl=False)


def test_a_plugin_without_rdma_cards_is_told_and_not_switched_off() -> None:
    """As Google's FasTrak and TCPX."""
    fastrak = "/usr/local/fastrak/lib64/libnccl-net.so"
    hosts = [replace(one, nccl_plugins=(fastrak,)) for one in three(clouds.racks)]
    auto = choose(hosts)
    assert {(place.hca, place.plugin) for place in auto.places.values()} == {("", True)}
    assert f"NCCL: its plugin {fastrak} chooses" in describe(auto)
    named = choose(hosts, next(iter(auto.places.values())).interface)
    assert {place.plugin for place in named.places.values()} == {False}
    with_cards = choose([replace(one, nccl_plugins=(fastrak,)) for one in three(clouds.dgx)])
    assert describe(with_cards) == describe(choose(three(clouds.dgx))), "NCCL chooses among the cards"


def test_cards_that_a_container_was_not_given_are_not_taken() -> None:
    hosts = [replace(one, hcas=tuple(replace(hca, opens=False) for hca in one.hcas)) for one in three(clouds.dgx)]
    for word in ("auto", "ib0"):
        assert {place.hca for place in choose(hosts, word).places.values()} == {""}


def test_a_port_of_several_is_named_with_its_number() -> None:
    two_ports = [clouds.card("mlx4_0", f"ib{n - 1}", port=n) for n in (1, 2)]
    hosts = [clouds.machine(name, [f"ib1 10.0.0.{n}/24"], [], *two_ports) for n, name in enumerate("ab", 1)]
    assert {place.hca for place in choose(hosts, "ib1").places.values()} == {"mlx4_0:2"}


FLANNEL = (Route(destination="0.0.0.0/0", interface="eth0"), Route(destination="10.244.0.0/16", interface="eth0"))


def test_a_pod_of_flannel(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTE_FILES["flannel"])
    assert networks.read_routes({"eth0"}, tmp_path) == (
        Route(destination="0.0.0.0/0", interface="eth0"),
        Route(destination="10.244.0.0/16", interface="eth0"),
        Route(destination="10.244.1.0/24", interface="eth0"),
    )


def test_routes_by_interfaces_without_an_address_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTE_FILES["a node of calico"])
    assert {route.interface for route in networks.read_routes({"eno2", "tunl0"}, tmp_path)} == {"eno2", "tunl0"}


def test_of_many_routes_the_most_general_are_kept(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTE_FILES["a node of many"])
    found = networks.read_routes({"eth0", "vxlan.calico"}, tmp_path)
    assert len(found) == networks.MOST
    assert found[0] == Route(destination="0.0.0.0/0", interface="eth0")


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
    assert networks.read_routes({"eth0"}, tmp_path) == ()


@pytest.mark.parametrize(
    ("address", "interface"),
    [("10.1.2.3", "ib0"), ("10.1.9.9", "rail0"), ("8.8.8.8", "eth0"), ("10.1.3.4", "fast0")],
)
def test_the_longest_prefix_and_then_the_least_metric(address: str, interface: str) -> None:
    table = [
        ("0.0.0.0/0", "eth0", 100),
        ("0.0.0.0/0", "wlan0", 600),
        ("10.1.0.0/16", "rail0", 0),
        ("10.1.2.0/24", "ib0", 500),
        ("10.1.3.0/24", "slow0", 200),
        ("10.1.3.0/24", "fast0", 100),
    ]
    one = host(routes=tuple(Route(destination=to, interface=by, metric=metric) for to, by, metric in table))
    assert networks.leads(one, address) == interface


def test_nothing_leads_where_no_route_fits() -> None:
    assert networks.leads(host(routes=FLANNEL[1:]), "8.8.8.8") == ""
    assert networks.leads(host(), "8.8.8.8") == ""


def test_networks_by_name(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(
        '[ib]\ninterface = "ib0"\nhca = "mlx5_0"\nrate_gbit = 100\n[ethernet]\nsubnet = "10.0.0.0/8"\n'
    )
    assert networks.read_fabric(str(path)) == {
        "ib": Entry(interface="ib0", hca="mlx5_0", rate_gbit=100),
        "ethernet": Entry(subnet="10.0.0.0/8"),
    }
    assert networks.read_fabric(None) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ib", "fabric.toml: "),
        ("ib = 3", r"fabric.toml: \[ib\]: expected `object`, got `int`"),
        ("[ib]\nface = 'ib0'", r"fabric.toml: \[ib\]: object contains unknown field `face`"),
        ("[ib]\nhca = 'mlx5_0'", r"fabric.toml: \[ib\] has neither interface nor subnet; write interface"),
        ("[ib]\ninterface = 'ib0'\nhca = 'mlx5_0/1'", r"\[ib\] hca: 'mlx5_0/1' is no card; write \"mlx5_0\""),
        ("[ib]\ninterface = 'ib0'\nhca = { a = '' }", r"\[ib\] hca: '' is no card"),
        ("[ib]\ninterface = 'ib0'\nhca = 3", r"\[ib\] hca: expected `str"),
        ("[ib]\ninterface = 'ib0'\nrate_gbit = 0", r"\[ib\] rate_gbit = 0: must be a number above 0"),
        ("[ib]\ninterface = 'ib0'\nrate_gbit = 'fast'", r"fabric.toml: \[ib\] rate_gbit: expected `float"),
        ("[ib]\nsubnet = '10.0.0.1/8'", r"\[ib\] subnet 10.0.0.1/8: 10.0.0.1/8 has host bits set"),
        ("[auto]\ninterface = 'ib0'", r"\[auto\] means the fastest network; take another name"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        networks.read_fabric(str(path))


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ('"mlx5_0, mlx5_1"', {"node1": "mlx5_0,mlx5_1", "gpu-7": "mlx5_0,mlx5_1"}),
        ('["mlx5_0", "mlx4_0:2"]', {"node1": "mlx5_0,mlx4_0:2", "gpu-7": "mlx5_0,mlx4_0:2"}),
        ('{ node1 = "mlx5_0", "gpu-*" = ["mlx5_2", "mlx5_3"] }', {"node1": "mlx5_0", "gpu-7": "mlx5_2,mlx5_3"}),
        ('{ node1 = "mlx5_0" }', {"node1": "mlx5_0", "gpu-7": None}),
        ('"any"', {"node1": "any", "gpu-7": "any"}),
    ],
)
def test_cards_as_a_list_and_by_node(tmp_path: Path, text: str, cards: dict[str, str | None]) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(f'[ib]\ninterface = "ib0"\nhca = {text}\n')
    (entry,) = networks.read_fabric(str(path)).values()
    assert {host: entry.cards(host) for host in cards} == cards


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"--fabric /nowhere/fabric\.toml: No such file"):
        networks.read_fabric("/nowhere/fabric.toml")


def test_a_file_that_the_environment_names_is_refused_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALING_FABRIC", "/nope/fabric.toml")
    with pytest.raises(UsageError, match=r"^SCALING_FABRIC=/nope/fabric.toml: No such file"):
        networks.read_fabric("/nope/fabric.toml")


def nic(name: str, address: str, gbit: float | None = None, *, up: bool = True) -> Nic:
    speed = None if gbit is None else gbit * 1e9
    return Nic(name=name, address=address, netmask="255.255.255.0", up=up, mtu=1500, speed_bits_per_s=speed)


LO = Nic(name="lo", address="127.0.0.1", netmask="255.0.0.0", up=True, mtu=65536)
MLX5 = Hca(name="mlx5_0", port=1, link_layer="InfiniBand", active=True, interfaces=("ib0",))


def on(name: str, *nics: Nic, hcas: tuple[Hca, ...] = ()) -> HostInfo:
    return host(name, nics=(LO, *nics), hcas=hcas)


def pair(*hcas: Hca) -> tuple[HostInfo, HostInfo]:
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
    with pytest.raises(UsageError, match=r"docker0: a and b have the same address there, 172\.17\.0\.1, so it"):
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
        UsageError, match="--interconnect ib0: ib0 on a has only IPv6 addresses, and scaling uses IPv4"
    ):
        choose([one], "ib0")
