"""Network cards: interfaces, RDMA ports and their counters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from scaling.hosts import connections, interfaces, networks
from scaling.hosts.connections import Account, Connection
from scaling.records.host import Hca, Nic
from scaling.records.telemetry import Flow, Traffic
from tests.support.inline import host

Moved = dict[str, tuple[int, int]]


class Sysfs:
    """The files of one host below `root`. Everything may be written again with other counts."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")

    def interface(
        self,
        name: str,
        received: int = 0,
        sent: int = 0,
        *,
        on: Iterable[str] = (),
        master: str = "",
        **files: object,
    ) -> None:
        """An interface that stands on others, below a bond or a bridge; `files` are further ones of it."""
        folder = f"sys/class/net/{name}"
        for way, count in (("rx", received), ("tx", sent)):
            self.write(f"{folder}/statistics/{way}_bytes", count)
        for file, content in files.items():
            self.write(f"{folder}/{file}", content)
        for lower in on:
            self._link(f"sys/class/net/{lower}/upper_{name}", name)
        if master:
            self._link(f"{folder}/master", master)
            self._link(f"{folder}/upper_{master}", master)

    def port(
        self,
        card: str = "mlx5_0",
        number: int = 1,
        *,
        words: tuple[int, int] | None = None,
        hw_bytes: tuple[int, int] | None = None,
        link_layer: str = "InfiniBand",
        state: str = "4: ACTIVE",
        rate: str = "100 Gb/sec (4X EDR)",
        nets: Iterable[str] = (),
        uverbs: str = "",
    ) -> None:
        """A port of a card, and the interfaces of the whole card."""
        if uverbs:
            self.write(f"sys/class/infiniband/{card}/device/infiniband_verbs/{uverbs}/ibdev", card)
        folder = f"sys/class/infiniband/{card}/ports/{number}"
        for file, content in (("link_layer", link_layer), ("state", state), ("rate", rate)):
            self.write(f"{folder}/{file}", content)
        for name, count in zip(("port_rcv_data", "port_xmit_data"), words or (), strict=False):
            self.write(f"{folder}/counters/{name}", count)
        for name, count in zip(("rx_bytes", "tx_bytes"), hw_bytes or (), strict=False):
            self.write(f"{folder}/hw_counters/{name}", count)
        self._nets(f"sys/class/infiniband/{card}", nets)

    def slingshot(self, card: str, received: int, sent: int, *, net: str) -> None:
        """A card of Slingshot, whose counters say when they were read."""
        for way, count in (("rx", received), ("tx", sent)):
            self.write(f"sys/class/cxi/{card}/device/telemetry/hni_sts_{way}_ok_octets", f"{count}@1700000000.1")
        self._nets(f"sys/class/cxi/{card}", [net])

    def moved(self, before: interfaces.Reading) -> Moved:
        found = interfaces.since(before, interfaces.read(self.root))
        return {one.name: (one.received_bytes, one.sent_bytes) for one in found}

    def _nets(self, card: str, nets: Iterable[str]) -> None:
        for net in nets:
            (self.root / card / "device/net" / net).mkdir(parents=True, exist_ok=True)

    def _link(self, path: str, name: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(f"../{name}")


# The kernel's counters, from a made-up /sys: bytes of interfaces and of RDMA ports, none of them twice.


@pytest.fixture
def interfaces_host(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_what_moved_in_between_but_not_on_the_loopback(interfaces_host: Sysfs) -> None:
    interfaces_host.interface("lo")
    interfaces_host.interface("eth0", 1000, 2000)
    before = interfaces.read(interfaces_host.root)
    interfaces_host.interface("lo", 5, 5)
    interfaces_host.interface("eth0", 1500, 2001)
    assert interfaces.since(before, interfaces.read(interfaces_host.root)) == (
        Traffic(name="eth0", received_bytes=500, sent_bytes=1),
    )


def test_ports_count_in_words_of_four_bytes(interfaces_host: Sysfs) -> None:
    interfaces_host.port(words=(10, 20))
    before = interfaces.read(interfaces_host.root)
    interfaces_host.port(words=(11, 22))
    assert interfaces_host.moved(before) == {"mlx5_0/1": (4, 8)}


@pytest.mark.parametrize(("link_layer", "rdma"), [("InfiniBand", 1000), ("Ethernet", 1600)])
def test_an_infiniband_port_counts_its_ipoib_too(interfaces_host: Sysfs, link_layer: str, rdma: int) -> None:
    interfaces_host.port(words=(0, 0), link_layer=link_layer, nets=["ib0"])
    interfaces_host.interface("ib0")
    before = interfaces.read(interfaces_host.root)
    interfaces_host.port(words=(400, 400), link_layer=link_layer)
    interfaces_host.interface("ib0", 600, 600)
    assert interfaces_host.moved(before) == {"ib0": (600, 600), "mlx5_0/1": (rdma, rdma)}


def test_each_port_of_a_card_counts_its_own_interface(interfaces_host: Sysfs) -> None:
    """2 GB of verbs by port 2 stay 2 GB, whatever ib0 carries over port 1."""

    def carry(ib0: int, first: int, second: int) -> None:
        interfaces_host.interface("ib0", ib0, ib0, dev_port=0, dev_id="0x0")
        interfaces_host.interface("ib1", 0, 0, dev_port=1, dev_id="0x1")
        for number, words in ((1, first), (2, second)):
            interfaces_host.port("mlx4_0", number, words=(words, words), nets=["ib0", "ib1"])

    carry(0, 0, 0)
    before = interfaces.read(interfaces_host.root)
    carry(1000, 250, 500)
    assert interfaces_host.moved(before) == {
        "ib0": (1000, 1000),
        "ib1": (0, 0),
        "mlx4_0/1": (0, 0),
        "mlx4_0/2": (2000, 2000),
    }


def test_a_port_of_an_older_kernel_is_known_by_dev_id(interfaces_host: Sysfs) -> None:
    for number in (1, 2):
        interfaces_host.port("mlx4_0", number, words=(0, 0), nets=["ib0", "ib1"])
    interfaces_host.interface("ib0", dev_port=0, dev_id="0x0")
    interfaces_host.interface("ib1", dev_port=0, dev_id="0x1")
    assert interfaces.read(interfaces_host.root)["mlx4_0/2"].includes == ("ib1",)


def test_a_card_below_a_bond_is_counted_there(interfaces_host: Sysfs) -> None:
    interfaces_host.interface("bond0", 7, 7)
    interfaces_host.interface("eth0", 7, 7, master="bond0")
    assert interfaces_host.moved(interfaces.read(interfaces_host.root)) == {"bond0": (0, 0)}


def test_a_bond_over_infiniband_counts_once(interfaces_host: Sysfs) -> None:
    """TCP over bond0 is ib0's, and so the port's."""

    def carry(count: int) -> None:
        interfaces_host.interface("bond0", count, count)
        interfaces_host.interface("ib0", count, count, master="bond0")
        interfaces_host.port(words=(count // 4, count // 4), nets=["ib0"])

    carry(0)
    before = interfaces.read(interfaces_host.root)
    carry(1000)
    assert interfaces_host.moved(before) == {"bond0": (1000, 1000), "mlx5_0/1": (0, 0)}


def test_a_card_does_not_count_its_vlans(interfaces_host: Sysfs) -> None:
    interfaces_host.interface("eth0")
    interfaces_host.interface("eth0.7", on=["eth0"])
    before = interfaces.read(interfaces_host.root)
    interfaces_host.interface("eth0", 100, 100)
    interfaces_host.interface("eth0.7", 90, 90)
    assert interfaces_host.moved(before) == {"eth0": (10, 10), "eth0.7": (90, 90)}


def test_two_cards_a_bond_a_vlan_and_a_bridge_count_once(interfaces_host: Sysfs) -> None:
    def carry(each: int) -> None:
        for name in ("eth0", "eth1"):
            interfaces_host.interface(name, each, each, master="bond0")
        interfaces_host.interface("bond0", 2 * each, 2 * each)
        interfaces_host.interface("bond0.7", 2 * each, 2 * each, on=["bond0"], master="br0")
        interfaces_host.interface("br0", 2 * each, 2 * each)

    carry(0)
    before = interfaces.read(interfaces_host.root)
    carry(50)
    assert interfaces_host.moved(before) == {"bond0": (0, 0), "br0": (100, 100)}


def test_efa_counts_in_bytes_beside_its_parts(interfaces_host: Sysfs) -> None:
    """What a port sends are messages and answers to RDMA reads; numbers as an instance showed them."""
    interfaces_host.port("rdmap144s27", hw_bytes=(0, 0), link_layer="Unknown")
    before = interfaces.read(interfaces_host.root)
    interfaces_host.port("rdmap144s27", hw_bytes=(85466418782288, 84417311044934), link_layer="Unknown")
    for name, count in (("rdma_read_resp_bytes", 82752269975546), ("send_bytes", 1665042978528)):
        interfaces_host.write(f"sys/class/infiniband/rdmap144s27/ports/1/hw_counters/{name}", count)
    assert interfaces_host.moved(before) == {"rdmap144s27/1": (85466418782288, 84417311044934)}


def test_slingshot_counts_its_ethernet_too(interfaces_host: Sysfs) -> None:
    interfaces_host.interface("hsn0")
    interfaces_host.slingshot("cxi0", 0, 0, net="hsn0")
    before = interfaces.read(interfaces_host.root)
    interfaces_host.interface("hsn0", 100, 200)
    interfaces_host.slingshot("cxi0", 1100, 2200, net="hsn0")
    assert interfaces_host.moved(before) == {"hsn0": (100, 200), "cxi0/1": (1000, 2000)}


def test_a_card_without_counters_tells_nothing(interfaces_host: Sysfs) -> None:
    interfaces_host.port("hrn3_0")
    assert interfaces.read(interfaces_host.root) == {}


def test_a_counter_that_went_back_tells_nothing(interfaces_host: Sysfs) -> None:
    interfaces_host.interface("eth0", 100, 100)
    interfaces_host.interface("eth1", 100, 100)
    before = interfaces.read(interfaces_host.root)
    interfaces_host.interface("eth0", 0, 100)
    interfaces_host.interface("eth2", 9, 9)
    assert interfaces_host.moved(before) == {"eth1": (0, 0)}


def test_error_counters_are_told_by_how_much_they_rose(interfaces_host: Sysfs) -> None:
    def count(errors: int) -> None:
        interfaces_host.interface("eth0", 100, 100)
        interfaces_host.port(words=(0, 0))
        for path, value in {
            "net/eth0/statistics/rx_errors": errors,
            "net/eth0/statistics/tx_dropped": 7,
            "infiniband/mlx5_0/ports/1/counters/symbol_error": 10 * errors,
        }.items():
            interfaces_host.write(f"sys/class/{path}", value)

    count(1)
    before = interfaces.read(interfaces_host.root)
    count(4)
    found = interfaces.since(before, interfaces.read(interfaces_host.root))
    assert {one.name: one.errors for one in found} == {"eth0": {"rx_errors": 3}, "mlx5_0/1": {"symbol_error": 30}}


def test_lost_packets_and_congestion_of_roce_are_counted(interfaces_host: Sysfs) -> None:
    def count(packets: int) -> None:
        interfaces_host.port(words=(0, 0), link_layer="Ethernet")
        for path in ("hw_counters/out_of_sequence", "hw_counters/np_cnp_sent", "counters/port_xmit_wait"):
            interfaces_host.write(f"sys/class/infiniband/mlx5_0/ports/1/{path}", packets)

    count(1)
    before = interfaces.read(interfaces_host.root)
    count(8)
    (found,) = interfaces.since(before, interfaces.read(interfaces_host.root))
    assert found.errors == {"out_of_sequence": 7, "np_cnp_sent": 7, "port_xmit_wait": 7}


def test_a_port_without_byte_counters_is_told(interfaces_host: Sysfs) -> None:
    """As those of irdma."""
    interfaces_host.port("irdma0", link_layer="Ethernet")
    interfaces_host.port("mlx5_0", words=(0, 0), link_layer="Ethernet")
    found = interfaces.hcas(interfaces_host.root)
    assert {hca.name: hca.counts for hca in found} == {"irdma0": False, "mlx5_0": True}


def test_an_error_counter_that_went_back_or_is_new_tells_nothing(interfaces_host: Sysfs) -> None:
    folder = "sys/class/net/eth0/statistics"
    interfaces_host.interface("eth0")
    interfaces_host.write(f"{folder}/rx_errors", 5)
    before = interfaces.read(interfaces_host.root)
    interfaces_host.write(f"{folder}/rx_errors", 2)
    interfaces_host.write(f"{folder}/tx_errors", 9)
    (found,) = interfaces.since(before, interfaces.read(interfaces_host.root))
    assert found.errors == {}


def test_a_host_without_counters(tmp_path: Path) -> None:
    assert interfaces.read(tmp_path) == {}


def test_the_speed_of_a_veth_is_unknown(interfaces_host: Sysfs) -> None:
    for name in ("eth0", "veth0", "bond0"):
        interfaces_host.interface(
            name, uevent=f"{'DEVTYPE=bond' if name == 'bond0' else 'IFINDEX=4'}\nINTERFACE={name}"
        )
    (interfaces_host.root / "sys/class/net/eth0/device").mkdir()
    told = {name: interfaces.has_card(name, interfaces_host.root) for name in ("eth0", "veth0", "bond0", "gone")}
    assert told == {"eth0": True, "veth0": False, "bond0": True, "gone": False}


# RDMA cards as a made-up /sys describes them, and which of them stand behind an interface.


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_a_card_with_its_interface(sysfs: Sysfs) -> None:
    sysfs.interface("ib0")
    sysfs.port(nets=["ib0"], words=(0, 0))
    assert interfaces.hcas(sysfs.root) == (
        Hca(
            name="mlx5_0", port=1, link_layer="InfiniBand", active=True, rate_bits_per_s=100e9, interfaces=("ib0",)
        ),
    )


def test_no_card(tmp_path: Path) -> None:
    assert interfaces.hcas(tmp_path) == ()


def test_each_port_of_a_card_has_its_own_interface(sysfs: Sysfs) -> None:
    for number in (1, 2):
        sysfs.port("mlx4_0", number, nets=["ib0", "ib1"])
        sysfs.interface(f"ib{number - 1}", dev_port=number - 1)
    assert [(hca.port, hca.interfaces) for hca in interfaces.hcas(sysfs.root)] == [(1, ("ib0",)), (2, ("ib1",))]


def test_an_interface_on_top_of_another_belongs_to_its_card(sysfs: Sysfs) -> None:
    sysfs.interface("ib0", master="bond0")
    sysfs.interface("bond0.7", on=["bond0"])
    sysfs.port(nets=["ib0"])
    (hca,) = interfaces.hcas(sysfs.root)
    assert hca.interfaces == ("bond0", "bond0.7", "ib0")


def test_a_container_opens_the_cards_alone_that_it_was_given(sysfs: Sysfs) -> None:
    for number in (0, 1):
        sysfs.port(f"mlx5_{number}", uverbs=f"uverbs{number}")
    sysfs.write("dev/infiniband/uverbs1", "")
    assert [(hca.name, hca.opens) for hca in interfaces.hcas(sysfs.root)] == [("mlx5_0", False), ("mlx5_1", True)]
    assert [hca.name for hca in networks.cards_up(interfaces.hcas(sysfs.root))] == ["mlx5_1"]


def test_slingshot_is_up_and_as_fast_as_its_interface(sysfs: Sysfs) -> None:
    sysfs.interface("hsn0", operstate="up", speed=200000)
    sysfs.slingshot("cxi0", 0, 0, net="hsn0")
    assert interfaces.hcas(sysfs.root) == (
        Hca(name="cxi0", port=1, link_layer="Slingshot", active=True, rate_bits_per_s=200e9, interfaces=("hsn0",)),
    )


# ---------------------------------------------------------------- behind an interface


def port(card: str, number: int = 1, *nets: str, active: bool = True, link_layer: str = "InfiniBand") -> Hca:
    return Hca(
        name=card, port=number, link_layer=link_layer, active=active, rate_bits_per_s=200e9, interfaces=nets
    )


@pytest.mark.parametrize(
    ("hcas", "interface", "named"),
    [
        ((port("mlx5_0", 1, "ib0"), port("mlx5_1", 1, "ib1")), "ib0", ("mlx5_0",)),
        ((port("mlx4_0", 1, "ib0"), port("mlx4_0", 2, "ib1")), "ib1", ("mlx4_0:2",)),
        ((port("mlx5_0", 1, "bond0", "ib0"), port("mlx5_1", 1, "bond0", "ib1")), "bond0", ("mlx5_0", "mlx5_1")),
        ((port("mlx5_0", 1, "eth0", link_layer="Ethernet"),), "eth0", ()),
    ],
)
def test_the_ports_behind_an_interface_as_nccl_calls_them(
    hcas: tuple[Hca, ...], interface: str, named: tuple[str, ...]
) -> None:
    one = host(hcas=hcas)
    assert networks.cards_named(one, networks.card_behind(one, interface)) == named


def nic(speed: float | None) -> Nic:
    return Nic(name="ib0", address="10.0.0.1", netmask="255.0.0.0", up=True, mtu=2044, speed_bits_per_s=speed)


@pytest.mark.parametrize(
    ("speed", "active", "rate"), [(None, True, 200e9), (10e9, True, 10e9), (None, False, None)]
)
def test_an_interface_without_a_speed_is_as_fast_as_its_port(
    speed: float | None, active: bool, rate: float | None
) -> None:
    one = host(hcas=(port("mlx5_0", 1, "ib0", active=active),))
    assert networks.rate_bits_per_s(one, nic(speed)) == rate


@pytest.mark.parametrize(
    ("link_layer", "wanted", "plugin"),
    [
        ("Unknown", "rdmap0s1", True),  # EFA
        ("Unknown", "any", True),
        ("Slingshot", "rdmap0s1:1", True),
        ("InfiniBand", "rdmap0s1", False),
        ("Ethernet", "any", False),
        ("Unknown", "mlx5_0", False),
        ("Unknown", "", False),
    ],
)
def test_cards_without_nccls_verbs_need_a_plugin(link_layer: str, wanted: str, plugin: bool) -> None:
    one = host("a", hcas=(port("rdmap0s1", link_layer=link_layer),))
    assert networks.need_plugin({"a": one}, {"a": wanted}) is plugin


# What went over TCP connections between two readings of the kernel's account.

CONNECTION = Connection("10.0.0.1", 1000, "10.0.0.2", 2000)
OTHER = Connection("10.0.0.1", 1001, "10.0.0.2", 2000)


def test_bytes_of_two_connections_add_up_and_their_times_overlap() -> None:
    before = {CONNECTION: Account(1_000_000, 1.0)}
    now = {CONNECTION: Account(4_000_000, 3.0), OTHER: Account(500_000, 0.5)}
    assert connections.since(before, now) == (
        Flow(address="10.0.0.1", peer="10.0.0.2", sent_bytes=3_500_000, busy_s=2.0),
    )


def test_what_says_little_is_left_out() -> None:
    assert connections.since({}, {CONNECTION: Account(99_999, 1.0)}) == ()


# ---------------------------------------------------------------- NCCL's plugins


def test_plugins_are_found_where_nccl_looks(tmp_path: Path) -> None:
    fastrak, tcpx = (tmp_path / name / "libnccl-net.so" for name in ("fastrak", "tcpx"))
    for file in (fastrak, tcpx):
        file.parent.mkdir()
        file.touch()
    (fastrak.parent / "libnccl.so.2").touch()
    cached = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(f"libnccl-net-ofi.so\0{cached}\0/usr/lib/libc.so.6\0".encode())
    assert interfaces.nccl_plugins({"LD_LIBRARY_PATH": f"/nowhere:{fastrak.parent}"}, tmp_path) == (
        str(fastrak), cached,
    )  # fmt: skip
    assert interfaces.nccl_plugins({"NCCL_NET_PLUGIN": "aws"}, tmp_path) == (cached, "aws")
    assert interfaces.nccl_plugins({"NCCL_NET_PLUGIN": "none"}, tmp_path) == ()
    assert interfaces.nccl_plugins({}, tmp_path / "fastrak") == ()
