"""The kernel's counters, from a made-up /sys: bytes of interfaces and of RDMA ports, none of them twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.hosts import interfaces
from scaling.records.host import Hca
from scaling.records.telemetry import Traffic


def write(root: Path, path: str, text: object) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{text}\n")


def interface(root: Path, name: str, received: int, sent: int) -> Path:
    for way, count in (("rx", received), ("tx", sent)):
        write(root, f"sys/class/net/{name}/statistics/{way}_bytes", count)
    return root / "sys/class/net" / name


def port(root: Path, received_words: int, sent_words: int, link_layer: str = "InfiniBand") -> None:
    folder = "sys/class/infiniband/mlx5_0"
    write(root, f"{folder}/ports/1/counters/port_rcv_data", received_words)
    write(root, f"{folder}/ports/1/counters/port_xmit_data", sent_words)
    write(root, f"{folder}/ports/1/link_layer", link_layer)
    write(root, f"{folder}/ports/1/state", "4: ACTIVE")
    write(root, f"{folder}/ports/1/rate", "100 Gb/sec (4X EDR)")
    (root / folder / "device/net/ib0").mkdir(parents=True, exist_ok=True)


def moved(root: Path, before: interfaces.Reading) -> dict[str, tuple[int, int]]:
    found = interfaces.since(before, interfaces.read(root))
    return {one.name: (one.received_bytes, one.sent_bytes) for one in found}


def test_what_moved_in_between_but_not_on_the_loopback(tmp_path: Path) -> None:
    interface(tmp_path, "lo", 0, 0)
    interface(tmp_path, "eth0", 1000, 2000)
    before = interfaces.read(tmp_path)
    interface(tmp_path, "lo", 5, 5)
    interface(tmp_path, "eth0", 1500, 2001)
    assert interfaces.since(before, interfaces.read(tmp_path)) == (
        Traffic(name="eth0", received_bytes=500, sent_bytes=1),
    )


def test_ports_count_in_words_of_four_bytes(tmp_path: Path) -> None:
    port(tmp_path, 10, 20)
    before = interfaces.read(tmp_path)
    port(tmp_path, 11, 22)
    assert moved(tmp_path, before) == {"mlx5_0/1": (4, 8)}


@pytest.mark.parametrize(("link_layer", "rdma"), [("InfiniBand", 1000), ("Ethernet", 1600)])
def test_an_infiniband_port_counts_its_ipoib_too(tmp_path: Path, link_layer: str, rdma: int) -> None:
    port(tmp_path, 0, 0, link_layer)
    interface(tmp_path, "ib0", 0, 0)
    before = interfaces.read(tmp_path)
    port(tmp_path, 400, 400, link_layer)
    interface(tmp_path, "ib0", 600, 600)
    assert moved(tmp_path, before) == {"ib0": (600, 600), "mlx5_0/1": (rdma, rdma)}


def test_a_card_below_a_bond_is_counted_there(tmp_path: Path) -> None:
    for name in ("bond0", "eth0"):
        interface(tmp_path, name, 7, 7)
    (tmp_path / "sys/class/net/eth0/master").symlink_to("../bond0")
    (tmp_path / "sys/class/net/eth0/upper_bond0").symlink_to("../bond0")
    assert set(interfaces.read(tmp_path)) == {"bond0"}


def test_a_card_does_not_count_its_vlans(tmp_path: Path) -> None:
    for name in ("eth0", "eth0.7"):
        interface(tmp_path, name, 0, 0)
    (tmp_path / "sys/class/net/eth0/upper_eth0.7").symlink_to("../eth0.7")
    before = interfaces.read(tmp_path)
    interface(tmp_path, "eth0", 100, 100)
    interface(tmp_path, "eth0.7", 90, 90)
    assert moved(tmp_path, before) == {"eth0": (10, 10), "eth0.7": (90, 90)}


def test_a_counter_that_went_back_tells_nothing(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", 100, 100)
    interface(tmp_path, "eth1", 100, 100)
    before = interfaces.read(tmp_path)
    interface(tmp_path, "eth0", 0, 100)
    interface(tmp_path, "eth2", 9, 9)
    assert moved(tmp_path, before) == {"eth1": (0, 0)}


def test_a_host_without_counters(tmp_path: Path) -> None:
    assert (interfaces.read(tmp_path), interfaces.hcas(tmp_path)) == ({}, ())


def test_rdma_cards_are_described(tmp_path: Path) -> None:
    port(tmp_path, 0, 0)
    assert interfaces.hcas(tmp_path) == (
        Hca(
            name="mlx5_0", port=1, link_layer="InfiniBand", active=True, rate_bits_per_s=100e9, interfaces=("ib0",)
        ),
    )
