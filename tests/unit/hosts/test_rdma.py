"""RDMA cards as a made-up /sys describes them, and which of them stand behind an interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.hosts import networks, rdma
from scaling.records.host import Hca, Nic
from tests.support.inline import host
from tests.support.sysfs import Sysfs


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_a_card_with_its_interface(sysfs: Sysfs) -> None:
    sysfs.interface("ib0")
    sysfs.port(nets=["ib0"])
    assert rdma.hcas(sysfs.root) == (
        Hca(
            name="mlx5_0", port=1, link_layer="InfiniBand", active=True, rate_bits_per_s=100e9, interfaces=("ib0",)
        ),
    )


def test_no_card(tmp_path: Path) -> None:
    assert rdma.hcas(tmp_path) == ()


def test_each_port_of_a_card_has_its_own_interface(sysfs: Sysfs) -> None:
    for number in (1, 2):
        sysfs.port("mlx4_0", number, nets=["ib0", "ib1"])
        sysfs.interface(f"ib{number - 1}", dev_port=number - 1)
    assert [(hca.port, hca.interfaces) for hca in rdma.hcas(sysfs.root)] == [(1, ("ib0",)), (2, ("ib1",))]


def test_what_stands_on_an_interface_stands_on_its_card(sysfs: Sysfs) -> None:
    sysfs.interface("ib0", master="bond0")
    sysfs.interface("bond0.7", on=["bond0"])
    sysfs.port(nets=["ib0"])
    (hca,) = rdma.hcas(sysfs.root)
    assert hca.interfaces == ("bond0", "bond0.7", "ib0")


def test_a_container_opens_the_cards_alone_that_it_was_given(sysfs: Sysfs) -> None:
    for number in (0, 1):
        sysfs.port(f"mlx5_{number}", uverbs=f"uverbs{number}")
    sysfs.write("dev/infiniband/uverbs1", "")
    assert [(hca.name, hca.opens) for hca in rdma.hcas(sysfs.root)] == [("mlx5_0", False), ("mlx5_1", True)]
    assert [hca.name for hca in networks.cards_up(rdma.hcas(sysfs.root))] == ["mlx5_1"]


def test_slingshot_is_up_and_as_fast_as_its_interface(sysfs: Sysfs) -> None:
    sysfs.interface("hsn0", operstate="up", speed=200000)
    sysfs.slingshot("cxi0", 0, 0, net="hsn0")
    assert rdma.hcas(sysfs.root) == (
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
