"""The kernel's counters, from a made-up /sys: bytes of interfaces and of RDMA ports, none of them twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.hosts import interfaces
from scaling.records.telemetry import Traffic
from tests.support.sysfs import Sysfs


@pytest.fixture
def host(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_what_moved_in_between_but_not_on_the_loopback(host: Sysfs) -> None:
    host.interface("lo")
    host.interface("eth0", 1000, 2000)
    before = interfaces.read(host.root)
    host.interface("lo", 5, 5)
    host.interface("eth0", 1500, 2001)
    assert interfaces.since(before, interfaces.read(host.root)) == (
        Traffic(name="eth0", received_bytes=500, sent_bytes=1),
    )


def test_ports_count_in_words_of_four_bytes(host: Sysfs) -> None:
    host.port(words=(10, 20))
    before = interfaces.read(host.root)
    host.port(words=(11, 22))
    assert host.moved(before) == {"mlx5_0/1": (4, 8)}


@pytest.mark.parametrize(("link_layer", "rdma"), [("InfiniBand", 1000), ("Ethernet", 1600)])
def test_an_infiniband_port_counts_its_ipoib_too(host: Sysfs, link_layer: str, rdma: int) -> None:
    host.port(words=(0, 0), link_layer=link_layer, nets=["ib0"])
    host.interface("ib0")
    before = interfaces.read(host.root)
    host.port(words=(400, 400), link_layer=link_layer)
    host.interface("ib0", 600, 600)
    assert host.moved(before) == {"ib0": (600, 600), "mlx5_0/1": (rdma, rdma)}


def test_each_port_of_a_card_counts_its_own_interface(host: Sysfs) -> None:
    """2 GB of verbs by port 2 stay 2 GB, whatever ib0 carries over port 1."""

    def carry(ib0: int, first: int, second: int) -> None:
        host.interface("ib0", ib0, ib0, dev_port=0, dev_id="0x0")
        host.interface("ib1", 0, 0, dev_port=1, dev_id="0x1")
        for number, words in ((1, first), (2, second)):
            host.port("mlx4_0", number, words=(words, words), nets=["ib0", "ib1"])

    carry(0, 0, 0)
    before = interfaces.read(host.root)
    carry(1000, 250, 500)
    assert host.moved(before) == {"ib0": (1000, 1000), "ib1": (0, 0), "mlx4_0/1": (0, 0), "mlx4_0/2": (2000, 2000)}


def test_a_port_of_an_older_kernel_is_known_by_dev_id(host: Sysfs) -> None:
    for number in (1, 2):
        host.port("mlx4_0", number, words=(0, 0), nets=["ib0", "ib1"])
    host.interface("ib0", dev_port=0, dev_id="0x0")
    host.interface("ib1", dev_port=0, dev_id="0x1")
    assert interfaces.read(host.root)["mlx4_0/2"].includes == ("ib1",)


def test_a_card_below_a_bond_is_counted_there(host: Sysfs) -> None:
    host.interface("bond0", 7, 7)
    host.interface("eth0", 7, 7, master="bond0")
    assert host.moved(interfaces.read(host.root)) == {"bond0": (0, 0)}


def test_a_bond_over_infiniband_counts_once(host: Sysfs) -> None:
    """TCP over bond0 is ib0's, and so the port's."""

    def carry(count: int) -> None:
        host.interface("bond0", count, count)
        host.interface("ib0", count, count, master="bond0")
        host.port(words=(count // 4, count // 4), nets=["ib0"])

    carry(0)
    before = interfaces.read(host.root)
    carry(1000)
    assert host.moved(before) == {"bond0": (1000, 1000), "mlx5_0/1": (0, 0)}


def test_a_card_does_not_count_its_vlans(host: Sysfs) -> None:
    host.interface("eth0")
    host.interface("eth0.7", on=["eth0"])
    before = interfaces.read(host.root)
    host.interface("eth0", 100, 100)
    host.interface("eth0.7", 90, 90)
    assert host.moved(before) == {"eth0": (10, 10), "eth0.7": (90, 90)}


def test_two_cards_a_bond_a_vlan_and_a_bridge_count_once(host: Sysfs) -> None:
    def carry(each: int) -> None:
        for name in ("eth0", "eth1"):
            host.interface(name, each, each, master="bond0")
        host.interface("bond0", 2 * each, 2 * each)
        host.interface("bond0.7", 2 * each, 2 * each, on=["bond0"], master="br0")
        host.interface("br0", 2 * each, 2 * each)

    carry(0)
    before = interfaces.read(host.root)
    carry(50)
    assert host.moved(before) == {"bond0": (0, 0), "br0": (100, 100)}


def test_efa_counts_in_bytes_beside_its_parts(host: Sysfs) -> None:
    """What a port sends are messages and answers to RDMA reads; numbers as an instance showed them."""
    host.port("rdmap144s27", hw_bytes=(0, 0), link_layer="Unknown")
    before = interfaces.read(host.root)
    host.port("rdmap144s27", hw_bytes=(85466418782288, 84417311044934), link_layer="Unknown")
    for name, count in (("rdma_read_resp_bytes", 82752269975546), ("send_bytes", 1665042978528)):
        host.write(f"sys/class/infiniband/rdmap144s27/ports/1/hw_counters/{name}", count)
    assert host.moved(before) == {"rdmap144s27/1": (85466418782288, 84417311044934)}


def test_slingshot_counts_its_ethernet_too(host: Sysfs) -> None:
    host.interface("hsn0")
    host.slingshot("cxi0", 0, 0, net="hsn0")
    before = interfaces.read(host.root)
    host.interface("hsn0", 100, 200)
    host.slingshot("cxi0", 1100, 2200, net="hsn0")
    assert host.moved(before) == {"hsn0": (100, 200), "cxi0/1": (1000, 2000)}


def test_a_card_without_counters_tells_nothing(host: Sysfs) -> None:
    host.port("hrn3_0")
    assert interfaces.read(host.root) == {}


def test_a_counter_that_went_back_tells_nothing(host: Sysfs) -> None:
    host.interface("eth0", 100, 100)
    host.interface("eth1", 100, 100)
    before = interfaces.read(host.root)
    host.interface("eth0", 0, 100)
    host.interface("eth2", 9, 9)
    assert host.moved(before) == {"eth1": (0, 0)}


def test_a_host_without_counters(tmp_path: Path) -> None:
    assert interfaces.read(tmp_path) == {}


def test_the_speed_of_a_veth_is_nobodys(host: Sysfs) -> None:
    for name in ("eth0", "veth0", "bond0"):
        host.interface(name, uevent=f"{'DEVTYPE=bond' if name == 'bond0' else 'IFINDEX=4'}\nINTERFACE={name}")
    (host.root / "sys/class/net/eth0/device").mkdir()
    told = {name: interfaces.has_card(name, host.root) for name in ("eth0", "veth0", "bond0", "gone")}
    assert told == {"eth0": True, "veth0": False, "bond0": True, "gone": False}
