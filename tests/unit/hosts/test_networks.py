"""Where ranks meet: the network that --interconnect names, or the fastest that all hosts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.errors import LaunchError, UsageError
from scaling.hosts import networks
from scaling.hosts.networks import Entry, choose
from scaling.records.host import Hca, HostInfo, Nic, Route
from scaling.records.network import describe
from tests.support import clouds
from tests.support.clouds import ROUTE_FILES
from tests.support.golden import check_golden
from tests.support.inline import host

# ---------------------------------------------------------------- choices


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


def two(*nics: Nic) -> list[HostInfo]:
    return [on(name, *nics) for name in "ab"]


def three(make: Callable[[str, int], HostInfo]) -> list[HostInfo]:
    return [make(name, number) for number, name in enumerate("abc", 1)]


def with_cards(**changes: object) -> list[HostInfo]:
    """Three DGX whose cards differ."""
    return [replace(one, hcas=tuple(replace(hca, **changes) for hca in one.hcas)) for one in three(clouds.dgx)]


def of_addresses(second: Sequence[str], third: Sequence[str]) -> list[HostInfo]:
    """Hosts whose interface has several addresses."""
    routes = [f"{net} dev eth0" for net in ("169.254.0.0/16", "10.0.0.0/24", "192.168.5.0/24")]
    addresses = {"a": ["10.0.0.1/24", "192.168.5.1/24"], "b": second, "c": third}
    return [clouds.machine(name, [f"eth0 {one}" for one in mine], routes) for name, mine in addresses.items()]


CALICO, FLANNEL_PODS, RACKS, DGX, AZURE, P4D = map(
    three, (clouds.calico, clouds.flannel, clouds.racks, clouds.dgx, clouds.azure, clouds.p4d)
)
NEAR = replace(FLANNEL_PODS[0], hostname="d")
NEAR = replace(NEAR, nics=(NEAR.nics[0], replace(NEAR.nics[1], address="10.244.1.9")))
# b reaches a by its second interface, a's route comes back to the first.
ASKEW = [
    clouds.machine("a", ["eth0 10.1.0.1/24"], ["default via 10.1.0.254 dev eth0"]),
    clouds.machine("b", ["eth0 10.3.0.2/24"], ["default via 10.2.0.254 dev eth1", "10.3.0.0/24 dev eth0"]),
]
SLOW_IB, SLOW_DATA = {"ib": Entry(interface="ib0", rate_gbit=1)}, {"data": Entry(interface="data0", rate_gbit=1)}
PODS = {"pods": Entry(subnet="10.244.0.0/16", rate_gbit=25)}
EFA = {"efa": Entry(interface="ens32", hca="rdmap16s27")}
KNOWN = {"ib": Entry(interface="ib0", rate_gbit=1), "ethernet": Entry(subnet="10.20.0.0/24", rate_gbit=5)}
ETHERNET = {"ethernet": Entry(subnet="10.20.0.0/24")}
FASTRAK = [replace(one, nccl_plugins=("/usr/local/fastrak/lib64/libnccl-net.so",)) for one in RACKS]
MANY_PORTS = [
    clouds.machine(
        name, [f"ib1 10.0.0.{n}/24"], [], *(clouds.card("mlx4_0", f"ib{port - 1}", port=port) for port in (1, 2))
    )
    for n, name in enumerate("ab", 1)
]
UNKNOWN = [on(name, nic("eth0", f"10.0.0.{n}"), nic("eth1", f"10.0.1.{n}")) for n, name in ((1, "a"), (2, "b"))]
DOCKER = nic("docker0", "172.17.0.1", 400)
BY_NODE = {"ib": Entry(interface="ib0", hca={"a": "mlx5_0", "*": ("mlx5_2", "mlx5_3")})}
DOWN = on("b", nic("ib0", "10.10.0.2", up=False), nic("eth0", "10.20.0.2"))
SLOWER = on("c", nic("eth0", "10.20.0.3", 10), nic("ib0", "10.10.0.3", 1))
ONE_MACHINE = [replace(one, boot_id="one") for one in two(nic("eth0", "10.20.0.1"))]

FIRST, OTHER = on("a", nic("eth0", "10.0.0.1")), {"slow": Entry(interface="eth0", rate_gbit=0.1, hca="x")}

Choice = tuple[Sequence[HostInfo], str, dict[str, Entry]]
CHOICES: dict[str, Choice] = {
    "one host meets on loopback": ([FIRST], "auto", {}),
    # Where no subnet is shared, the routes tell.
    "Calico": (CALICO, "auto", {}),
    "Cilium": (three(clouds.cilium), "auto", {}),
    "Flannel": (FLANNEL_PODS, "auto", {}),
    "pods on one node and on others": ([*FLANNEL_PODS, NEAR], "auto", {}),
    "GCE": (three(clouds.gce), "auto", {}),
    "rails": (three(clouds.rails), "auto", {}),
    "a faster network is taken though it is routed": (RACKS, "auto", {}),
    "the fabric file's rate is slower": (RACKS, "auto", SLOW_DATA),
    "an interface that leads elsewhere is not taken": (ASKEW, "auto", {}),
    "asked for by name it is taken, and a connection has the last word": (ASKEW, "eth0", {}),
    **{f"a named network needs no common subnet: {word}": (FLANNEL_PODS, word, PODS)
       for word in ("eth0", "10.244.0.0/16", "pods")},
    "InfiniBand is the fastest though the kernel knows no speed of it": (DGX, "auto", {}),
    "one rail of eight": (DGX, "ib0", {}),
    "Azure": (AZURE, "auto", {}),
    "what NCCL takes beside Ethernet": (AZURE, "auto", SLOW_IB),
    "of cards in one subnet the one that packets take": (P4D, "auto", {}),
    "of cards in one subnet that is named": (P4D, "172.31.0.0/16", {}),
    "EFA is left to NCCL's plugin": (P4D, "efa", EFA),
    "sockets beside EFA": (P4D, "ens32", {}),
    "cards that count no bytes": (with_cards(counts=False), "auto", {}),
    "a card that counts no bytes": (with_cards(counts=False), "ib0", {}),
    "a plugin without RDMA cards is not switched off": (FASTRAK, "auto", {}),
    "a plugin on a named network is": (FASTRAK, "data0", {}),
    "cards that a container was not given": (with_cards(opens=False), "auto", {}),
    "a card that a container was not given": (with_cards(opens=False), "ib0", {}),
    "a port of several": (MANY_PORTS, "ib1", {}),
    "the fastest shared network": (pair(), "auto", {}),
    "by its slowest card": ([*pair(), SLOWER], "auto", {}),
    "the fabric file knows rates better than the kernel": (pair(), "auto", KNOWN),
    "a network of unknown speed": (UNKNOWN, "auto", {}),
    "a bridge with the same address everywhere": (
        [on("a", DOCKER, nic("eth0", "10.0.0.1", 1)), on("b", DOCKER, nic("eth0", "10.0.0.2", 1))], "auto", {}
    ),
    "a bridge that is named": (two(DOCKER), "docker0", {}),
    "hosts of one machine may share an address": (ONE_MACHINE, "eth0", {}),
    "cards that every host has": (pair(MLX5), "auto", {}),
    "cards that a host lacks": ((pair(MLX5)[0], pair()[1]), "auto", {}),
    "NCCL does not mix cards and sockets": ((pair(MLX5)[0], replace(pair(MLX5)[1], hcas=())), "ib0", {}),
    "hosts without a subnet in common": ([FIRST, on("b", nic("eth1", "10.0.1.2"))], "auto", {}),
    "hosts with a card that is down": ([FIRST, on("b", nic("eth0", "10.0.0.2", up=False))], "auto", {}),
    "an interface": (pair(), "ib0", {}),
    "a subnet": (pair(), "10.20.0.0/24", {}),
    "a name of the fabric file": (pair(), "ethernet", ETHERNET),
    "InfiniBand's own interface": (pair(MLX5), "ib0", {}),
    "a card that is not active": (pair(replace(MLX5, active=False)), "ib0", {}),
    "IPoIB": (pair(MLX5), "ipoib", {"ipoib": Entry(interface="ib0")}),
    "RoCE": (pair(MLX5), "roce", {"roce": Entry(subnet="10.20.0.0/24", hca="mlx5_1")}),
    "Ethernet": (pair(MLX5), "10.20.0.0/24", {}),
    "the fabric file by another word": (pair(), "10.20.0.0/24", OTHER),
    "cards by node": (pair(), "ib", BY_NODE),
    "a node whose card the file forgot": (pair(), "ib", {"ib": Entry(interface="ib0", hca={"a": "mlx5_0"})}),
    **{f"refused: {word}": (pair(), word, {}) for word in ("eth0", "ib1", "10.30.0.0/24", "10.20.0.1/24")},
    "an interface that is down": ([pair()[0], DOWN], "ib0", {}),
    "an interface without IPv4": ([replace(FIRST, ipv6_only=("ib0",))], "ib0", {}),
    **{f"of several addresses those in the common subnet: {word} {number}": (hosts, word, {})
       for word in ("eth0", "0.0.0.0/0")
       for number, hosts in enumerate((
           of_addresses(["10.0.0.2/24", "192.168.5.2/24"], ["192.168.5.3/24", "10.0.0.3/24"]),
           of_addresses(["169.254.7.7/16", "10.0.0.2/24"], ["10.0.0.3/24"]),
           of_addresses(["172.16.0.9/32", "10.0.0.2/24"], ["10.0.0.3/24", "10.0.0.4/24"]),
       ))},
}  # fmt: skip


def said(hosts: Sequence[HostInfo], word: str, named: dict[str, Entry]) -> list[str]:
    try:
        found = choose(hosts, word, named)
    except (LaunchError, UsageError) as error:
        return [f"{type(error).__name__}: {error}"]
    without = describe(found, nccl=False)
    places = (
        f"  {name}: {place.interface} {place.address}{place.hca and f', {place.hca}'}{place.plugin * ', plugin'}"
        for name, place in found.places.items()
    )
    return [describe(found), *([f"without NCCL: {without}"] if without != describe(found) else []), *places]


def test_the_network_that_is_chosen_and_what_is_said_of_it() -> None:
    lines = [line for name, choice in CHOICES.items() for line in (f"## {name}", *said(*choice), "")]
    check_golden("network-choices.txt", "\n".join(lines))


@pytest.mark.parametrize(("name", "second"), [("mgmt", "127.0.0.1"), ("eth9", "127.0.0.2"), ("lo0", "127.0.0.2")])
def test_addresses_that_never_leave_a_host_are_no_network_on_any_interface(name: str, second: str) -> None:
    """A VRF has 127.0.0.1, a renamed loopback or an alias others. Their subnet is the largest in order."""
    hosts = [
        on("a", replace(LO, name=name), nic("eth0", "10.0.0.1")),
        on("b", replace(LO, name=name, address=second), nic("eth0", "10.0.0.2")),
    ]
    assert {place.interface for place in choose(hosts).places.values()} == {"eth0"}
    with pytest.raises(UsageError, match=r"not on a, which has eth0 10\.0\.0\.1"):
        choose(hosts, name)


def test_a_route_is_said_to_be_proved_by_connections() -> None:
    proved = replace(choose(CALICO), connections=6)
    assert describe(proved).startswith("eth0 (routed, proved by 6 connections): ")


# ---------------------------------------------------------------- routes and the fabric file


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
