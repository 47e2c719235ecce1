"""Network cards: interfaces, RDMA ports and their counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.hosts import connections, interfaces, networks
from scaling.hosts.connections import Account, Connection
from scaling.records.host import Hca, Nic
from scaling.records.telemetry import Flow
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
    ) -> Sysfs:
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
        return self

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
    ) -> Sysfs:
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
        return self

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
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def _ports(fs: Sysfs, ib0: int, *words: int) -> None:
    """A card whose ports have an interface each, of which the first carries so many bytes."""
    for number, count in enumerate(words, 1):
        fs.port("mlx4_0", number, words=(count, count), nets=["ib0", "ib1"])
        fs.interface(f"ib{number - 1}", (2 - number) * ib0, 0, dev_port=number - 1, dev_id=f"0x{number - 1}")


def _bonds(fs: Sysfs, each: int) -> None:
    """Two cards, a bond, a VLAN and a bridge."""
    for name in ("eth0", "eth1"):
        fs.interface(name, each, each, master="bond0")
    fs.interface("bond0", 2 * each, 2 * each)
    fs.interface("bond0.7", 2 * each, 2 * each, on=["bond0"], master="br0")
    fs.interface("br0", 2 * each, 2 * each)


def _efa(fs: Sysfs, times: int) -> None:
    """What a port sends are messages and answers to RDMA reads; numbers as an instance showed them."""
    parts = {"rdma_read_resp_bytes": 82752269975546, "send_bytes": 1665042978528}
    fs.port("rdmap144s27", hw_bytes=(85466418782288 * times, 84417311044934 * times), link_layer="Unknown")
    for name, count in parts.items():
        fs.write(f"sys/class/infiniband/rdmap144s27/ports/1/hw_counters/{name}", count * times)


def _ipoib(fs: Sysfs, words: int, layer: str) -> None:
    fs.port(words=(words, words), link_layer=layer, nets=["ib0"])
    fs.interface("ib0", words, 2 * words)


CARRIED: dict[str, tuple[Callable[[Sysfs, int], object], Moved]] = {
    "not the loopback": (lambda fs, n: fs.interface("lo", n, n).interface("eth0", n, 2), {"eth0": (100, 0)}),
    "words of four bytes": (lambda fs, n: fs.port(words=(n, 2 * n)), {"mlx5_0/1": (400, 800)}),
    "InfiniBand and its IPoIB": (
        lambda fs, n: _ipoib(fs, n, "InfiniBand"), {"ib0": (100, 200), "mlx5_0/1": (300, 200)}
    ),
    "Ethernet": (lambda fs, n: _ipoib(fs, n, "Ethernet"), {"ib0": (100, 200), "mlx5_0/1": (400, 400)}),
    # Verbs by port 2 stay, whatever ib0 carries over port 1.
    "each port its own interface": (
        lambda fs, n: _ports(fs, 4 * n, n, 2 * n),
        {"ib0": (400, 0), "ib1": (0, 0), "mlx4_0/1": (0, 400), "mlx4_0/2": (800, 800)},
    ),
    "a bond over InfiniBand": (  # TCP over bond0 is ib0's, and so the port's
        lambda fs, n: fs.interface("bond0", 4 * n, 4 * n).interface("ib0", 4 * n, 4 * n, master="bond0").port(
            words=(n, n), nets=["ib0"]
        ),
        {"bond0": (400, 400), "mlx5_0/1": (0, 0)},
    ),
    "a VLAN": (
        lambda fs, n: fs.interface("eth0", n, n).interface("eth0.7", n, on=["eth0"]),
        {"eth0": (0, 100), "eth0.7": (100, 0)},
    ),
    "bonds, a VLAN and a bridge": (_bonds, {"bond0": (0, 0), "br0": (200, 200)}),
    "EFA in bytes beside its parts": (_efa, {"rdmap144s27/1": (8546641878228800, 8441731104493400)}),
    "Slingshot and its Ethernet": (
        lambda fs, n: fs.interface("hsn0", n, 2 * n).slingshot("cxi0", 11 * n, 22 * n, net="hsn0"),
        {"hsn0": (100, 200), "cxi0/1": (1000, 2000)},
    ),
    "a card without counters": (lambda fs, n: fs.port("hrn3_0"), {}),
    "a counter that went back, and a new one": (
        lambda fs, n: fs.interface("eth1", 9).interface("eth0", 100 - n).interface(f"net{n}"),
        {"eth1": (0, 0), "net0": (0, 0)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CARRIED)
def test_what_moved_between_two_readings(sysfs: Sysfs, case: str) -> None:
    write, moved = CARRIED[case]
    write(sysfs, 0)
    before = interfaces.read(sysfs.root)
    write(sysfs, 100)
    assert sysfs.moved(before) == moved


def test_a_port_of_an_older_kernel_is_known_by_dev_id(sysfs: Sysfs) -> None:
    for number in (1, 2):
        sysfs.port("mlx4_0", number, words=(0, 0), nets=["ib0", "ib1"])
    sysfs.interface("ib0", dev_port=0, dev_id="0x0")
    sysfs.interface("ib1", dev_port=0, dev_id="0x1")
    assert interfaces.read(sysfs.root)["mlx4_0/2"].includes == ("ib1",)


ETH0, PORT = "net/eth0/statistics", "infiniband/mlx5_0/ports/1"


@pytest.mark.parametrize(
    ("before", "after", "risen"),
    [
        ({f"{ETH0}/rx_errors": 1, f"{ETH0}/tx_dropped": 7}, {f"{ETH0}/rx_errors": 4}, {"rx_errors": 3}),
        ({f"{ETH0}/rx_errors": 5}, {f"{ETH0}/rx_errors": 2, f"{ETH0}/tx_errors": 9}, {}),  # one is new
        ({f"{PORT}/counters/symbol_error": 10}, {f"{PORT}/counters/symbol_error": 40}, {"symbol_error": 30}),
        *(  # lost packets and congestion of RoCE
            ({f"{PORT}/{folder}/{name}": 1}, {f"{PORT}/{folder}/{name}": 8}, {name: 7})
            for folder, name in (
                ("hw_counters", "out_of_sequence"), ("hw_counters", "np_cnp_sent"), ("counters", "port_xmit_wait"),
            )
        ),
    ],
)  # fmt: skip
def test_error_counters_are_told_by_how_much_they_rose(
    sysfs: Sysfs, before: dict[str, int], after: dict[str, int], risen: dict[str, int]
) -> None:
    sysfs.interface("eth0", 100, 100)
    sysfs.port(words=(0, 0), link_layer="Ethernet")
    readings = []
    for counts in (before, after):
        for path, value in counts.items():
            sysfs.write(f"sys/class/{path}", value)
        readings.append(interfaces.read(sysfs.root))
    found = {one.name: one.errors for one in interfaces.since(*readings)}
    named = "eth0" if ETH0 in next(iter(after)) else "mlx5_0/1"
    assert found == {"eth0": {}, "mlx5_0/1": {}, named: risen}


def test_the_speed_of_a_veth_is_unknown(sysfs: Sysfs) -> None:
    for name in ("eth0", "veth0", "bond0"):
        sysfs.interface(name, uevent=f"{'DEVTYPE=bond' if name == 'bond0' else 'IFINDEX=4'}\nINTERFACE={name}")
    (sysfs.root / "sys/class/net/eth0/device").mkdir()
    told = {name: interfaces.has_card(name, sysfs.root) for name in ("eth0", "veth0", "bond0", "gone")}
    assert told == {"eth0": True, "veth0": False, "bond0": True, "gone": False}


# RDMA cards as a made-up /sys describes them, and which of them stand behind an interface.


def test_a_host_without_cards_and_counters(tmp_path: Path) -> None:
    assert interfaces.read(tmp_path) == {}
    assert interfaces.hcas(tmp_path) == ()


def test_a_card_with_its_interface(sysfs: Sysfs) -> None:
    sysfs.interface("ib0")
    sysfs.port(nets=["ib0"], words=(0, 0))
    sysfs.port("irdma0", link_layer="Ethernet")  # whose driver counts no bytes
    assert [replace(hca, rate_bits_per_s=None) for hca in interfaces.hcas(sysfs.root)] == [
        Hca(name="irdma0", port=1, link_layer="Ethernet", active=True, counts=False),
        Hca(name="mlx5_0", port=1, link_layer="InfiniBand", active=True, interfaces=("ib0",)),
    ]
    assert {hca.rate_bits_per_s for hca in interfaces.hcas(sysfs.root)} == {100e9}


def test_each_port_of_a_card_has_its_own_interface(sysfs: Sysfs) -> None:
    _ports(sysfs, 0, 0, 0)
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
